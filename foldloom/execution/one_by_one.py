"""The oracle: a graph run node by node in recording order, on ordinary autograd, with no plan and no arena.

Slow, and too simple to be wrong. Everything else is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foldloom.execution.kernels import Kernel
from foldloom.graph import Graph


def run_one_by_one(
    graph: Graph, inputs: Sequence[torch.Tensor], kernels: Sequence[Kernel | None]
) -> list[torch.Tensor]:
    """The graph's outputs, each unbatched. ``inputs`` has one tensor for each input op, in recording order."""
    given = {
        number: iter(tensor)
        for number, tensor in zip((i for i, op in enumerate(graph.ops) if op.is_input), inputs, strict=True)
    }
    values: list[torch.Tensor] = []
    first_operand, arity = graph.first_operand_of_node.tolist(), graph.arity_of_node.tolist()
    operands = graph.operands.tolist()
    for node, op in enumerate(graph.op_of_node.tolist()):
        kernel = kernels[op]
        if kernel is None:
            values.append(next(given[op]))
            continue
        start = first_operand[node]
        outputs = kernel.call(*[values[value].unsqueeze(0) for value in operands[start : start + arity[node]]])
        kernel.check(outputs, 1)
        values += [output.squeeze(0) for output in outputs]
    return [values[value] for value in graph.outputs.tolist()]
