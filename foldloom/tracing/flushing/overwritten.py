"""Which nodes saved a value for backward that was changed in place afterwards.

One by one, backward raises when it comes to such an operation. Values of the graph never change, so in a batch nothing would be wrong with
it; but a program that raises one by one raises batched, too.

Changes are noted while recording (`GraphBuilder.changes`), and looked at when everything has been recorded. A change concerns the value
and its views; so views are followed from node to node. Where one number stands for several tensors (a constant that was made twice, a
value that is also a row of a stack) and it is not known which of them a node has saved, it is taken to be another than the one that changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from foldloom.graph import Graph, Ints, Op, starts_of
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.changes import ANY_EXAMPLE, Change
from foldloom.tracing.building.columns import Nodes
from foldloom.tracing.cells.bodies import is_automatic, single_ops
from foldloom.tracing.functions.saved import SavedBy

_NONE = np.empty(0, np.int64)
_STACK = "torch:_VariableFunctionsClass.stack"


class Columns(NamedTuple):
    """Nodes with where their operands and values begin."""

    op_of_node: Ints
    operands: Ints
    first_operand: Ints
    arity: Ints
    first_value: Ints
    width: Ints
    rows: Ints | None
    first_slot: Ints
    example_of_node: Ints

    @staticmethod
    def of(ops: tuple[Op, ...], nodes: Nodes) -> Columns:
        op_of_node = nodes.op_of_node
        graph = Graph(ops, op_of_node, nodes.operands, _NONE, _NONE, _NONE, 0, nodes.lengths)
        slots = graph.operand_slots
        first_value = nodes.first_value + starts_of(graph.width_of_node)
        return Columns(
            op_of_node, nodes.operands, starts_of(graph.arity_of_node), graph.arity_of_node, first_value,
            graph.width_of_node, slots.rows, starts_of(slots.of_node), nodes.example_of_node,
        )  # fmt: skip

    def node_of(self, value: int) -> tuple[Columns, int] | None:
        """These columns and the node that made a value, if it is one of them."""
        node = int(np.searchsorted(self.first_value, value, side="right")) - 1
        return (self, node) if node >= 0 and value < self.first_value[node] + self.width[node] else None

    def operands_of(self, node: int) -> list[int]:
        first = int(self.first_operand[node])
        return self.operands[first : first + int(self.arity[node])].tolist()  # type: ignore[no-any-return]

    def slots_of(self, node: int, count: int) -> Iterator[list[int]]:
        """The values of each operand of a node."""
        operands = self.operands_of(node)
        first = int(self.first_slot[node])
        sizes = [1] * count if self.rows is None else self.rows[first : first + count].tolist()
        start = 0
        for size in sizes:
            yield operands[start : start + size]
            start += size


class Overwritten:
    """Finds the nodes of one batch whose backward raises."""

    def __init__(
        self,
        graph: GraphBuilder,
        saved_by: Callable[[Op], Sequence[SavedBy]],
        saves_weight: Callable[[Op, frozenset[Any], tuple[bool, ...]], bool],
        is_one_tensor: Callable[[int, int], bool],
    ) -> None:
        """``saved_by`` tells what an op saves for each of its outputs, or for all, ``saves_weight`` whether it saves one of its weights
        that has one of these names, where these operands require grad, ``is_one_tensor`` whether a given value was made once in an example."""
        self._graph = graph
        self._saved_by = saved_by
        self._saves_weight = saves_weight
        self._ops = tuple(graph.ops)
        self._changes: defaultdict[int, list[Change]] = defaultdict(list)
        """The changes of each value, dense or a row."""
        for change in graph.changes.of_values:
            if len(change.values) > 1 or change.is_ragged or is_one_tensor(change.values[0], change.example):
                for value in change.values:
                    self._changes[value].append(change)

    def values(self) -> list[int]:
        """The values of the nodes that saved what was changed later."""
        if not self._changes and not self._graph.changes.of_derived:
            return []
        columns = [Columns.of(self._ops, nodes) for nodes in self._graph.all_nodes()]
        found = [value for part in columns for value in self._users_of_derived(part)]
        if not self._changes:
            return found
        for part in columns:
            self._follow_views(part)
        for part in columns:
            for node in self._candidates(part):
                first, width = int(part.first_value[node]), int(part.width[node])
                saved_by = self._saved_by(self._ops[int(part.op_of_node[node])])
                if len(saved_by) > 1 and len(saved_by) == width:
                    found += [first + n for n, each in enumerate(saved_by) if self._is_spoiled(part, node, each)]
                elif any(self._is_spoiled(part, node, each) for each in saved_by):
                    found += range(first, first + width)
        return found

    def _users_of_derived(self, part: Columns) -> Iterator[int]:
        """The values of nodes that use what an example computed from weights alone and changed later."""
        for change, time, example, made in self._graph.changes.of_derived:
            for number, op in enumerate(self._ops):
                spoils = any(not change.spoiled.isdisjoint(each.shared) for each in single_ops((op,)))
                if not spoils and not any(not change.changed.isdisjoint(each.shared) for each in single_ops((op,))):
                    continue
                is_used = (part.op_of_node == number) & (part.example_of_node == example) & (part.first_value < time)
                for node in np.flatnonzero(is_used).tolist():
                    values = range(int(part.first_value[node]), int(part.first_value[node] + part.width[node]))
                    if spoils or (made not in values and self._saves_changed(part, node, op, change.changed)):
                        yield from values

    def _saves_changed(self, part: Columns, node: int, op: Op, changed: frozenset[Any]) -> bool:
        """Whether a node saves a weight of these names. What an automatic cell has inside is taken to require grad."""
        if is_automatic(op):
            each = [(inner, [type.differentiable for type in inner.inputs]) for inner in single_ops((op,))]
        else:
            each = [(op, [any(self._graph.requires_grad(read)) for read in part.slots_of(node, len(op.inputs))])]
        return any(self._saves_weight(inner, changed, tuple(tracked)) for inner, tracked in each)

    def _follow_views(self, part: Columns) -> None:
        """A change of a value is a change of its views."""
        slot_of_op = self._graph.view_of_op
        followed = [number in slot_of_op or op.key == _STACK for number, op in enumerate(self._ops)]
        for node in np.flatnonzero(np.array(followed, np.bool_)[part.op_of_node]).tolist():
            op = int(part.op_of_node[node])
            values = range(int(part.first_value[node]), int(part.first_value[node] + part.width[node]))
            if op in slot_of_op:
                read = list(part.slots_of(node, len(self._ops[op].inputs)))[slot_of_op[op]]
                changes = self._changes_of(part, node, read)
                if values[0] in self._graph.copies:
                    continue
            else:  # a ragged value made dense
                read = part.operands_of(node)
                changes = [c for c in self._changes.get(read[0], ()) if c.is_ragged and list(c.values) == read]
            for change in changes:
                for value in values:
                    self._changes[value].append(change._replace(values=tuple(values), is_ragged=len(values) > 1))

    def _changes_of(self, part: Columns, node: int, read: Sequence[int]) -> list[Change]:
        """The changes of what a node reads as one operand, after the node."""
        if not read or read[0] not in self._changes:
            return []
        first, example = int(part.first_value[node]), int(part.example_of_node[node])
        return [
            change
            for change in self._changes[read[0]]
            if first < change.time and change.example in (example, ANY_EXAMPLE) and _is_part(read, change)
        ]

    def _candidates(self, part: Columns) -> list[int]:
        """Nodes that read or made what was changed."""
        changed = np.fromiter(self._changes, np.int64)
        reads = np.isin(part.operands, changed)
        owner = np.repeat(np.arange(len(part.op_of_node)), part.arity)
        readers = owner[reads]
        made = changed[(changed >= part.first_value[0]) if len(part.first_value) else slice(0)]
        makers = np.searchsorted(part.first_value, made, side="right") - 1
        within = made < part.first_value[makers] + part.width[makers] if len(made) else np.empty(0, np.bool_)
        return np.unique(np.concatenate([readers, makers[within]])).tolist()  # type: ignore[no-any-return]

    def _is_spoiled(self, part: Columns, node: int, saved_by: SavedBy) -> bool:
        op = self._ops[int(part.op_of_node[node])]
        if saved_by.nothing:
            return False
        slots = list(part.slots_of(node, len(op.inputs)))
        saved = saved_by.by([any(self._graph.requires_grad(values)) for values in slots])
        first = int(part.first_value[node])
        for slot in saved.operands:
            for change in self._changes_of(part, node, slots[slot]):
                # What works in place keeps a copy of what it changes.
                if slot or not first <= change.made < first + int(part.width[node]):
                    return True
        if any(type.ragged for type in op.outputs):
            return bool(saved.results) and first in self._changes
        # A stack of results is a copy of them: to change it is not to change them.
        return any(not change.is_ragged for result in saved.results for change in self._changes.get(first + result, ()))


def _is_part(read: Sequence[int], change: Change) -> bool:
    """Whether these values are the changed tensor, or consecutive rows of it."""
    if not change.is_ragged:
        return len(read) == 1
    rows = change.values
    if len(read) == 1 and rows != tuple(range(rows[0], rows[0] + len(rows))):
        return False  # a row that may stand for itself, beside the stack
    start = rows.index(read[0])
    return rows[start : start + len(read)] == tuple(read)
