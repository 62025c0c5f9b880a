"""Graphs from elsewhere, looked at before they are planned: every number refers to something, and values are of the types that are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from foldloom.errors import RecordingError
from foldloom.graph.graph import Graph, Ints, runs_of, starts_of
from foldloom.graph.ops import CONSTANT
from foldloom.graph.recording import Recording
from foldloom.graph.types import Type

MOST_VALUES = 1 << 31


def check_recording(recording: Recording) -> None:
    """Raise a `RecordingError` for a recording that no program makes."""
    try:
        check_graph(recording.graph)
        _check_inputs(recording)
        outputs = sum([template.count for template in recording.results])
        _expect(outputs == len(recording.graph.outputs), "results and outputs differ in number")
        _expect(len(recording.results) == recording.graph.example_count, "results and examples differ in number")
    except (IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordingError(f"it does not hold together: {type(error).__name__}: {error}") from error


def _expect(holds: Any, problem: str) -> None:
    if not holds:
        raise RecordingError(problem)


def check_graph(graph: Graph) -> None:
    columns = ("op_of_node", "operands", "depth_of_node", "nodes_of_example", "outputs", "lengths")
    for name in columns:
        column: Ints = getattr(graph, name)
        _expect(column.dtype == np.int64 and column.ndim == 1 and column.min(initial=0) >= 0, f"{name} holds no counts")
    _expect(graph.op_of_node.max(initial=-1) < len(graph.ops), "a node is of an op that is not there")
    _expect(all(op.key == CONSTANT or not op.is_input for op in graph.ops), "an op is an input from another batch")
    _expect(all(len(op.outputs) == 1 for op in graph.ops if op.is_input), "an input is no single value")
    ragged = np.array([sum([type.ragged for type in (*op.inputs, *op.outputs)]) for op in graph.ops], np.int64)
    _expect(ragged[graph.op_of_node].sum() == len(graph.lengths), "lengths and ragged values differ in number")
    _expect(float(graph.lengths.sum(dtype=np.float64)) < MOST_VALUES, "there are too many rows")
    _expect(graph.nodes_of_example.sum() == len(graph.op_of_node), "nodes and examples differ")
    _expect(graph.arity_of_node.sum() == len(graph.operands), "nodes read another number of values than there are")
    _expect(graph.width_of_node.sum() == graph.value_count, "nodes make another number of values than there are")
    _expect(graph.outputs.max(initial=-1) < graph.value_count, "an output is no value")
    reader = np.repeat(np.arange(len(graph.op_of_node)), graph.arity_of_node)
    _expect((graph.operands < starts_of(graph.width_of_node)[reader]).all(), "a node reads what is made after it")
    _check_depths(graph, reader)
    _check_types(graph)


def _check_depths(graph: Graph, reader: Ints) -> None:
    is_input = np.array([op.is_input for op in graph.ops], bool)[graph.op_of_node]
    depth = graph.depth_of_node
    _expect(len(depth) == len(graph.op_of_node) and ((depth == 0) == is_input).all(), "depths do not tell inputs")
    _expect(
        (depth[reader] > depth[graph.node_of_value[graph.operands]]).all(), "a node is no deeper than what it reads"
    )
    _expect(depth.max(initial=0) <= len(depth), "a node is deeper than there are nodes")


def _check_types(graph: Graph) -> None:
    """Each operand is of the type that its op takes."""
    numbers: dict[Type, int] = {}

    def of_rows(types: list[tuple[Type, ...]], slots: Any) -> Ints:
        flat = np.array([numbers.setdefault(type.row, len(numbers)) for of_op in types for type in of_op], np.int64)
        first = starts_of(np.array([len(of_op) for of_op in types], np.int64))
        of_slot = flat[runs_of(first[graph.op_of_node], slots.of_node)]
        return of_slot if slots.rows is None else of_slot.repeat(slots.rows)

    made = of_rows([op.outputs for op in graph.ops], graph.output_slots)
    taken = of_rows([op.inputs for op in graph.ops], graph.operand_slots)
    _expect((made[graph.operands] == taken).all(), "a node reads a value of another type than it takes")


def _check_inputs(recording: Recording) -> None:
    graph = recording.graph
    input_ops = [number for number, op in enumerate(graph.ops) if op.is_input]
    _expect(len(input_ops) == len(recording.inputs), "inputs and their ops differ in number")
    for number, column in zip(input_ops, recording.inputs, strict=True):
        type = graph.ops[number].outputs[0]
        count = int(np.count_nonzero(graph.op_of_node == number))
        _expect(len(column) == count, f"there are {len(column)} inputs for {count} nodes")
        if isinstance(column, np.ndarray):
            fits = not type.ragged and column.dtype.name == type.dtype and column.shape[1:] == type.shape
        else:
            shapes = [tuple(tensor.shape) for tensor in column]
            fits = all(shape[1:] == type.row.shape if type.ragged else shape == type.shape for shape in shapes)
            fits = fits and all(str(tensor.dtype) == f"torch.{type.dtype}" for tensor in column)
        _expect(fits, f"an input is no {type}")
    rows = graph.output_slots.rows
    if rows is not None:
        first = starts_of(graph.output_slots.of_node)
        for number, column in zip(input_ops, recording.inputs, strict=True):
            if graph.ops[number].outputs[0].ragged:
                wanted = rows[first[graph.op_of_node == number]].tolist()
                _expect([len(value) for value in column] == wanted, "a ragged input has another number of rows")
