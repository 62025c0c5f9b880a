"""Where every value lives and how every step finds its operands: from a schedule to a Plan.

A step writes its outputs as contiguous runs, so the order of its members decides what its readers find in order. Members
are sorted by the size of their example, largest first, then by recording order: of several sequences the ones that go
on are always a prefix of the step before, and a step reads them as a slice. Trees have no such order; they gather.

Everything is an array operation over all nodes, values or reads at once; Python runs once per block of a step.

Tried and dropped: rows in the order of their *readers*, so that reading never copies. The copy moves to the write, where
``index_copy_`` takes three times as long as ``index_select`` for the same rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foldloom.graph import CONSTANT, Graph, Ints, Op, Type, starts_of
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


class _Blocks(NamedTuple):
    """How each block of rows is read, before neighbouring gathers are joined."""

    arena: list[int]
    access: list[Access]
    start: list[int]
    count: list[int]


def place(graph: Graph, step_of_node: Ints) -> Plan:
    runs = _order_nodes(graph, step_of_node)
    rows = _place_values(graph, runs)
    arity_of_run = np.array([len(op.inputs) for op in graph.ops], np.int64)[runs.op]
    operands = graph.operands[_slot_by_slot(graph.first_operand_of_node[runs.nodes], runs.size, arity_of_run)]
    operand_blocks = np.repeat(runs.size, arity_of_run)

    outputs_by_arena = np.argsort(rows.arena_of_value[graph.outputs], kind="stable")
    output_values = graph.outputs[outputs_by_arena]
    output_blocks = np.bincount(rows.arena_of_value[output_values], minlength=len(rows.arenas))
    output_blocks = output_blocks[output_blocks > 0]
    block_of_output = np.empty(len(graph.outputs), np.int64)
    block_of_output[outputs_by_arena] = np.repeat(np.arange(len(output_blocks)), output_blocks)
    row_of_output = np.empty(len(graph.outputs), np.int64)
    row_of_output[outputs_by_arena] = _count_up(output_blocks)

    blocks, indices = _classify(
        rows, np.concatenate([operands, output_values]), np.concatenate([operand_blocks, output_blocks])
    )
    input_count = int(runs.size[: runs.input_runs].sum())
    return Plan(
        ops=graph.ops,
        arenas=rows.arenas,
        inputs=tuple(rows.writes[: runs.input_runs]),
        input_order=_input_order(graph, runs.nodes[:input_count]),
        steps=_steps(graph, runs, rows, blocks),
        nodes=runs.nodes[input_count:],
        indices=indices,
        outputs=_reads(blocks, len(operand_blocks), len(output_blocks)),
        block_of_output=block_of_output,
        row_of_output=row_of_output,
        example_of_node=graph.example_of_node,
    )


def _order_nodes(graph: Graph, step_of_node: Ints) -> _Runs:
    by_size = np.argsort(-graph.nodes_of_example, kind="stable")
    sizes = graph.nodes_of_example[by_size]
    nodes = np.repeat(starts_of(graph.nodes_of_example)[by_size], sizes) + _count_up(sizes)
    # Inputs come before the steps, under numbers of their own.
    run = np.where(step_of_node < 0, graph.op_of_node, step_of_node + len(graph.ops))[nodes]
    run_sizes = np.bincount(run)
    if len(run_sizes) < 2**15:
        run = run.astype(np.int16)  # numpy sorts these by radix, several times faster
    nodes = nodes[np.argsort(run, kind="stable")]
    used = np.flatnonzero(run_sizes)
    run_sizes = run_sizes[used]
    return _Runs(
        nodes=nodes,
        op=graph.op_of_node[nodes[starts_of(run_sizes)]],
        size=run_sizes,
        input_runs=int(np.count_nonzero(used < len(graph.ops))),
    )


def _place_values(graph: Graph, runs: _Runs) -> _Rows:
    """Within an arena, rows are in the order run, output, member: every output of a step is a contiguous run of rows."""
    # Constants are read where they are, so each column of them is an arena; all that is computed shares one for each type.
    arena_number: dict[tuple[Type, Op | None], int] = {}
    arenas_of_op = [
        [arena_number.setdefault((type, op if op.key == CONSTANT else None), len(arena_number)) for type in op.outputs]
        for op in graph.ops
    ]
    width_of_run = np.array([len(op.outputs) for op in graph.ops], np.int64)[runs.op]
    values = _slot_by_slot(graph.first_value_of_node[runs.nodes], runs.size, width_of_run)
    arena_of_block = np.array([arena for op in runs.op.tolist() for arena in arenas_of_op[op]], np.int64)
    block_sizes = np.repeat(runs.size, width_of_run)
    arena_in_order = np.repeat(arena_of_block, block_sizes)
    arena_of_value = np.empty(graph.value_count, np.int64)
    arena_of_value[values] = arena_in_order
    sizes = np.bincount(arena_in_order, minlength=len(arena_number))
    row_of_value = np.empty(graph.value_count, np.int64)
    row_of_value[values[np.argsort(arena_in_order.astype(np.int16), kind="stable")]] = _count_up(sizes)
    arenas = [
        Arena(type, int(size), constant=owner is not None)
        for (type, owner), size in zip(arena_number, sizes, strict=True)
    ]
    first_rows = row_of_value[values[starts_of(block_sizes)]].tolist()
    writes = list(map(Write, arena_of_block.tolist(), first_rows, block_sizes.tolist()))
    return _Rows(tuple(arenas), arena_of_value, row_of_value, writes)


def _classify(rows: _Rows, values: Ints, block_sizes: Ints) -> tuple[_Blocks, Ints]:
    """How each block of values can be read, and the rows of those that must be gathered."""
    row = rows.row_of_value[values]
    first = starts_of(block_sizes)
    difference = np.diff(row, prepend=0)
    difference[first] = 1
    ascends = np.logical_and.reduceat(difference == 1, first) if len(first) else np.empty(0, bool)
    difference[first] = 0
    repeats = np.logical_and.reduceat(difference == 0, first) if len(first) else np.empty(0, bool)
    gathers = ~(ascends | repeats)
    gathered_sizes = np.where(gathers, block_sizes, 0)
    access_code = np.where(ascends, 0, np.where(repeats, 1, 2))
    accesses = (Access.SLICE, Access.BROADCAST, Access.GATHER)
    blocks = _Blocks(
        arena=rows.arena_of_value[values[first]].tolist(),
        access=[accesses[code] for code in access_code.tolist()],
        start=np.where(gathers, starts_of(gathered_sizes), row[first]).tolist(),
        count=block_sizes.tolist(),
    )
    return blocks, row[np.repeat(gathers, block_sizes)]


def _input_order(graph: Graph, input_nodes: Ints) -> Ints:
    """Which input of its op, in recording order, each input node is."""
    in_recording_order = np.sort(input_nodes)
    ops = graph.op_of_node[in_recording_order]
    number_of_node = np.empty(len(graph.op_of_node), np.int64)
    by_op = in_recording_order[np.argsort(ops, kind="stable")]
    number_of_node[by_op] = _count_up(np.bincount(ops, minlength=len(graph.ops)))
    return number_of_node[input_nodes]


def _steps(graph: Graph, runs: _Runs, rows: _Rows, blocks: _Blocks) -> tuple[Step, ...]:
    steps: list[Step] = []
    shape_of_op = [(len(op.inputs), len(op.outputs)) for op in graph.ops]
    next_write, next_block, next_member = runs.input_runs, 0, 0
    for op, size in zip(runs.op[runs.input_runs :].tolist(), runs.size[runs.input_runs :].tolist(), strict=True):
        arity, width = shape_of_op[op]
        reads = _reads(blocks, next_block, arity)
        steps.append(Step(op, next_member, size, reads, tuple(rows.writes[next_write : next_write + width])))
        next_write += width
        next_block += arity
        next_member += size
    return tuple(steps)


def _reads(blocks: _Blocks, first: int, count: int) -> tuple[Read, ...]:
    """The reads of one step, or of the outputs; neighbouring gathers from one arena are joined into one."""
    reads: list[Read] = []
    for block in range(first, first + count):
        arena, access = blocks.arena[block], blocks.access[block]
        if access is Access.GATHER and reads and reads[-1].access is access and reads[-1].arena == arena:
            reads[-1] = reads[-1]._replace(slots=reads[-1].slots + 1)
        else:
            reads.append(Read(arena, access, blocks.start[block], blocks.count[block]))
    return tuple(reads)


def _slot_by_slot(first: Ints, run_sizes: Ints, slots_of_run: Ints) -> Ints:
    """Numbers that stand node by node (``first``, and one for each slot), reordered to run, slot, member."""
    totals = run_sizes * slots_of_run
    size = np.repeat(run_sizes, totals)
    slot, member = np.divmod(_count_up(totals), np.maximum(size, 1))
    return first[np.repeat(starts_of(run_sizes), totals) + member] + slot


def _count_up(counts: Ints) -> Ints:
    """0, 1, ... anew for each run."""
    return np.arange(int(counts.sum())) - np.repeat(starts_of(counts), counts)
