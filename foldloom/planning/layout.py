"""The order of nodes within a plan, and where every value lives: from a schedule to steps, reads and writes.

A step writes its outputs as contiguous runs, so the order of its members decides what its readers find in order. Members
are sorted by the size of their example, largest first, then by recording order: of several sequences the ones that go
on are always a prefix of the step before, and a step reads them as a slice. Trees have no such order; they gather.

Both functions run in C (`_planning.c`). Where that was not compiled, `layout_with_numpy` does the same.

Tried and dropped: rows in the order of their *readers*, so that reading never copies. The copy moves to the write, where
``index_copy_`` is much slower than ``index_select`` for the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from foldloom.errors import PlanError
from foldloom.graph import EARLIER, Graph, Ints, Op, Type
from foldloom.planning.layout_with_numpy import ACCESSES, Layout, Order, arrange_with_numpy, lay_out_with_numpy
from foldloom.planning.native import as_ints, planning
from foldloom.planning.plans import Read, Step, Write

if planning is not None:
    planning.bind(Step, Read, Write, ACCESSES, PlanError)


def arrange(graph: Graph, step_of_node: Ints) -> Order:
    step_of_node = np.ascontiguousarray(step_of_node, np.int64)
    if step_of_node.max(initial=-1) >= len(step_of_node):
        # Steps may have any numbers.
        used, step_of_node = np.unique(step_of_node, return_inverse=True)
        step_of_node = step_of_node - np.count_nonzero(used < 0)
    if planning is None:
        return arrange_with_numpy(graph, step_of_node)
    columns, input_runs, input_nodes = planning.arrange(
        graph.ops,
        graph.op_of_node,
        graph.operands,
        graph.lengths,
        graph.nodes_of_example,
        step_of_node,
        _count_earlier(graph.ops),
    )
    nodes, op_of_run, size_of_run, operands, rows_of_block, lengths, input_order = map(as_ints, columns)
    return Order(nodes, op_of_run, size_of_run, operands, rows_of_block, lengths, input_order, input_runs, input_nodes)


def lay_out(
    graph: Graph,
    order: Order,
    arenas: Iterable[tuple[Type, Op | None]],
    arenas_of_op: Sequence[Sequence[int]],
    kept: Sequence[int],
    earlier_arena: Ints,
    earlier_row: Ints,
) -> Layout:
    """Within an arena, rows are in the order run, output, member: every output of a step is a contiguous run of rows.

    ``kept`` are the rows that arenas have already; the first values of the graph are among them, in the arenas and rows that are given.
    """
    arena_of_input = _arenas_of_ragged(graph, arenas)
    if planning is None:
        return lay_out_with_numpy(graph, order, arena_of_input, arenas_of_op, kept, earlier_arena, earlier_row)
    columns, inputs, steps, outputs = planning.lay_out(
        graph.ops,
        graph.op_of_node,
        graph.lengths,
        graph.outputs,
        order.nodes,
        order.op_of_run,
        order.size_of_run,
        order.operands,
        order.rows_of_block,
        np.array([arena for of_op in arenas_of_op for arena in of_op], np.int64),
        arena_of_input,
        np.array(kept, np.int64),
        earlier_arena,
        earlier_row,
        _count_earlier(graph.ops),
        order.input_runs,
    )
    arena_of_value, row_of_value, filled, indices, block_of_output, row_of_output = map(as_ints, columns)
    return Layout(
        arena_of_value, row_of_value, filled.tolist(), indices, block_of_output, row_of_output,
        tuple(inputs), tuple(steps), tuple(outputs),
    )  # fmt: skip


_NONE = np.empty(0, np.int64)


def _count_earlier(ops: tuple[Op, ...]) -> int:
    """Ops of values from before, which come first."""
    return sum([op.key == EARLIER for op in ops])


def _arenas_of_ragged(graph: Graph, arenas: Iterable[tuple[Type, Op | None]]) -> Ints:
    """For each type that an op takes an arena of its rows, which a block without any cannot tell. Nothing if no value is ragged."""
    if not len(graph.lengths):
        return _NONE
    arena_of_type = {type: number for number, (type, _) in enumerate(arenas)}
    return np.array([arena_of_type.get(type.row, 0) for op in graph.ops for type in op.inputs], np.int64)
