"""Where every value lives and how every step finds its operands: from a schedule to a Plan.

A step writes its outputs as contiguous runs, so the order of its members decides what its readers find in order. Members
are sorted by the size of their example, largest first, then by recording order: of several sequences the ones that go
on are always a prefix of the step before, and a step reads them as a slice. Trees have no such order; they gather.

Everything is an array operation over all nodes, values or reads at once; Python runs once per block of a step.

Tried and dropped: rows in the order of their *readers*, so that reading never copies. The copy moves to the write, where
``index_copy_`` is much slower than ``index_select`` for the same rows.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from foldloom.graph import CONSTANT, Graph, Ints, Op, Type, concatenate, starts_of
from foldloom.plan import Access, Arena, Plan, Read, Step, Write


class _Runs(NamedTuple):
    """All nodes in the order in which their values are made: the inputs, op by op, then the steps.

    A run is one input op or one step: the nodes that share a write.
    """

    nodes: Ints
    op: Ints
    size: Ints
    input_runs: int


class _Rows(NamedTuple):
    """Arenas, the place of each value in them, and the writes of each run (one for each output), run after run."""

    arenas: tuple[Arena, ...]
    arena_of_value: Ints
    row_of_value: Ints
    writes: list[Write]


def place(graph: Graph, step_of_node: Ints) -> Plan:
    runs = _order_nodes(graph, step_of_node)
    arity_of_run = np.array([len(op.inputs) for op in graph.ops], np.int64)[runs.op]
    operands = graph.operands[_slot_by_slot(graph.first_operand_of_node[runs.nodes], runs.size, arity_of_run)]
    operand_blocks = np.repeat(runs.size, arity_of_run)
    rows = _place_values(graph, runs, _mixed_constants(graph, operands, operand_blocks))

    outputs_by_arena = np.argsort(rows.arena_of_value[graph.outputs], kind="stable")
    output_values = graph.outputs[outputs_by_arena]
    output_blocks = np.bincount(rows.arena_of_value[output_values], minlength=len(rows.arenas))
    output_blocks = output_blocks[output_blocks > 0]
    block_of_output = np.empty(len(graph.outputs), np.int64)
    block_of_output[outputs_by_arena] = np.repeat(np.arange(len(output_blocks)), output_blocks)
    row_of_output = np.empty(len(graph.outputs), np.int64)
    row_of_output[outputs_by_arena] = _count_up(output_blocks)

    # Every output block counts as a step of its own.
    reads, reads_of_step, indices = _read_blocks(
        rows,
        np.concatenate([operands, output_values]),
        np.concatenate([operand_blocks, output_blocks]),
        np.repeat(
            np.arange(len(arity_of_run) + len(output_blocks)), np.append(arity_of_run, np.ones_like(output_blocks))
        ),
    )
    input_count = int(runs.size[: runs.input_runs].sum())
    return Plan(
        ops=graph.ops,
        arenas=rows.arenas,
        inputs=tuple(rows.writes[: runs.input_runs]),
        input_order=_input_order(graph, runs),
        steps=_steps(graph, runs, rows.writes, reads, reads_of_step),
        nodes=runs.nodes[input_count:],
        indices=indices,
        outputs=tuple(reads[len(reads) - len(output_blocks) :]),
        block_of_output=block_of_output,
        row_of_output=row_of_output,
        nodes_of_example=graph.nodes_of_example,
    )


def _order_nodes(graph: Graph, step_of_node: Ints) -> _Runs:
    by_size = np.argsort(-graph.nodes_of_example, kind="stable")
    sizes = graph.nodes_of_example[by_size]
    nodes = np.repeat(starts_of(graph.nodes_of_example)[by_size], sizes) + _count_up(sizes)
    # Inputs come before the steps, under numbers of their own.
    run = np.where(step_of_node < 0, graph.op_of_node, step_of_node + len(graph.ops))[nodes]
    run_sizes = np.bincount(run)
    nodes = nodes[_stable_order(run, len(run_sizes))]
    used = np.flatnonzero(run_sizes)
    run_sizes = run_sizes[used]
    return _Runs(
        nodes=nodes,
        op=graph.op_of_node[nodes[starts_of(run_sizes)]],
        size=run_sizes,
        input_runs=int(np.count_nonzero(used < len(graph.ops))),
    )


def _mixed_constants(graph: Graph, operands: Ints, block_sizes: Ints) -> set[int]:
    """The constant ops with values that stand in one block beside values of other origin: those must share an arena."""
    origins_of_type = Counter([type for op in graph.ops for type in set(op.outputs)])
    candidates = [n for n, op in enumerate(graph.ops) if op.key == CONSTANT and origins_of_type[op.outputs[0]] > 1]
    if not candidates or not len(operands):
        return set()
    origin_of_op = np.full(len(graph.ops), -1)
    origin_of_op[candidates] = candidates
    origin = origin_of_op[graph.op_of_node[graph.node_of_value[operands]]]
    first = starts_of(block_sizes)
    mixed = np.minimum.reduceat(origin, first) != np.maximum.reduceat(origin, first)
    return set(origin[np.repeat(mixed, block_sizes)].tolist()) - {-1}


def _place_values(graph: Graph, runs: _Runs, mixed_constants: set[int]) -> _Rows:
    """Within an arena, rows are in the order run, output, member: every output of a step is a contiguous run of rows.

    Constants are read where they are, so each column of them is an arena; all else shares one arena for each type.
    """
    arena_number: dict[tuple[Type, Op | None], int] = {}
    arenas_of_op: list[list[int]] = []
    for number, op in enumerate(graph.ops):
        owner = op if op.key == CONSTANT and number not in mixed_constants else None
        arenas_of_op.append([arena_number.setdefault((type, owner), len(arena_number)) for type in op.outputs])
    width_of_run = np.array([len(op.outputs) for op in graph.ops], np.int64)[runs.op]
    values = _slot_by_slot(graph.first_value_of_node[runs.nodes], runs.size, width_of_run)
    arena_of_block = np.array([arena for op in runs.op.tolist() for arena in arenas_of_op[op]], np.int64)
    block_sizes = np.repeat(runs.size, width_of_run)
    arena_in_order = np.repeat(arena_of_block, block_sizes)
    arena_of_value = np.empty(graph.value_count, np.int64)
    arena_of_value[values] = arena_in_order
    sizes = np.bincount(arena_in_order, minlength=len(arena_number))
    row_of_value = np.empty(graph.value_count, np.int64)
    row_of_value[values[_stable_order(arena_in_order, len(arena_number))]] = _count_up(sizes)
    arenas = [
        Arena(type, int(size), constant=owner is not None)
        for (type, owner), size in zip(arena_number, sizes, strict=True)
    ]
    first_rows = row_of_value[values[starts_of(block_sizes)]].tolist()
    writes = list(map(Write, arena_of_block.tolist(), first_rows, block_sizes.tolist()))
    return _Rows(tuple(arenas), arena_of_value, row_of_value, writes)


def _read_blocks(
    rows: _Rows, values: Ints, block_sizes: Ints, step_of_block: Ints
) -> tuple[list[Read], list[int], Ints]:
    """How to read each block of values: the reads, how many each step has, and the rows of those that must be gathered.

    Neighbouring gathers of one step from one arena are one read.
    """
    if not len(values):
        return [], [], np.empty(0, np.int64)
    row = rows.row_of_value[values]
    first = starts_of(block_sizes)
    stride = np.empty_like(row)
    np.subtract(row[1:], row[:-1], out=stride[1:])
    stride[first] = 1
    ascends = np.logical_and.reduceat(stride == 1, first)
    stride[first] = 0
    repeats = ~np.logical_or.reduceat(stride, first)
    gathers = ~(ascends | repeats)

    arena = rows.arena_of_value[values[first]]
    leads = np.ones(len(first), bool)
    leads[1:] = ~(gathers[1:] & gathers[:-1] & (arena[1:] == arena[:-1]) & (step_of_block[1:] == step_of_block[:-1]))
    leader = np.flatnonzero(leads)
    accesses = (Access.SLICE, Access.BROADCAST, Access.GATHER)
    reads = map(
        Read,
        arena[leader].tolist(),
        [accesses[code] for code in np.where(ascends, 0, 1 + gathers)[leader].tolist()],
        np.where(gathers, starts_of(block_sizes * gathers), row[first])[leader].tolist(),
        block_sizes[leader].tolist(),
        np.diff(np.append(leader, len(first))).tolist(),
    )
    return list(reads), np.bincount(step_of_block[leader]).tolist(), row[np.repeat(gathers, block_sizes)]


def _input_order(graph: Graph, runs: _Runs) -> Ints:
    """Which input of its op, in recording order, each input node is."""
    orders = []
    start = 0
    for op, size in zip(runs.op[: runs.input_runs].tolist(), runs.size.tolist(), strict=False):
        number_of_node = np.cumsum(graph.op_of_node == op) - 1
        orders.append(number_of_node[runs.nodes[start : start + size]])
        start += size
    return concatenate(orders)


def _steps(
    graph: Graph, runs: _Runs, writes: list[Write], reads: list[Read], reads_of_step: list[int]
) -> tuple[Step, ...]:
    steps: list[Step] = []
    width_of_op = [len(op.outputs) for op in graph.ops]
    next_write, next_read, next_member = runs.input_runs, 0, 0
    ops, sizes = runs.op.tolist(), runs.size.tolist()
    for run in range(runs.input_runs, len(ops)):
        last_write, last_read = next_write + width_of_op[ops[run]], next_read + reads_of_step[run]
        steps.append(
            Step(
                op=ops[run],
                first=next_member,
                size=sizes[run],
                reads=tuple(reads[next_read:last_read]),
                writes=tuple(writes[next_write:last_write]),
            )
        )
        next_write, next_read = last_write, last_read
        next_member += sizes[run]
    return tuple(steps)


def _slot_by_slot(first: Ints, run_sizes: Ints, slots_of_run: Ints) -> Ints:
    """Numbers that stand node by node (``first``, and one for each slot), reordered to run, slot, member."""
    block_sizes = np.repeat(run_sizes, slots_of_run)
    first_member = np.repeat(starts_of(run_sizes), slots_of_run)
    member = np.arange(int(block_sizes.sum())) + np.repeat(first_member - starts_of(block_sizes), block_sizes)
    return first[member] + np.repeat(_count_up(slots_of_run), block_sizes)


def _stable_order(numbers: Ints, bound: int) -> Ints:
    """The order that sorts numbers below a bound. numpy sorts small ones by radix, several times faster."""
    return np.argsort(numbers.astype(np.int16) if bound < 2**15 else numbers, kind="stable")


def _count_up(counts: Ints) -> Ints:
    """0, 1, ... anew for each run."""
    return np.arange(int(counts.sum())) - np.repeat(starts_of(counts), counts)
