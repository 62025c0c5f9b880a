"""A graph under construction, as columns."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from foldloom.errors import ArgumentError
from foldloom.execution.observer import observing
from foldloom.graph import Graph, Ints, Op, Type, input_op
from foldloom.graph.recording import Column, Recording
from foldloom.tracing.fast_path import numbers
from foldloom.tracing.weights import named_by_path

_NONE = np.empty(0, np.int64)


class InputColumn:
    """The values that were given for one input op."""

    __slots__ = ("op_number", "type", "values", "versions")

    def __init__(self, op_number: int, type: Type) -> None:
        self.op_number = op_number
        self.type = type
        self.values: list[Any] = []
        self.versions: list[int] = []

    def close(self) -> Column:
        if not isinstance(self.values[0], torch.Tensor):
            return np.array(self.values, self.type.dtype)
        for tensor, version in zip(self.values, self.versions, strict=True):
            if not tensor.is_inference() and tensor._version != version:
                raise ArgumentError(
                    f"a tensor ({self.type}) was changed in place after it had been given to a cell or function, which has not "
                    "run yet. Give it a copy (`x.clone()`), or make a new tensor instead of changing it"
                )
        return tuple(self.values)


class Columns:
    """Nodes, operands, inputs and outputs, in recording order.

    A batch that runs in parts takes its nodes away part by part; values are numbered over all of them.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "depth_of_node",
        "lengths",
        "op_of_node",
        "operands",
        "value_count",
    )
    """What `_fast_path.c` reads and writes, here and in the classes that build on this one."""

    def __init__(self) -> None:
        self.example = 0
        self.ops: list[Op] = []
        self.inputs: dict[tuple[Type, bool, bool], InputColumn] = {}
        self.op_of_node: list[int] = [] if observing.observer is None else observing.observer.nodes_of(self)
        self.operands: list[int] = []
        self.lengths: list[int] = []
        self.depth_of_node: list[int] = []
        self.outputs: list[int] = []
        self.value_count = 0

    def add_op(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def input_column(self, type: Type, *, is_tensor: bool, tracked: bool) -> InputColumn:
        key = (type, is_tensor, tracked)
        column = self.inputs.get(key)
        if column is None:
            column = self.inputs[key] = InputColumn(self.add_op(input_op(type, is_tensor, tracked)), type)
        return column

    def add_input(self, column: InputColumn, value: Any) -> int:
        column.values.append(value)
        self.op_of_node.append(column.op_number)
        self.depth_of_node.append(0)
        number = self.value_count
        self.value_count = number + 1
        return number

    def add_ragged_input(self, column: InputColumn, value: Any) -> range:
        rows = len(value)
        number = self.add_input(column, value)
        self.lengths.append(rows)
        self.value_count = number + rows
        return range(number, number + rows)

    def as_recording(
        self,
        nodes_of_example: Ints,
        results: Sequence[Any],
        cells: dict[str, str] | None = None,
        weights: dict[str, str] | None = None,
    ) -> Recording:
        """All that was recorded, cells and weights under other names if there are any for them."""
        cells, weights = cells or {}, weights or {}
        names = tuple([(cells.get(op.key, op.key), _renamed(op.shared, weights)) for op in self.ops])
        graph = Graph(
            ops=_table(tuple(self.ops), names),
            op_of_node=numbers(self.op_of_node),
            operands=numbers(self.operands),
            depth_of_node=numbers(self.depth_of_node),
            nodes_of_example=nodes_of_example,
            outputs=numbers(self.outputs),
            value_count=self.value_count,
            lengths=numbers(self.lengths) if self.lengths else _NONE,
        )
        recording = Recording(graph, self._close_inputs(), tuple(results))
        if observing.observer is not None:
            observing.observer.recorded(recording, self.op_of_node)
        return recording

    def _close_inputs(self) -> tuple[Column, ...]:
        columns = sorted(self.inputs.values(), key=lambda column: column.op_number)
        return tuple([column.close() for column in columns])

    def take(self) -> Recorded:
        """All that was recorded since this was called last: values go on counting, everything else begins anew."""
        taken = Recorded(
            op_of_node=self.op_of_node,
            operands=numbers(self.operands),
            lengths=numbers(self.lengths),
            depth_of_node=numbers(self.depth_of_node),
            outputs=numbers(self.outputs),
            inputs=self._close_inputs(),
        )
        self.op_of_node = [] if observing.observer is None else observing.observer.nodes_of(self)
        self.operands, self.lengths, self.depth_of_node = [], [], []
        self.outputs, self.inputs = [], {}
        return taken


class Recorded(NamedTuple):
    """What `Columns.take` gives."""

    op_of_node: list[int]
    operands: Ints
    lengths: Ints
    depth_of_node: Ints
    outputs: Ints
    inputs: tuple[Column, ...]


def _renamed(shared: tuple[Hashable, ...], weights: dict[str, str]) -> tuple[Hashable, ...]:
    return tuple([named_by_path(weights, name) for name in shared]) if weights else shared


@functools.lru_cache(maxsize=1024)
def _table(ops: tuple[Op, ...], names: tuple[tuple[str, tuple[Any, ...]], ...]) -> tuple[Op, ...]:
    """Ops under new names. Equal tables are one object, which makes merging recordings a matter of offsets."""
    return tuple(
        [
            op if (op.key, op.shared) == (key, shared) else replace(op, key=key, shared=shared)
            for op, (key, shared) in zip(ops, names, strict=True)
        ]
    )
