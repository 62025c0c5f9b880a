"""Examples that were recorded with torch, to be run by a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from foldloom.errors import ExportedFileError
from foldloom.graph import Graph, Op
from foldloom.recording import OUTPUT, Recording
from foldloom.runtime.description import Description
from foldloom.runtime.recorder import Recorder, Value


def identity_of(op: Op) -> str:
    """What tells an op from all others, in this process and elsewhere."""
    told = repr((op.key, op.inputs, op.outputs, op.settings, op.shared, op.mode))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def replayed(recording: Recording, recorder: Recorder) -> list[Any]:
    """Record again what was recorded with torch; the result of each of its examples, with a `Value` in place of every tensor."""
    graph = recording.graph
    numbers = [None if op.is_input else _number_of(op, recorder.description) for op in graph.ops]
    given = _given_rows(recording)
    values: list[Value] = []
    operands, lengths = iter(graph.operands.tolist()), iter(graph.lengths.tolist())
    for op_number in graph.op_of_node.tolist():
        op, number = graph.ops[op_number], numbers[op_number]
        if number is None:
            count = next(lengths) if op.outputs[0].ragged else 1
            values += [recorder.value_of(next(given[op_number]), "the file") for _ in range(count)]
            continue
        rows = [[values[next(operands)] for _ in range(next(lengths) if type.ragged else 1)] for type in op.inputs]
        made = recorder.call_ragged(number, rows, [next(lengths) if type.ragged else 1 for type in op.outputs])
        values += [row for output in made for row in output]
    outputs = iter([values[value] for value in graph.outputs.tolist()])
    return [_filled(template, outputs) for template in recording.results]


def _number_of(op: Op, description: Description) -> int:
    number = description.number_of_identity.get(identity_of(op))
    if number is None:
        raise ExportedFileError(
            f"the example calls {op}, which none of the examples did with which the model was exported. Export it with such an example "
            "among them: `fl.export(model, path, examples)`"
        )
    return number


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
    arrays: Sequence[Any] = [tensor.detach().cpu().numpy() for tensor in column]
    return [row for array in arrays for row in array] if ragged else arrays


def _filled(template: Any, outputs: Iterator[Value]) -> Any:
    """A result, walked in the order in which `results.template_of` numbers its outputs."""
    if template is OUTPUT:
        return next(outputs)
    if type(template).__name__ == "OutputRun":  # its module needs torch
        return [next(outputs) for _ in range(template.length)]
    if isinstance(template, dict):
        done = {key: _filled(template[key], outputs) for key in sorted(template, key=repr)}
        return {key: done[key] for key in template}
    if isinstance(template, (list, tuple)):
        items = [_filled(item, outputs) for item in template]
        return items if isinstance(template, list) else tuple(items)
    return template
