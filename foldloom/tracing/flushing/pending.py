"""Pending nodes: recorded and not computed yet. A flush cuts out the nodes that it needs.

A flush computes the values that are demanded and what they depend on, and nothing else. The rest stays pending, until there may be more
like it: the losses of a parser that goes where its scores lead are all computed at the end, together. But a pending node whose op
runs in a flush anyway, and whose operands are there, is computed along with it.

Values are numbered twice: in the order of recording, and in the order in which they are computed. `Pending` knows both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from foldloom.graph import Graph, Ints, Op
from foldloom.planning.native import as_ints, planning
from foldloom.tracing.building.columns import NewNodes
from foldloom.tracing.fast_path import numbers

MOST_PENDING = 1 << (8 if planning is None else 14)
"""Each flush looks at all pending nodes, in Python or in C. When they are more than this many, it computes all of them."""

_NONE = np.empty(0, np.int64)


class _Left(NamedTuple):
    """Nodes that no flush has needed so far."""

    op_of_node: Ints = _NONE
    operands: Ints = _NONE
    lengths: Ints = _NONE
    first_value: Ints = _NONE
    example_of_node: Ints = _NONE


class Cut(NamedTuple):
    """What one flush computes, as a graph of its own. The values of earlier flushes that it uses come first in it, as inputs;
    ``earlier`` are their numbers in the order of computing.

    ``nodes`` says which of the pending nodes, those left by earlier flushes and then the new ones, the others of the graph are.
    """

    graph: Graph
    earlier: Ints
    nodes: Ints
    example_of_node: Ints | None
    """The example of each node of the graph, where examples did not take turns in order."""
    used_ops: list[int]
    """The ops of the graph, by their numbers in the recording, after those of earlier values."""


class Pending:
    """The nodes that are recorded and not computed."""

    def __init__(self) -> None:
        self._left = _Left()
        self._most_examples = 1
        self._where = np.empty(1024, np.int64)
        """The number of each recorded value in the order of computing; below zero if it is not computed yet."""
        self._first_new = 0
        """The first value that was recorded since the last flush."""
        self._ran = 0
        """The number of values that have been computed. (The last flush may have failed.)"""

    def number_of(self, value: int) -> int:
        """The number of a recorded value in the order of computing; below zero if it is not computed yet."""
        number = self._where.item(value) if value < self._first_new else -1
        return number if number < self._ran else -1

    def numbers_of(self, values: list[int]) -> Ints:
        """The same for several that are computed."""
        return self._where[numbers(values)]

    def keep(self, values: int) -> None:
        """Nothing is pending, and of what has been computed only so many values are left, in this order."""
        assert not len(self._left.op_of_node), "everything has been computed"
        self._where = np.concatenate([np.arange(values), np.empty(1024, np.int64)])
        self._first_new = self._ran = values

    def ran(self, cut: Cut) -> None:
        """The last cut has been computed."""
        self._ran += cut.graph.value_count - len(cut.earlier)

    def cut(
        self,
        ops: list[Op],
        new: NewNodes,
        value_count: int,
        roots: Sequence[int] | None,
        outputs: Sequence[int],
        arena_of_value: Ints,
        earlier_ops: Sequence[Op],
    ) -> Cut:
        """The nodes that the values ``roots`` and ``outputs`` depend on, with all inputs and what is computed along; all nodes, if
        ``roots`` is None.

        ``arena_of_value`` has the arena of each computed value, and ``earlier_ops`` the op of the values of each arena.
        """
        if value_count > len(self._where):
            self._where = np.concatenate([self._where, np.empty(value_count, np.int64)])
        if len(self._left.op_of_node) > MOST_PENDING:
            roots = None
        columns = self._columns(ops, new, value_count, roots, outputs, arena_of_value, len(earlier_ops))
        cut, rest, made = cut_in_python(columns) if planning is None else planning.cut(*columns)
        self._left, self._first_new = _Left(*map(as_ints, rest)), value_count
        op_of_node, operands, cut_outputs, depth, nodes_of_example, lengths, earlier, arenas, used, nodes = map(
            as_ints, cut
        )
        used_ops = used.tolist()
        graph = Graph(
            ops=(*[earlier_ops[arena] for arena in arenas.tolist()], *[ops[op] for op in used_ops]),
            op_of_node=op_of_node,
            operands=operands,
            depth_of_node=depth,
            nodes_of_example=nodes_of_example,
            outputs=cut_outputs,
            value_count=len(earlier) + made,
            lengths=lengths,
        )
        examples = None
        if not columns.in_turn:
            examples = np.concatenate([np.zeros(len(earlier), np.int64), columns.example_of_node[nodes]])
        return Cut(graph, earlier, nodes, examples, used_ops)

    def _columns(
        self,
        ops: list[Op],
        new: NewNodes,
        value_count: int,
        roots: Sequence[int] | None,
        outputs: Sequence[int],
        arena_of_value: Ints,
        arena_count: int,
    ) -> PendingColumns:
        left = self._left
        # An example that has ended may have left nodes.
        self._most_examples = max(self._most_examples, new.examples.total)
        return PendingColumns(
            ops=ops,
            op_of_node=_after(left.op_of_node, new.op_of_node),
            operands=_after(left.operands, new.operands),
            lengths=_after(left.lengths, new.lengths),
            depth_of_new=new.depth_of_node,
            first_value_of_left=left.first_value,
            example_of_node=_after(left.example_of_node, new.examples.of_node),
            roots=None if roots is None else numbers(list(roots)),
            outputs=numbers(list(outputs)),
            where=self._where,
            arena_of_value=arena_of_value,
            first_new_value=self._first_new,
            value_count=value_count,
            arena_count=arena_count,
            example_count=self._most_examples,
            in_turn=new.examples.in_turn,
        )


def _after(left: Ints, new: Ints) -> Ints:
    return np.concatenate([left, new]) if len(left) else new


class PendingColumns(NamedTuple):
    """All pending nodes: those that earlier flushes left, then the new ones. What `_planning.c` takes, in this order.

    ``where`` has the number of each value in the order of computing, -1 if it is not computed; it is updated.
    """

    ops: list[Op]
    op_of_node: Ints
    operands: Ints
    lengths: Ints
    depth_of_new: Ints
    first_value_of_left: Ints
    example_of_node: Ints
    roots: Ints | None
    outputs: Ints
    where: Ints
    arena_of_value: Ints
    first_new_value: int
    value_count: int
    arena_count: int
    example_count: int
    in_turn: bool


# The same in Python, where `_planning.c` was not compiled.


class _Node(NamedTuple):
    op: int
    operands: list[int]
    lengths: list[int]
    values: range
    example: int
    is_input: bool


def cut_in_python(pending: PendingColumns) -> tuple[tuple[Ints, ...], tuple[Ints, ...], int]:
    """Columns of the cut, columns of what is left, and how many values the cut computes."""
    nodes = _nodes(pending)
    maker = {value: number for number, node in enumerate(nodes) for value in node.values}
    needed = _needed(pending, nodes, maker)
    order = sorted(needed, key=lambda number: (nodes[number].example if pending.in_turn else 0, number))
    rest = [node for number, node in enumerate(nodes) if number not in needed]
    made = [value for number in order for value in nodes[number].values]
    cut = _cut_columns(pending, nodes, maker, order, made)
    left = (
        [node.op for node in rest],
        [value for node in rest for value in node.operands],
        [length for node in rest for length in node.lengths],
        [node.values.start for node in rest],
        [node.example for node in rest],
    )
    ran = len(pending.arena_of_value)
    pending.where[[value for node in rest for value in node.values]] = -1
    pending.where[made] = np.arange(ran, ran + len(made))
    return _as_columns(cut), _as_columns(left), len(made)


def _nodes(pending: PendingColumns) -> list[_Node]:
    nodes: list[_Node] = []
    next_operand = next_length = 0
    next_value = pending.first_new_value
    operands, lengths = pending.operands.tolist(), pending.lengths.tolist()
    for number, (op, example) in enumerate(
        zip(pending.op_of_node.tolist(), pending.example_of_node.tolist(), strict=True)
    ):
        first_length, rows = next_length, []
        for types in (pending.ops[op].inputs, pending.ops[op].outputs):
            ragged = sum([type.ragged for type in types])
            rows.append(len(types) - ragged + sum(lengths[next_length : next_length + ragged]))
            next_length += ragged
        position = number - len(pending.first_value_of_left)
        first = next_value if position >= 0 else int(pending.first_value_of_left[number])
        if position >= 0:
            next_value += rows[1]
        nodes.append(
            _Node(
                op,
                operands[next_operand : next_operand + rows[0]],
                lengths[first_length:next_length],
                range(first, first + rows[1]),
                example,
                position >= 0 and not pending.depth_of_new[position],
            )
        )
        next_operand += rows[0]
    return nodes


def _needed(pending: PendingColumns, nodes: list[_Node], maker: dict[int, int]) -> set[int]:
    """All inputs, the demanded values and what they depend on; then other nodes of the same ops, if their operands are there."""
    asked = [*pending.outputs.tolist(), *([] if pending.roots is None else pending.roots.tolist())]
    needed = {maker[value] for value in asked if value in maker}
    for number, node in reversed(list(enumerate(nodes))):
        if pending.roots is None or node.is_input or number in needed:
            needed.add(number)
            needed.update(maker[value] for value in node.operands if value in maker)
    needed_ops = {nodes[number].op for number in needed}
    for number, node in enumerate(nodes):
        if node.op in needed_ops and all(value not in maker or maker[value] in needed for value in node.operands):
            needed.add(number)
    return needed


def _cut_columns(
    pending: PendingColumns, nodes: list[_Node], maker: dict[int, int], order: list[int], made: list[int]
) -> tuple[list[int], ...]:
    where, arena_of_value = pending.where, pending.arena_of_value
    used = [value for number in order for value in nodes[number].operands] + pending.outputs.tolist()
    earlier = sorted({int(where[value]) for value in used if value not in maker})
    number_of_earlier = {value: number for number, value in enumerate(earlier)}
    number_of_made = {value: len(earlier) + number for number, value in enumerate(made)}
    in_cut = [number_of_made[value] if value in maker else number_of_earlier[int(where[value])] for value in used]
    arenas = sorted({int(arena_of_value[value]) for value in earlier})
    used_ops = sorted({nodes[number].op for number in order})
    depth: dict[int, int] = {}
    for number in sorted(order):
        before = [depth[maker[value]] for value in nodes[number].operands if value in maker]
        depth[number] = 0 if nodes[number].is_input else 1 + max(before, default=0)
    counts = [len(earlier)] + [0] * (pending.example_count - 1)
    for number in order:
        counts[nodes[number].example if pending.in_turn else 0] += 1
    split = len(in_cut) - len(pending.outputs)
    return (
        [arenas.index(arena_of_value[value]) for value in earlier]
        + [len(arenas) + used_ops.index(nodes[number].op) for number in order],
        in_cut[:split],
        in_cut[split:],
        [0] * len(earlier) + [depth[number] for number in order],
        counts,
        [length for number in order for length in nodes[number].lengths],
        earlier,
        arenas,
        used_ops,
        order,
    )


def _as_columns(columns: Iterable[list[int]]) -> tuple[Ints, ...]:
    return tuple([np.array(column, np.int64) for column in columns])
