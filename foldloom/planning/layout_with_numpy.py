"""The order of nodes and the place of values with numpy: what `_planning.c` does is defined here.

Everything is an array operation over all nodes, values or reads at once, which takes longer than plain loops in C if there are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from foldloom.errors import PlanError
from foldloom.graph import EARLIER, Graph, Ints, Slots, Type, concatenate, runs_of, starts_of
from foldloom.planning.plans import Access, Read, Step, Write

ACCESSES = (Access.SLICE, Access.BROADCAST, Access.GATHER)


class Order(NamedTuple):
    """All nodes in the order in which their values are made: the inputs, op by op, then the steps. A run is one input op or one
    step: the nodes that share a write.

    ``operands`` are the values that runs read, slot by slot: a block is one slot of all members of a run, and ``rows_of_block`` says how
    many values that is. ``lengths`` has the rows of each member, block after block, of the blocks that are ragged.
    ``input_order`` says which input of its op, in recording order, each input is.
    """

    nodes: Ints
    op_of_run: Ints
    size_of_run: Ints
    operands: Ints
    rows_of_block: Ints
    lengths: Ints
    input_order: Ints
    input_runs: int
    input_nodes: int


class Layout(NamedTuple):
    """The place of each value, how many rows each arena has then, and a plan's reads and writes."""

    arena_of_value: Ints
    row_of_value: Ints
    filled: list[int]
    indices: Ints
    block_of_output: Ints
    row_of_output: Ints
    inputs: tuple[Write, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Read, ...]


class _Blocks(NamedTuple):
    """The operands or the outputs of all runs, slot by slot. ``numbers`` are positions in the graph's own order."""

    numbers: Ints
    rows: Ints
    members: Ints
    lengths: Ints


def arrange_with_numpy(graph: Graph, step_of_node: Ints) -> Order:
    by_size = (-graph.nodes_of_example).argsort(kind="stable")
    sizes = graph.nodes_of_example[by_size]
    nodes = starts_of(graph.nodes_of_example)[by_size].repeat(sizes) + _count_up(sizes)
    # Inputs come before the steps, under numbers of their own.
    run = np.where(step_of_node < 0, graph.op_of_node, step_of_node + len(graph.ops))[nodes]
    run_sizes = np.bincount(run)
    nodes = nodes[_stable_order(run, len(run_sizes))]
    used = run_sizes.nonzero()[0]
    run_sizes = run_sizes[used]
    op_of_run = graph.op_of_node[nodes[starts_of(run_sizes)]]
    if (graph.op_of_node[nodes] != op_of_run.repeat(run_sizes)).any():
        raise PlanError("a step holds nodes of two different ops")
    input_runs = int(np.count_nonzero(used < len(graph.ops)))
    operands = _blocks(graph.operand_slots, [op.inputs for op in graph.ops], nodes, op_of_run, run_sizes)
    return Order(
        nodes=nodes,
        op_of_run=op_of_run,
        size_of_run=run_sizes,
        operands=graph.operands[operands.numbers],
        rows_of_block=operands.rows,
        lengths=operands.lengths,
        input_order=_input_order(graph, nodes, op_of_run[:input_runs], run_sizes[:input_runs]),
        input_runs=input_runs,
        input_nodes=int(run_sizes[:input_runs].sum()),
    )


def _blocks(
    slots: Slots, types_of_op: list[tuple[Type, ...]], nodes: Ints, op_of_run: Ints, run_sizes: Ints
) -> _Blocks:
    slots_of_run = np.array([len(types) for types in types_of_op], np.int64)[op_of_run]
    members = run_sizes.repeat(slots_of_run)
    order = _slot_by_slot(starts_of(slots.of_node)[nodes], run_sizes, slots_of_run)
    if slots.rows is None:
        return _Blocks(order, members, members, np.empty(0, np.int64))
    rows = slots.rows[order]
    total = np.append(0, rows.cumsum())
    ends = members.cumsum()
    ragged = np.array([type.ragged for op in op_of_run.tolist() for type in types_of_op[op]], bool)
    return _Blocks(
        numbers=runs_of(starts_of(slots.rows)[order], rows),
        rows=total[ends] - total[ends - members],
        members=members,
        lengths=rows[ragged.repeat(members)],
    )


def _input_order(graph: Graph, nodes: Ints, op_of_run: Ints, sizes: Ints) -> Ints:
    orders = []
    start = 0
    for op, size in zip(op_of_run.tolist(), sizes.tolist(), strict=True):
        if graph.ops[op].key != EARLIER:
            number_of_node = (graph.op_of_node == op).cumsum() - 1
            orders.append(number_of_node[nodes[start : start + size]])
        start += size
    return concatenate(orders)


