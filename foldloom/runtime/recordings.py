"""Recordings that were made with torch, run by a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from foldloom.errors import ExportedFileError
from foldloom.graph import Graph, Op, Type
from foldloom.graph.recording import Recording
from foldloom.pytrees import fill
from foldloom.runtime.description import Description, OpOf, TypeOf
from foldloom.runtime.recorder import Recorder
from foldloom.runtime.results import Rows


def identity_of(op: Op) -> str:
    """A hash that identifies an op in every process."""
    told = repr((op.key, op.inputs, op.outputs, op.settings, op.shared, op.mode))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def replayed(recording: Recording, recorder: Recorder) -> list[Any]:
    """Record the calls of a recording again. Returns the result of each of its examples, with a `Value` in place of
    every tensor, and `Rows` for tensors with any number of rows."""
    graph, description = recording.graph, recorder.description
    only_results = ops_of_results(graph)
    numbers = [
        None if op.is_input or number in only_results or op.key == description.given else _number_of(op, description)
        for number, op in enumerate(graph.ops)
    ]
    given = _given_rows(recording)
    values: list[Any] = []
    operands, lengths = iter(graph.operands.tolist()), iter(graph.lengths.tolist())
    for op_number in graph.op_of_node.tolist():
        op, number = graph.ops[op_number], numbers[op_number]
        if op_number in only_results:
            rows_of_result = [values[next(operands)] for _ in op.inputs]
            values.append(Rows(_type_of_rows(op.outputs[0], description), rows_of_result))
        elif op.key == description.given:
            values.append(values[next(operands)])
        elif number is None:
            count = next(lengths) if op.outputs[0].ragged else 1
            values += [recorder.value_of(next(given[op_number]), "the file") for _ in range(count)]
        else:
            rows = [[values[next(operands)] for _ in range(next(lengths) if type.ragged else 1)] for type in op.inputs]
            made = recorder.call_ragged(number, rows, [next(lengths) if type.ragged else 1 for type in op.outputs])
            values += [row for output in made for row in output]
    return fill(recording.results, [values[value] for value in graph.outputs.tolist()])


def ops_of_results(graph: Graph) -> set[int]:
    """The numbers of ops that only assemble a result: a tensor with any number of rows, or with none.

    These are assembled from arrays after the run. A file that did it would be specialised to the numbers of rows that
    examples had.
    """
    read = set(graph.op_of_node[graph.node_of_value[graph.operands]].tolist())
    return {number for number, op in enumerate(graph.ops) if number not in read and _puts_rows_together(op)}


_STACK = "torch:_VariableFunctionsClass.stack"
_ITS_ROWS_ALONE = (dict, (), ())
"""Empty keyword arguments, as settings have them."""


def _puts_rows_together(op: Op) -> bool:
    (made,) = op.outputs if len(op.outputs) == 1 else (None,)
    if made is None or made.ragged or not made.shape:
        return False
    if op.is_input:
        return made.shape[0] == 0
    return (
        op.key == _STACK
        and made.shape == (len(op.inputs), *op.inputs[0].shape)
        and op.settings[0][2][1] == _ITS_ROWS_ALONE  # type: ignore[index]
    )


def _type_of_rows(type: Type, description: Description) -> int:
    row = TypeOf(type.shape[1:], type.dtype)
    if row not in description.types:
        raise ExportedFileError(
            f"the example returns rows of {row}, but the file has values of {', '.join(map(str, description.types))} only"
        )
    return description.types.index(row)


def _number_of(op: Op, description: Description) -> int:
    number = description.number_of_identity.get(identity_of(op))
    if number is None:
        hint = _NUMBERS if any(_differs_in_settings(op, known, description) for known in description.ops) else ""
        raise ExportedFileError(
            f"the example calls {op}, which none of the examples did with which the model was exported.{hint} Export it with such an example "
            "among them: `fl.export(model, path, examples)`"
        )
    return number


_NUMBERS = " It did with other settings: a Python number that meets a value is a part of the operation. Make it a value, `torch.tensor(number)`."


def _differs_in_settings(op: Op, known: OpOf, description: Description) -> bool:
    types = [TypeOf(type.row.shape, type.dtype) for type in op.inputs]
    return known.cell == op.key and [description.types[type] for type in known.inputs] == types


def _given_rows(recording: Recording) -> dict[int, Iterator[Any]]:
    """For each input op the given values, row by row."""
    graph: Graph = recording.graph
    inputs = [number for number, op in enumerate(graph.ops) if op.is_input]
    return {
        number: iter(_rows(column, graph.ops[number].outputs[0].ragged))
        for number, column in zip(inputs, recording.inputs, strict=True)
    }


def _rows(column: Any, ragged: bool) -> Iterable[Any]:
    if isinstance(column, np.ndarray):
        return column
    arrays: Sequence[Any] = [tensor.detach().cpu().numpy() for tensor in column]
    return [row for array in arrays for row in array] if ragged else arrays
