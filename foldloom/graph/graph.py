"""What was asked: the operations of every example, as columns.

A graph is recorded once per example and merged by offset, so nothing here is an object per node. Everything is
numbered in recording order, which is a topological order: a node may only use values made before it.

    node     one application of an op in one example
    value    one output of one node; the outputs of a node are numbered consecutively
    operand  one value that a node reads; the operands of a node stand consecutively, in argument order

An *input* is a node whose op has no operands and no cell: its value was given, not computed.

A *ragged* value (the words of a sentence, the children of a node) has rows: one value number for each, consecutively. An op
with a ragged operand takes any number of rows for it, from anywhere, so that stacking a list, taking a row of a
stack, or joining two of them is a matter of numbers and copies nothing.

This module knows numpy and nothing of torch, as do recording, scheduling and placement below the front ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foldloom.caching import cached_property
from foldloom.graph.ops import Op
from foldloom.graph.types import Type

Ints = npt.NDArray[np.int64]


class Slots(NamedTuple):
    """The operands, or the outputs, of every node: how many there are, and how many rows each has (None: one each)."""

    of_node: Ints
    rows: Ints | None

    @property
    def rows_of_node(self) -> Ints:
        if self.rows is None:
            return self.of_node
        total = np.append(0, self.rows.cumsum())
        ends = self.of_node.cumsum()
        rows: Ints = total[ends] - total[ends - self.of_node]
        return rows


@dataclass(frozen=True, eq=False)
class Graph:
    """The nodes of one or many examples.

    ``depth_of_node`` is 0 for inputs and one more than the deepest operand otherwise; it is a column because the
    recorder knows it for almost nothing while deriving it afterwards would take a pass per level; ``value_count`` is there
    because a merge needs it of hundreds of graphs.
    ``outputs`` are the values that somebody will look at, in the order in which they were returned. ``lengths`` has, for each
    node in turn, the number of rows of each of its ragged operands and then of each of its ragged outputs.
    """

    ops: tuple[Op, ...]
    op_of_node: Ints
    operands: Ints
    depth_of_node: Ints
    nodes_of_example: Ints
    outputs: Ints
    value_count: int
    lengths: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def node_count(self) -> int:
        """Nodes that compute something; inputs do not count."""
        return int(np.count_nonzero(self.depth_of_node))

    @property
    def example_count(self) -> int:
        return len(self.nodes_of_example)

    @cached_property
    def operand_slots(self) -> Slots:
        return self._slots([op.inputs for op in self.ops], [op.outputs for op in self.ops], operands=True)

    @cached_property
    def output_slots(self) -> Slots:
        return self._slots([op.outputs for op in self.ops], [op.inputs for op in self.ops], operands=False)

    def _slots(self, types: list[tuple[Type, ...]], others: list[tuple[Type, ...]], *, operands: bool) -> Slots:
        of_node = np.array([len(op) for op in types], np.int64)[self.op_of_node]
        if not len(self.lengths):
            return Slots(of_node, None)
        ragged = np.array([[sum(type.ragged for type in op) for op in side] for side in (types, others)], np.int64)
        ours, theirs = ragged[:, self.op_of_node]
        first_length = starts_of(ours + theirs) + (0 if operands else theirs)
        rows = np.ones(int(of_node.sum()), np.int64)
        is_ragged = np.concatenate([[type.ragged for type in op] for op in types] or [[]]).astype(bool)
        first_type = starts_of(np.array([len(op) for op in types], np.int64))
        rows[is_ragged[runs_of(first_type[self.op_of_node], of_node)]] = self.lengths[runs_of(first_length, ours)]
        return Slots(of_node, rows)

    @cached_property
    def arity_of_node(self) -> Ints:
        """How many values each node reads."""
        return self.operand_slots.rows_of_node

    @cached_property
    def width_of_node(self) -> Ints:
        """How many values each node makes."""
        return self.output_slots.rows_of_node

    @cached_property
    def node_of_value(self) -> Ints:
        return np.repeat(np.arange(len(self.op_of_node)), self.width_of_node)

    @cached_property
    def example_of_node(self) -> Ints:
        return np.repeat(np.arange(self.example_count), self.nodes_of_example)

    def __getstate__(self) -> dict[str, Any]:
        # Derived columns are cheaper to make again than to send to another process.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        lines = [f"graph of {self.example_count} examples, {self.node_count} nodes"]
        counts = np.bincount(self.op_of_node, minlength=len(self.ops))
        lines += [f"  {count:>8} x {op}" for op, count in zip(self.ops, counts, strict=True)]
        return "\n".join(lines)


def starts_of(counts: Ints) -> Ints:
    """Where each of several consecutive runs begins."""
    ends = counts.cumsum()
    return ends - counts


def runs_of(starts: Ints, counts: Ints) -> Ints:
    """Several runs of consecutive numbers, one after the other."""
    return np.arange(int(counts.sum())) + np.repeat(starts - starts_of(counts), counts)


def concatenate(columns: Sequence[Ints]) -> Ints:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def merge(graphs: Sequence[Graph]) -> Graph:
    """Several graphs as one, by adding offsets: no Python runs per node."""
    if len(graphs) == 1:
        return graphs[0]
    counts = [(len(g.op_of_node), g.value_count, len(g.operands), len(g.outputs)) for g in graphs]
    node_counts, value_counts, operand_counts, output_counts = np.array(counts, np.int64).T
    value_offsets = starts_of(value_counts)
    ops, op_of_node = _merge_ops(graphs, node_counts)
    return Graph(
        ops=ops,
        op_of_node=op_of_node,
        operands=concatenate([graph.operands for graph in graphs]) + value_offsets.repeat(operand_counts),
        depth_of_node=concatenate([graph.depth_of_node for graph in graphs]),
        nodes_of_example=concatenate([graph.nodes_of_example for graph in graphs]),
        outputs=concatenate([graph.outputs for graph in graphs]) + value_offsets.repeat(output_counts),
        value_count=int(value_counts.sum()),
        lengths=concatenate([graph.lengths for graph in graphs if len(graph.lengths)]),
    )


def _merge_ops(graphs: Sequence[Graph], node_counts: Ints) -> tuple[tuple[Op, ...], Ints]:
    """One table of ops, and the op of every node in it.

    Recordings of one model mostly share their table, so each distinct table is looked at once.
    """
    op_of_node = concatenate([graph.op_of_node for graph in graphs])
    first_of_table: dict[int, int] = {}
    number_of_op: dict[Op, int] = {}
    renumbering: list[int] = []
    for table in {id(graph.ops): graph.ops for graph in graphs}.values():
        first_of_table[id(table)] = len(renumbering)
        renumbering += [number_of_op.setdefault(op, len(number_of_op)) for op in table]
    if len(first_of_table) == 1:
        return graphs[0].ops, op_of_node
    first_op = np.array([first_of_table[id(graph.ops)] for graph in graphs], np.int64)
    return tuple(number_of_op), np.array(renumbering, np.int64)[op_of_node + first_op.repeat(node_counts)]