class _Rows(NamedTuple):
    """The place of each value, and the writes of each run (one for each output), run after run."""

    arena_of_value: Ints
    row_of_value: Ints
    writes: list[Write]
    sizes: Ints


def lay_out_with_numpy(
    graph: Graph,
    order: Order,
    arena_of_input: Ints,
    arenas_of_op: Sequence[Sequence[int]],
    kept: Sequence[int],
    earlier_arena: Ints,
    earlier_row: Ints,
) -> Layout:
    rows = _place_values(graph, order, arenas_of_op, np.array(kept, np.int64), earlier_arena, earlier_row)

    outputs_by_arena = rows.arena_of_value[graph.outputs].argsort(kind="stable")
    output_values = graph.outputs[outputs_by_arena]
    output_blocks = np.bincount(rows.arena_of_value[output_values], minlength=len(kept))
    output_blocks = output_blocks[output_blocks > 0]
    block_of_output = np.empty(len(graph.outputs), np.int64)
    block_of_output[outputs_by_arena] = np.arange(len(output_blocks)).repeat(output_blocks)
    row_of_output = np.empty(len(graph.outputs), np.int64)
    row_of_output[outputs_by_arena] = _count_up(output_blocks)

    # Every output block counts as a step of its own.
    arity_of_run = np.array([len(op.inputs) for op in graph.ops], np.int64)[order.op_of_run]
    reads, reads_of_step, indices = _read_blocks(
        rows,
        np.concatenate([order.operands, output_values]),
        np.concatenate([order.rows_of_block, output_blocks]),
        np.arange(len(arity_of_run) + len(output_blocks)).repeat(np.append(arity_of_run, np.ones_like(output_blocks))),
        *_ragged_blocks(graph, order, arena_of_input, len(output_blocks)),
        outputs=len(output_blocks),
    )
    given = sum([op.is_input and op.key != EARLIER for op in graph.ops])
    return Layout(
        arena_of_value=rows.arena_of_value,
        row_of_value=rows.row_of_value,
        filled=(np.array(kept, np.int64) + rows.sizes).tolist(),
        indices=indices,
        block_of_output=block_of_output,
        row_of_output=row_of_output,
        inputs=tuple(rows.writes[:given]),
        steps=_steps(graph, order, rows.writes[given:], reads, reads_of_step),
        outputs=tuple(reads[len(reads) - len(output_blocks) :]),
    )


def _place_values(
    graph: Graph,
    order: Order,
    arenas_of_op: Sequence[Sequence[int]],
    kept: Ints,
    earlier_arena: Ints,
    earlier_row: Ints,
) -> _Rows:
    new_types = [() if op.key == EARLIER else op.outputs for op in graph.ops]
    is_new = np.array([op.key != EARLIER for op in graph.ops], bool)[order.op_of_run]
    op_of_run = order.op_of_run[is_new]
    new_nodes = order.nodes[is_new.repeat(order.size_of_run)]
    outputs = _blocks(graph.output_slots, new_types, new_nodes, op_of_run, order.size_of_run[is_new])
    arena_of_block = np.array([arena for op in op_of_run.tolist() for arena in arenas_of_op[op]], np.int64)
    arena_in_order = arena_of_block.repeat(outputs.rows)
    sizes = np.bincount(arena_in_order, minlength=len(kept))
    arena_of_value, row_of_value = np.empty((2, graph.value_count), np.int64)
    arena_of_value[: len(earlier_arena)], row_of_value[: len(earlier_row)] = earlier_arena, earlier_row
    arena_of_value[outputs.numbers] = arena_in_order
    row_of_value[outputs.numbers[_stable_order(arena_in_order, len(kept))]] = runs_of(kept, sizes)
    # The rows of a block follow the rows of the blocks before it in the same arena.
    before = np.zeros(len(arena_of_block), np.int64)
    by_block = arena_of_block.argsort(kind="stable")
    before[by_block] = starts_of(outputs.rows[by_block])
    first_rows = before + (kept - starts_of(sizes))[arena_of_block]
    writes = list(map(Write, arena_of_block.tolist(), first_rows.tolist(), outputs.rows.tolist()))
    return _Rows(arena_of_value, row_of_value, writes, sizes)


