"""The graph under construction, as columns: what a recorder appends to for every node.

`_fast_path.c` works on the fields of a `GraphBuilder` directly, and on no other part of a recorder.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from foldloom.execution.observer import observing
from foldloom.graph import Graph, Ints, Op, Type, input_op
from foldloom.graph.recording import Column, Recording
from foldloom.tracing.building.changes import ANY_EXAMPLE, Change, Changes
from foldloom.tracing.building.columns import Examples, InputColumn, Mark, NewNodes, Nodes, kept
from foldloom.tracing.building.histories import Histories
from foldloom.tracing.fast_path import numbers
from foldloom.tracing.functions.histories import ALWAYS
from foldloom.tracing.scope import user_line
from foldloom.tracing.weight_names import named_by_path

_NONE = np.empty(0, np.int64)


class GraphBuilder:
    """Nodes, operands, inputs and outputs, in recording order; and the table of calls whose signature is known.

    A flush takes the nodes away with `take`. Values are numbered over all flushes.
    """

    __slots__ = (
        "__weakref__",
        "_columns",
        "_first_value",
        "_known",
        "_segments",
        "_taken",
        "autocast",
        "calls",
        "cells",
        "changes",
        "column_of_number",
        "copies",
        "depth_of_node",
        "example",
        "grad",
        "histories",
        "inference",
        "is_captured",
        "is_endless",
        "joins_freely",
        "lengths",
        "module_states",
        "number_of_value",
        "numbers_vary",
        "op_of_node",
        "operands",
        "ops",
        "outputs",
        "results",
        "shared_tensors",
        "value_count",
        "view_of_op",
    )

    def __init__(self, cells: dict[int, Any], module_states: dict[torch.nn.Module, Any]) -> None:
        self.example = 0
        """The example that is being recorded."""
        self._segments: list[tuple[int, int]] = [(0, 0)]
        """Examples in the order in which they were recorded, each with its first node."""
        self.ops: list[Op] = []
        self.histories = Histories()
        self._known = (0, 0, 0)
        """Up to which node, operand and length histories are known."""
        self.op_of_node: list[int] = self._new_nodes()
        self.operands: list[int] = []
        self.lengths: list[int] = []
        self.depth_of_node: list[int] = []
        self.value_count = 0
        self.outputs: list[int] = []
        """Values that examples return."""
        self.results: list[Any] = []
        """What each example returns, without those values."""
        self._columns: dict[tuple[Type, bool, bool], InputColumn] = {}
        self.column_of_number: dict[type, InputColumn] = {}
        """The input column of each kind of Python number."""
        self.number_of_value: dict[int, Any] = {}
        """Python numbers that were made tensors (`torch.tensor(3)`), by their values."""
        self.calls: dict[Any, Any] = {}
        """Calls whose signature is known, in the current mode."""
        self.grad: bool | None = False
        """The grad mode that `calls` is for."""
        self.autocast = False
        """Whether `calls` is for a mode with autocast or another default dtype, or may be: C leaves such calls to Python."""
        self.joins_freely = True
        """Whether rows can be put together and taken apart without a node. Not where gradients are disabled for a part of the batch, because
        the rows keep their histories; nor in what is captured."""
        self.is_captured = False
        """Whether what is recorded is captured: see `automatic.attempt`."""
        self.inference: list[tuple[int, int | None]] = []
        """The values that are computed in inference mode: the first, and the first that is not any more."""
        self.changes = Changes()
        self.view_of_op: dict[int, int] = {}
        """For each op that returns views, the operand that they are views of."""
        self.copies: set[int] = set()
        """Values that are copies, though their op usually returns a view."""
        self._taken: list[Nodes] = []
        """Those of earlier flushes."""
        self._first_value = 0
        """The first value since then."""
        self.shared_tensors: dict[int, torch.Tensor] = {}
        """Tensors that several examples use, which are weights to all calls, by identity."""
        self.numbers_vary = True
        """Whether `calls` may be asked for calls with any number, by its kind: see `recording.numbers`."""
        self.cells = cells
        """Cells of modules that the user named as cells, by the identity of the module."""
        self.is_endless = False
        """Whether examples come and go: then nodes are not counted by example."""
        self.module_states = module_states
        """The state in which each of torch's modules was called: see `mutation.guards`."""

    def _new_nodes(self) -> list[int]:
        return [] if observing.observer is None else observing.observer.nodes_of(self)

    def where(self) -> str:
        """For messages: the example that is being recorded, and the user's line."""
        return f"in example {self.example}, at {user_line()}"

    def set_calls(self, calls: dict[Any, Any], grad: bool, autocast: bool, joins_freely: bool) -> None:
        """Use the table of calls of another mode."""
        self.calls, self.grad, self.autocast = calls, grad, autocast
        self.joins_freely = joins_freely and not self.is_captured

    # ---- Adding nodes.

    def add_op(self, op: Op, rules: tuple[int, ...]) -> int:
        """One more op; ``rules`` tell which of its outputs require grad."""
        self.ops.append(op)
        self.histories.add_op(rules)
        return len(self.ops) - 1

    def add_node(self, op_number: int, operands: list[int], depth: int, values: int) -> int:
        """One more node with so many values; the number of the first of them."""
        self.op_of_node.append(op_number)
        self.operands += operands
        self.depth_of_node.append(depth)
        first = self.value_count
        self.value_count = first + values
        return first

    def add_ragged_node(self, op_number: int, operands: list[int], depth: int, values: int, lengths: list[int]) -> int:
        """The same for ragged operands or values, with the length of each."""
        self.lengths += lengths
        return self.add_node(op_number, operands, depth, values)

    def input_column(self, type: Type, *, is_tensor: bool, tracked: bool) -> InputColumn:
        key = (type, is_tensor, tracked)
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = InputColumn(
                self.add_op(input_op(type, is_tensor, tracked), (ALWAYS if tracked else 0,)), type
            )
        return column

    def number_column(self, kind: type, type: Type) -> InputColumn:
        """The input column of Python numbers of one kind."""
        column = self.column_of_number.get(kind)
        if column is None:
            column = self.column_of_number[kind] = self.input_column(type, is_tensor=False, tracked=False)
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

    # ---- Going back.

    def mark(self) -> Mark:
        return Mark(len(self.op_of_node), len(self.operands), len(self.lengths), self.value_count)

    def rewind(self, mark: Mark) -> None:
        """Forget the nodes that were recorded since, by whose values nobody refers to them."""
        column_of_op = {column.op_number: column for column in self._columns.values()}
        for op in self.op_of_node[mark.nodes :]:
            column = column_of_op.get(op)
            if column is not None:
                column.values.pop()
                del column.versions[len(column.values) :]
        del self.op_of_node[mark.nodes :], self.depth_of_node[mark.nodes :]
        del self.operands[mark.operands :], self.lengths[mark.lengths :]
        for value in range(mark.values, self.value_count):
            self.number_of_value.pop(value, None)
        self.copies = {value for value in self.copies if value < mark.values}
        self.inference = [
            (min(start, mark.values), None if end is None else min(end, mark.values)) for start, end in self.inference
        ]
        self.value_count = mark.values
        self.histories.rewind(mark.values)
        self._known = tuple(map(min, zip(self._known, mark[:3], strict=True)))  # type: ignore[assignment]

    # ---- Examples.

    def begin(self, example: int) -> None:
        """The nodes that are recorded next belong to this example."""
        self.example = example
        self._segments.append((example, len(self.op_of_node)))

    def add_result(self, outputs: Sequence[int], result: Any) -> None:
        """The result of the next example: the values in it, and the nesting that they are in."""
        self.outputs += outputs
        self.results.append(result)

    def _examples(self) -> Examples:
        examples = Examples.of(self._segments, len(self.op_of_node), len(self.results))
        return Examples(examples.of_node, 1, False) if self.is_endless else examples

    # ---- Histories.

    def requires_grad(self, values: Sequence[int]) -> list[bool]:
        """Whether these values require grad."""
        if self.histories.known_values < self.value_count:
            self._find_histories(numbers(list(self.op_of_node)), numbers(self.operands), numbers(self.lengths))
        return self.histories.of(values)

    def _find_histories(self, op_of_node: Ints, operands: Ints, lengths: Ints) -> None:
        node, operand, length = self._known
        self.histories.add_nodes(self.ops, op_of_node[node:], operands[operand:], lengths[length:], self.value_count)
        self._known = len(op_of_node), len(operands), len(lengths)

    # ---- Inference mode.

    def note_inference(self, is_on: bool) -> None:
        """What is recorded next is, or is no longer, computed in inference mode."""
        if self.inference and self.inference[-1][1] is None:
            self.inference[-1] = (self.inference[-1][0], self.value_count)
        if is_on:
            self.inference.append((self.value_count, None))

    def is_of_inference(self, value: int) -> bool:
        """Whether a value is computed in inference mode, within a batch that is not."""
        return any(start <= value and (end is None or value < end) for start, end in self.inference)

    # ---- Changes in place.

    def note_change(self, values: tuple[int, ...], is_ragged: bool, made: int) -> None:
        """What these values stand for is changed in place."""
        self.changes.note(Change(values, is_ragged, self.value_count, self.example, made))

    def note_change_of_given(self, values: tuple[int, ...], is_ragged: bool) -> None:
        """A tensor of the user's that was given as these values is changed in place."""
        self.changes.of_values.append(Change(values, is_ragged, self.value_count, ANY_EXAMPLE, -1))

    def all_nodes(self) -> list[Nodes]:
        """Everything that has been recorded, flush by flush."""
        nodes = numbers(list(self.op_of_node))
        operands, lengths = numbers(self.operands), numbers(self.lengths)
        return [*self._taken, Nodes(nodes, operands, lengths, self._examples().of_node, self._first_value)]

    def is_read(self, values: Sequence[int]) -> bool:
        """Whether a node has read any of these values."""
        operands = [*[nodes.operands for nodes in self._taken], numbers(self.operands)]
        return any(np.isin(values, column).any() for column in operands)

    # ---- Forgetting.

    def keep(self, moved: Mapping[int, int]) -> None:
        """Of all values keep these, under other numbers. All nodes have been taken and computed, and there are no gradients."""
        was_of_inference = [number for value, number in moved.items() if self.is_of_inference(value)]
        goes_on = bool(self.inference) and self.inference[-1][1] is None
        self.value_count = self._first_value = len(moved)
        self.inference = [(number, number + 1) for number in was_of_inference]
        self.inference += [(self.value_count, None)] if goes_on else []
        self.number_of_value = kept(self.number_of_value, moved)
        self.changes.keep(moved)
        self.copies = {moved[value] for value in self.copies if value in moved}
        self._taken.clear()
        self.histories.keep(self.value_count)

    # ---- Taking nodes away.

    def take(self) -> NewNodes:
        """All nodes since the last `take`. Values and ops go on counting, everything else begins anew."""
        op_of_node, operands, lengths = numbers(self.op_of_node), numbers(self.operands), numbers(self.lengths)
        if self.histories.known_values < self.value_count:
            self._find_histories(op_of_node, operands, lengths)
        self._known = (0, 0, 0)
        taken = NewNodes(
            recorded=self.op_of_node,
            op_of_node=op_of_node,
            operands=operands,
            lengths=lengths,
            depth_of_node=numbers(self.depth_of_node),
            inputs=self._close_inputs(),
            examples=self._examples(),
        )
        self._taken.append(
            Nodes(taken.op_of_node, taken.operands, taken.lengths, taken.examples.of_node, self._first_value)
        )
        self._first_value = self.value_count
        self._segments = [(self.example, 0)]
        self.op_of_node = self._new_nodes()
        self.operands, self.lengths, self.depth_of_node = [], [], []
        self._columns, self.column_of_number = {}, {}
        return taken

    def close(
        self,
        cells: Mapping[str, str] | None = None,
        weights: Mapping[str, str] | None = None,
        training: tuple[tuple[str, bool], ...] = (),
    ) -> Recording:
        """All nodes as a recording, with cells and weights renamed; ``training`` has the modes that it depends on."""
        cells, weights = cells or {}, weights or {}
        ops, op_of_node = self._ops_in_use()
        names = tuple([(cells.get(op.key, op.key), named_by_path(weights or {}, op.shared)) for op in ops])
        graph = Graph(
            ops=_table(tuple(ops), names, training),
            op_of_node=op_of_node,
            operands=numbers(self.operands),
            depth_of_node=numbers(self.depth_of_node),
            nodes_of_example=self._examples().counts(),
            outputs=numbers(self.outputs),
            value_count=self.value_count,
            lengths=numbers(self.lengths) if self.lengths else _NONE,
        )
        recording = Recording(graph, self._close_inputs(), tuple(self.results))
        if observing.observer is not None:
            observing.observer.recorded(recording, self.op_of_node)
        return recording

    def _ops_in_use(self) -> tuple[list[Op], Ints]:
        """The ops without inputs of which nothing is left after going back, and the op of each node among them."""
        op_of_node = numbers(self.op_of_node)
        empty = {column.op_number for column in self._columns.values() if not column.values}
        if not empty:
            return self.ops, op_of_node
        is_used = np.array([number not in empty for number in range(len(self.ops))], np.bool_)
        return list(itertools.compress(self.ops, is_used)), (np.cumsum(is_used) - 1)[op_of_node]

    def _close_inputs(self) -> tuple[Column, ...]:
        columns = sorted(self._columns.values(), key=lambda column: column.op_number)
        return tuple([column.close() for column in columns if column.values])


@functools.lru_cache(maxsize=1024)
def _table(
    ops: tuple[Op, ...], names: tuple[tuple[str, tuple[Any, ...]], ...], training: tuple[tuple[str, bool], ...]
) -> tuple[Op, ...]:
    """Ops under new names. Equal tables are one object, which makes merging recordings a matter of offsets."""
    return tuple(
        [
            op
            if op.is_input or (op.key, op.shared, op.training) == (key, shared, training)
            else replace(op, key=key, shared=shared, training=training)
            for op, (key, shared) in zip(ops, names, strict=True)
        ]
    )
