"""What a model consists of, learned from what examples ask of it: types, ops, and which op reads what which other makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from foldloom.errors import ExportError
from foldloom.exporting.stages import stages_of
from foldloom.graph import Graph, Op, Type
from foldloom.lazy.cell import find_cell
from foldloom.lazy.operations import is_function
from foldloom.recording import Recording
from foldloom.runtime.description import Description, OpOf, TypeOf
from foldloom.runtime.recorder import Recorder, Value

UNKNOWN_TO_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


class Learned:
    """The ops of a model under their numbers, and what is known of how they follow each other."""

    def __init__(self, owner: object) -> None:
        self._owner = owner
        self.ops: dict[Op, int] = {}
        self.readers: dict[int, set[int]] = {}
        self._types: dict[Type, int] = {}

    def add_recording(self, recording: Recording) -> None:
        graph = recording.graph
        for op in graph.ops:
            self.add_op(op)
        numbers = np.array([self.ops.get(op, -1) for op in graph.ops], np.int64)[graph.op_of_node]
        makers = numbers[graph.node_of_value[graph.operands]]
        readers = numbers[np.repeat(np.arange(len(numbers)), graph.arity_of_node)]
        for maker, reader in set(zip(makers.tolist(), readers.tolist(), strict=True)):
            if maker >= 0:
                self.add_reader(maker, reader)

    def add_op(self, op: Op) -> None:
        for type in (*op.inputs, *op.outputs):
            self.add_type(type.row)
        if not op.is_input:
            self.ops.setdefault(op, len(self.ops))

    def add_type(self, type: Type) -> int:
        if type.dtype in UNKNOWN_TO_NUMPY:
            raise ExportError(
                f"a value of {type} cannot be exported, because numpy has no {type.dtype}. Write `model.float()` before exporting"
            )
        return self._types.setdefault(type, len(self._types))

    def add_reader(self, maker: int, reader: int) -> None:
        self.readers.setdefault(maker, set()).add(reader)

    def description(self, program: dict[str, Any] | None, why: str, version: str) -> Description:
        return Description(
            types=tuple([TypeOf(type.shape, type.dtype) for type in self._types]),
            ops=tuple([self._described(op) for op in self.ops]),
            stages=stages_of(len(self.ops), self.readers),
            program=program,
            why=why,
            version=version,
        )

    def _described(self, op: Op) -> OpOf:
        nesting: Any = None
        settings: Any = ()
        returns: Any = None
        if not is_function(op):
            nesting, settings = op.settings  # type: ignore[misc]
            returns = find_cell(op.key, self._owner).signature(op.inputs, nesting, settings).returns
        return OpOf(
            cell=op.key.partition("#")[0],
            label=op.label or op.key,
            inputs=tuple([self._types[type.row] for type in op.inputs]),
            outputs=tuple([self._types[type.row] for type in op.outputs]),
            nesting=json_nesting(nesting),
            settings=tuple([(name, repr(value)) for name, value, _ in settings]),
            returns=json_nesting(returns),
            ragged_inputs=tuple([slot for slot, type in enumerate(op.inputs) if type.ragged]),
            ragged_outputs=tuple([slot for slot, type in enumerate(op.outputs) if type.ragged]),
        )


def json_nesting(nesting: Any) -> Any:
    """The nesting of arguments or results, as a description has it."""
    if nesting is None:
        return None
    kind, keys, parts = nesting
    name = "dict" if kind is dict else "list" if kind is list else "tuple"
    return name, keys if kind is dict else len(parts), tuple([json_nesting(part) for part in parts])


def replay(recording: Recording, numbers: dict[Op, int], recorder: Recorder) -> list[Value]:
    """Record what was recorded with torch where the file's inputs come from; the values that it asks for."""
    graph = recording.graph
    given = _given_rows(recording)
    values: list[Value] = []
    operands, lengths = iter(graph.operands.tolist()), iter(graph.lengths.tolist())
    for number in graph.op_of_node.tolist():
        op = graph.ops[number]
        if op.is_input:
            count = next(lengths) if op.outputs[0].ragged else 1
            values += [recorder.value_of(next(given[number]), "the file") for _ in range(count)]
            continue
        known = numbers.get(op)
        if known is None:
            raise ExportError(
                f"the example calls {op}, which none of the examples did with which the model was exported. Export it with such "
                "an example among them"
            )
        rows = [[values[next(operands)] for _ in range(next(lengths) if type.ragged else 1)] for type in op.inputs]
        made = recorder.call_ragged(known, rows, [next(lengths) if type.ragged else 1 for type in op.outputs])
        values += [row for output in made for row in output]
    return [values[value] for value in graph.outputs.tolist()]


def _given_rows(recording: Recording) -> dict[int, Iterator[Any]]:
    """For each input op, what was given for it, row by row."""
    graph: Graph = recording.graph
    inputs = [number for number, op in enumerate(graph.ops) if op.is_input]
    return {
        number: iter(_rows(column, graph.ops[number].outputs[0].ragged))
        for number, column in zip(inputs, recording.inputs, strict=True)
    }


def _rows(column: Any, ragged: bool) -> Iterable[Any]:
    if isinstance(column, np.ndarray):
        return column
    arrays: Sequence[Any] = [tensor.detach().cpu().numpy() for tensor in column if isinstance(tensor, torch.Tensor)]
    return [row for array in arrays for row in array] if ragged else arrays