def _ragged_blocks(graph: Graph, order: Order, arena_of_input: Ints, outputs: int) -> tuple[Ints, Ints]:
    """Where the lengths of each block that is read begin (-1 if it is not ragged), and its arena if it is empty."""
    first_input = starts_of(np.array([len(op.inputs) for op in graph.ops], np.int64))
    arity = np.array([len(op.inputs) for op in graph.ops], np.int64)[order.op_of_run]
    inputs = runs_of(first_input[order.op_of_run], arity)
    first_length, arena_if_empty = np.full(len(inputs) + outputs, -1), np.zeros(len(inputs) + outputs, np.int64)
    if len(graph.lengths):
        ragged = np.array([type.ragged for op in graph.ops for type in op.inputs], bool)[inputs]
        first_length[: len(inputs)] = np.where(ragged, starts_of(order.size_of_run.repeat(arity) * ragged), -1)
        arena_if_empty[: len(inputs)] = arena_of_input[inputs]
    return first_length, arena_if_empty


def _read_blocks(
    rows: _Rows,
    values: Ints,
    block_sizes: Ints,
    step_of_block: Ints,
    first_length: Ints,
    arena_if_empty: Ints,
    outputs: int,
) -> tuple[list[Read], list[int], Ints]:
    """How to read each block of values: the reads, how many each step has, and the rows of those that must be gathered.

    Neighbouring gathers of one step from one arena are one read. The last blocks, so many, are what the batch gives back.
    """
    if not len(block_sizes):
        return [], [], np.empty(0, np.int64)
    row = rows.row_of_value[values]
    first = starts_of(block_sizes)
    first_row, arena, ascends, repeats = _shape_of_blocks(rows, values, row, first, block_sizes)
    arena = np.where(block_sizes == 0, arena_if_empty, arena)
    # Whoever changes the result of one example in place must not change that of another.
    repeats[len(first) - outputs :] = False
    gathers = ~(ascends | repeats)

    leads = np.ones(len(first), bool)
    leads[1:] = ~(
        gathers[1:]
        & gathers[:-1]
        & (arena[1:] == arena[:-1])
        & (step_of_block[1:] == step_of_block[:-1])
        & (first_length[1:] < 0)
        & (first_length[:-1] < 0)
    )
    leader = leads.nonzero()[0]
    reads = map(
        Read,
        arena[leader].tolist(),
        [ACCESSES[code] for code in np.where(ascends, 0, 1 + gathers)[leader].tolist()],
        np.where(gathers, starts_of(block_sizes * gathers), first_row)[leader].tolist(),
        block_sizes[leader].tolist(),
        np.diff(np.append(leader, len(first))).tolist(),
        first_length[leader].tolist(),
    )
    return list(reads), np.bincount(step_of_block[leader]).tolist(), row[gathers.repeat(block_sizes)]


def _shape_of_blocks(
    rows: _Rows, values: Ints, row: Ints, first: Ints, sizes: Ints
) -> tuple[Ints, Ints, np.ndarray, np.ndarray]:
    """For each block: its first row, its arena, whether its rows ascend one by one, whether they are all the same."""
    full = sizes > 0
    if not full.all():
        # Runs of nothing would confuse the reductions below; the row and arena of an empty block do not matter.
        ascends, repeats = np.ones(len(sizes), bool), np.zeros(len(sizes), bool)
        first_row, arena = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
        if full.any():
            first_row[full], arena[full], ascends[full], repeats[full] = _shape_of_blocks(
                rows, values, row, first[full], sizes[full]
            )
        return first_row, arena, ascends, repeats
    stride = np.empty_like(row)
    np.subtract(row[1:], row[:-1], out=stride[1:])
    stride[first] = 1
    ascends = np.logical_and.reduceat(stride == 1, first)
    stride[first] = 0
    repeats = ~np.logical_or.reduceat(stride, first)
    return row[first], rows.arena_of_value[values[first]], ascends, repeats


def _steps(
    graph: Graph, order: Order, writes: list[Write], reads: list[Read], reads_of_step: list[int]
) -> tuple[Step, ...]:
    steps: list[Step] = []
    width_of_op = [len(op.outputs) for op in graph.ops]
    next_write, next_read, next_member = 0, 0, 0
    ops, sizes = order.op_of_run.tolist(), order.size_of_run.tolist()
    for run in range(order.input_runs, len(ops)):
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
    block_sizes = run_sizes.repeat(slots_of_run)
    first_member = starts_of(run_sizes).repeat(slots_of_run)
    member = np.arange(int(block_sizes.sum())) + (first_member - starts_of(block_sizes)).repeat(block_sizes)
    return first[member] + _count_up(slots_of_run).repeat(block_sizes)


def _stable_order(numbers: Ints, bound: int) -> Ints:
    """The order that sorts numbers below a bound. numpy sorts small ones by radix, several times faster."""
    return (numbers.astype(np.int16) if bound < 2**15 else numbers).argsort(kind="stable")


def _count_up(counts: Ints) -> Ints:
    """0, 1, ... anew for each run."""
    return np.arange(int(counts.sum())) - starts_of(counts).repeat(counts)
