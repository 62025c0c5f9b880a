"""Which arenas a batch has, and its plan: from a graph and a schedule."""

from __future__ import annotations

from collections import Counter

import numpy as np

from foldloom.graph import CONSTANT, Graph, Ints, Op, Type, starts_of
from foldloom.planning.layout import arrange, lay_out
from foldloom.planning.layout_with_numpy import Order
from foldloom.planning.plans import Arena, Plan

_NONE = np.empty(0, np.int64)


class Placed:
    """What the plans of one batch have placed so far, when it takes several: the next one goes on from here."""

    def __init__(self) -> None:
        self.arenas: dict[tuple[Type, Op | None], int] = {}
        self.filled: list[int] = []
        self._places = np.empty((2, 1024), np.int64)
        self._count = 0

    @property
    def size(self) -> int:
        """Of the places, in bytes."""
        return self.arena_of_value.nbytes + self.row_of_value.nbytes

    @property
    def arena_of_value(self) -> Ints:
        return self._places[0, : self._count]

    @property
    def row_of_value(self) -> Ints:
        return self._places[1, : self._count]

    def keep(self, values: Ints) -> list[Ints]:
        """Only these values are left, with new numbers from 0 on; for each arena the rows that they were in, in their new order."""
        arenas, rows = self.arena_of_value[values], self.row_of_value[values]
        rows_of_arena = [rows[arenas == arena] for arena in range(len(self.arenas))]
        self._places = np.empty((2, 2 * len(values) + 1024), np.int64)
        self._count = len(values)
        self.arena_of_value[:] = arenas
        for arena, kept in enumerate(rows_of_arena):
            self.row_of_value[arenas == arena] = np.arange(len(kept))
        self.filled = [len(kept) for kept in rows_of_arena]
        return rows_of_arena

    def add(self, arena_of_value: Ints, row_of_value: Ints, filled: list[int]) -> None:
        before, self._count = self._count, self._count + len(arena_of_value)
        if self._count > self._places.shape[1]:
            larger = np.empty((2, 2 * self._count), np.int64)
            larger[:, :before] = self._places[:, :before]
            self._places = larger
        self._places[0, before : self._count] = arena_of_value
        self._places[1, before : self._count] = row_of_value
        self.filled = filled


def place(
    graph: Graph,
    step_of_node: Ints,
    placed: Placed | None = None,
    earlier: Ints | None = None,
    example_of_node: Ints | None = None,
) -> Plan:
    """The plan of a graph, whose examples are those of its nodes in order, unless ``example_of_node`` says otherwise.

    A batch that runs in several parts has one `Placed` for all of them; ``earlier`` are the numbers, over all parts, of
    the values that come from parts before this one. In the graph these come first.
    """
    order = arrange(graph, step_of_node)
    mixed = _mixed_constants(graph, order) if placed is None else None
    arenas = {} if placed is None else placed.arenas
    arenas_of_op = _arenas_of_ops(graph.ops, arenas, mixed)
    if placed is None or earlier is None:
        kept = [0] * len(arenas)
        layout = lay_out(graph, order, arenas, arenas_of_op, kept, _NONE, _NONE)
    else:
        kept = placed.filled + [0] * (len(arenas) - len(placed.filled))
        arena, row = placed.arena_of_value[earlier], placed.row_of_value[earlier]
        layout = lay_out(graph, order, arenas, arenas_of_op, kept, arena, row)
        placed.add(layout.arena_of_value[len(earlier) :], layout.row_of_value[len(earlier) :], layout.filled)
    return Plan(
        ops=graph.ops,
        arenas=tuple(
            [
                Arena(type, rows, constant=owner is not None, kept=old)
                for (type, owner), rows, old in zip(arenas, layout.filled, kept, strict=True)
            ]
        ),
        inputs=layout.inputs,
        input_order=order.input_order,
        steps=layout.steps,
        nodes=order.nodes[order.input_nodes :],
        indices=layout.indices,
        lengths=order.lengths,
        outputs=layout.outputs,
        block_of_output=layout.block_of_output,
        row_of_output=layout.row_of_output,
        nodes_of_example=graph.nodes_of_example,
        example_of_node=example_of_node,
    )


def _arenas_of_ops(
    ops: tuple[Op, ...], arenas: dict[tuple[Type, Op | None], int], mixed_constants: set[int] | None
) -> list[list[int]]:
    """The arena of each output of each op. New arenas are added to those that there are.

    Constants are read where they are, so each column of them is an arena; all else shares one arena for each type.
    (In a batch of several parts a later part may mix them with anything, so there they share too.)
    """
    arenas_of_op: list[list[int]] = []
    for number, op in enumerate(ops):
        alone = op.key == CONSTANT and mixed_constants is not None and number not in mixed_constants
        owner = op if alone else None
        arenas_of_op.append([arenas.setdefault((type.row, owner), len(arenas)) for type in op.outputs])
    return arenas_of_op


def _mixed_constants(graph: Graph, order: Order) -> set[int]:
    """The constant ops with values that stand in one block beside values of other origin: those must share an arena."""
    origins_of_type = Counter([row for op in graph.ops for row in {type.row for type in op.outputs}])
    candidates = [n for n, op in enumerate(graph.ops) if op.key == CONSTANT and origins_of_type[op.outputs[0].row] > 1]
    if not candidates or not len(order.operands):
        return set()
    origin_of_op = np.full(len(graph.ops), -1)
    origin_of_op[candidates] = candidates
    origin = origin_of_op[graph.op_of_node[graph.node_of_value[order.operands]]]
    sizes = order.rows_of_block[order.rows_of_block > 0]
    first = starts_of(sizes)
    mixed = np.minimum.reduceat(origin, first) != np.maximum.reduceat(origin, first)
    return set(origin[mixed.repeat(sizes)].tolist()) - {-1}
