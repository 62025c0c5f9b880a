"""The oracle: a graph run node by node in recording order, on ordinary autograd, with no plan and no arena.

Slow, and too simple to be wrong. Everything else is tested against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from foldloom.execution.kernels import Kernel, dtype_of
from foldloom.graph import Graph, Type
from foldloom.graph.ragged import Ragged


def run_one_by_one(
    graph: Graph, inputs: Sequence[torch.Tensor], kernels: Sequence[Kernel | None]
) -> list[torch.Tensor]:
    """The graph's outputs, each unbatched. ``inputs`` has one tensor of rows for each input op, in recording order."""
    given = {
        number: iter(tensor)
        for number, tensor in zip((i for i, op in enumerate(graph.ops) if op.is_input), inputs, strict=True)
    }
    values: list[torch.Tensor] = []
    operands = iter(graph.operands.tolist())
    lengths = iter(graph.lengths.tolist())
    for op in graph.op_of_node.tolist():
        kernel = kernels[op]
        if kernel is None:
            rows = next(lengths) if graph.ops[op].outputs[0].ragged else 1
            values += [next(given[op]) for _ in range(rows)]
            continue
        arguments = [_operand(type, values, operands, lengths) for type in kernel.op.inputs]
        outputs = [_rows(output) for output in kernel.call(*arguments)]
        kernel.check(outputs, [next(lengths) if type.ragged else 1 for type in kernel.op.outputs])
        for output in outputs:
            values += output
    return [values[value] for value in graph.outputs.tolist()]


def _operand(
    type: Type, values: list[torch.Tensor], operands: Iterator[int], lengths: Iterator[int]
) -> torch.Tensor | Ragged:
    if not type.ragged:
        return values[next(operands)].unsqueeze(0)
    rows = [values[next(operands)] for _ in range(next(lengths))]
    block = torch.stack(rows) if rows else torch.empty((0, *type.row.shape), dtype=dtype_of(type))
    return Ragged(block, torch.tensor([len(rows)]))


def _rows(output: torch.Tensor | Ragged) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.values
