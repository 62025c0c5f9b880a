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
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from foldloom.graph import CONSTANT, EARLIER, Graph, Ints, Op, Slots, Type, concatenate, runs_of, starts_of
from foldloom.plan import Access, Arena, Plan, Read, Step, Write


class _Runs(NamedTuple):
    """All nodes in the order in which their values are made: the inputs, op by op, then the steps.

    A run is one input op or one step: the nodes that share a write.
    """

    nodes: Ints
    op: Ints
    size: Ints
    input_runs: int


class _Blocks(NamedTuple):
    """The operands or the outputs of all runs, slot by slot: a block is one slot of all members of a run.

    ``numbers`` are positions in the graph's own order. ``lengths`` has the rows of each member, block after block, if any
    block is ragged.
    """

    numbers: Ints
    size: Ints
    members: Ints
    lengths: Ints | None


class _Rows(NamedTuple):
    """Arenas, the place of each value in them, and the writes of each run (one for each output), run after run."""

    arenas: tuple[Arena, ...]
    arena_of_value: Ints
    row_of_value: Ints
    writes: list[Write]


@dataclass
class Placed:
    """What the plans of one batch have placed so far, when it takes several: the next one goes on from here."""

    arenas: dict[tuple[Type, Op | None], int] = field(default_factory=dict)
    filled: list[int] = field(default_factory=list)
    arena_of_value: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    row_of_value: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def place(graph: Graph, step_of_node: Ints, placed: Placed | None = None, earlier: Ints | None = None) -> Plan:
    """The plan of a graph.

    A batch that runs in several parts has one `Placed` for all of them; ``earlier`` are the numbers, over all parts, of
    the values that come from parts before this one. In the graph these come first.
    """
    runs = _order_nodes(graph, step_of_node)
    operands = _blocks(graph.operand_slots, [op.inputs for op in graph.ops], runs)
    operand_values = graph.operands[operands.numbers]
    mixed = _mixed_constants(graph, operand_values, operands.size) if placed is None else None
    rows = _place_values(graph, runs, mixed, placed, earlier)

    outputs_by_arena = rows.arena_of_value[graph.outputs].argsort(kind="stable")
    output_values = graph.outputs[outputs_by_arena]
    output_blocks = np.bincount(rows.arena_of_value[output_values], minlength=len(rows.arenas))
    output_blocks = output_blocks[output_blocks > 0]
    block_of_output = np.empty(len(graph.outputs), np.int64)
    block_of_output[outputs_by_arena] = np.arange(len(output_blocks)).repeat(output_blocks)
    row_of_output = np.empty(len(graph.outputs), np.int64)
    row_of_output[outputs_by_arena] = _count_up(output_blocks)

    # Every output block counts as a step of its own.
    arity_of_run = np.array([len(op.inputs) for op in graph.ops], np.int64)[runs.op]
    reads, reads_of_step, indices = _read_blocks(
        rows,
        np.concatenate([operand_values, output_values]),
        np.concatenate([operands.size, output_blocks]),
        np.arange(len(arity_of_run) + len(output_blocks)).repeat(np.append(arity_of_run, np.ones_like(output_blocks))),
        _Ragged.of(graph, runs, rows, operands),
        outputs=len(output_blocks),
    )
    given = [number for number, op in enumerate(graph.ops) if op.is_input and op.key != EARLIER]
    input_count = int(runs.size[: runs.input_runs].sum())
    return Plan(
        ops=graph.ops,
        arenas=rows.arenas,
        inputs=tuple(rows.writes[: len(given)]),
        input_order=_input_order(graph, runs),
        steps=_steps(graph, runs, rows.writes[len(given) :], reads, reads_of_step),
        nodes=runs.nodes[input_count:],
        indices=indices,
        lengths=np.empty(0, np.int64) if operands.lengths is None else operands.lengths,
        outputs=tuple(reads[len(reads) - len(output_blocks) :]),
        block_of_output=block_of_output,
        row_of_output=row_of_output,
        nodes_of_example=graph.nodes_of_example,
    )


class _Ragged(NamedTuple):
    """Which of the blocks that are read are ragged: where their lengths begin (-1 for the others), and the arena of each block,
    which an empty one cannot tell."""

    first_length: Ints
    arena: Ints

    @staticmethod
    def of(graph: Graph, runs: _Runs, rows: _Rows, operands: _Blocks) -> _Ragged | None:
        if operands.lengths is None:
            return None
        types = [type for op in runs.op.tolist() for type in graph.ops[op].inputs]
        ragged = np.array([type.ragged for type in types], bool)
        arena_of_type = {arena.type: number for number, arena in enumerate(rows.arenas)}
        return _Ragged(
            first_length=np.where(ragged, starts_of(operands.members * ragged), -1),
            arena=np.array([arena_of_type.get(type.row, 0) for type in types], np.int64),
        )


def _blocks(slots: Slots, types_of_op: list[tuple[Type, ...]], runs: _Runs) -> _Blocks:
    slots_of_run = np.array([len(types) for types in types_of_op], np.int64)[runs.op]
    members = runs.size.repeat(slots_of_run)
    order = _slot_by_slot(starts_of(slots.of_node)[runs.nodes], runs.size, slots_of_run)
    if slots.rows is None:
        return _Blocks(order, members, members, None)
    rows = slots.rows[order]
    total = np.append(0, rows.cumsum())
    ends = members.cumsum()
    ragged = np.array([type.ragged for op in runs.op.tolist() for type in types_of_op[op]], bool)
    return _Blocks(
        numbers=runs_of(starts_of(slots.rows)[order], rows),
        size=total[ends] - total[ends - members],
        members=members,
        lengths=rows[ragged.repeat(members)],
    )


def _order_nodes(graph: Graph, step_of_node: Ints) -> _Runs:
    by_size = (-graph.nodes_of_example).argsort(kind="stable")
    sizes = graph.nodes_of_example[by_size]
    nodes = starts_of(graph.nodes_of_example)[by_size].repeat(sizes) + _count_up(sizes)
    # Inputs come before the steps, under numbers of their own.
    run = np.where(step_of_node < 0, graph.op_of_node, step_of_node + len(graph.ops))[nodes]
    run_sizes = np.bincount(run)
    nodes = nodes[_stable_order(run, len(run_sizes))]
    used = run_sizes.nonzero()[0]
    run_sizes = run_sizes[used]
    return _Runs(
        nodes=nodes,
        op=graph.op_of_node[nodes[starts_of(run_sizes)]],
        size=run_sizes,
        input_runs=int(np.count_nonzero(used < len(graph.ops))),
    )


def _mixed_constants(graph: Graph, operands: Ints, block_sizes: Ints) -> set[int]:
    """The constant ops with values that stand in one block beside values of other origin: those must share an arena."""
    origins_of_type = Counter([row for op in graph.ops for row in {type.row for type in op.outputs}])
    candidates = [n for n, op in enumerate(graph.ops) if op.key == CONSTANT and origins_of_type[op.outputs[0].row] > 1]
    if not candidates or not len(operands):
        return set()
    origin_of_op = np.full(len(graph.ops), -1)
    origin_of_op[candidates] = candidates
    origin = origin_of_op[graph.op_of_node[graph.node_of_value[operands]]]
    first = starts_of(block_sizes)
    mixed = np.minimum.reduceat(origin, first) != np.maximum.reduceat(origin, first)
    return set(origin[mixed.repeat(block_sizes)].tolist()) - {-1}


def _place_values(
    graph: Graph, runs: _Runs, mixed_constants: set[int] | None, placed: Placed | None, earlier: Ints | None
) -> _Rows:
    """Within an arena, rows are in the order run, output, member: every output of a step is a contiguous run of rows.

    Constants are read where they are, so each column of them is an arena; all else shares one arena for each type.
    (In a batch of several parts a later part may mix them with anything, so there they share too.)
    """
    arena_number = {} if placed is None else placed.arenas
    kept = [] if placed is None else placed.filled
    arenas_of_op: list[list[int]] = []
    for number, op in enumerate(graph.ops):
        alone = op.key == CONSTANT and mixed_constants is not None and number not in mixed_constants
        owner = op if alone else None
        arenas_of_op.append([arena_number.setdefault((type.row, owner), len(arena_number)) for type in op.outputs])
    kept = kept + [0] * (len(arena_number) - len(kept))
    new_types = [() if op.key == EARLIER else op.outputs for op in graph.ops]
    new_runs = runs if earlier is None else _without_earlier(graph, runs)
    outputs = _blocks(graph.output_slots, new_types, new_runs)
    arena_of_block = np.array([arena for op in new_runs.op.tolist() for arena in arenas_of_op[op]], np.int64)
    arena_in_order = arena_of_block.repeat(outputs.size)
    values = outputs.numbers
    arena_of_value = np.empty(graph.value_count, np.int64)
    arena_of_value[values] = arena_in_order
    sizes = np.bincount(arena_in_order, minlength=len(arena_number))
    row_of_value = np.empty(graph.value_count, np.int64)
    by_arena = values[_stable_order(arena_in_order, len(arena_number))]
    row_of_value[by_arena] = runs_of(np.array(kept, np.int64), sizes)
    if placed is not None and earlier is not None:
        arena_of_value[: len(earlier)] = placed.arena_of_value[earlier]
        row_of_value[: len(earlier)] = placed.row_of_value[earlier]
        placed.arena_of_value = np.concatenate([placed.arena_of_value, arena_of_value[len(earlier) :]])
        placed.row_of_value = np.concatenate([placed.row_of_value, row_of_value[len(earlier) :]])
        placed.filled = [old + new for old, new in zip(kept, sizes.tolist(), strict=True)]
    arenas = [
        Arena(type, old + int(size), constant=owner is not None, kept=old)
        for (type, owner), old, size in zip(arena_number, kept, sizes, strict=True)
    ]
    # The rows of a block follow the rows of the blocks before it in the same arena.
    before = np.zeros(len(arena_of_block), np.int64)
    by_block = arena_of_block.argsort(kind="stable")
    before[by_block] = starts_of(outputs.size[by_block])
    first_of_arena = np.array(kept, np.int64) - starts_of(sizes)
    first_rows = (before + first_of_arena[arena_of_block]).tolist()
    writes = list(map(Write, arena_of_block.tolist(), first_rows, outputs.size.tolist()))
    return _Rows(tuple(arenas), arena_of_value, row_of_value, writes)


def _without_earlier(graph: Graph, runs: _Runs) -> _Runs:
    is_new = np.array([op.key != EARLIER for op in graph.ops], bool)[runs.op]
    return _Runs(runs.nodes[is_new.repeat(runs.size)], runs.op[is_new], runs.size[is_new], runs.input_runs)


def _read_blocks(
    rows: _Rows, values: Ints, block_sizes: Ints, step_of_block: Ints, ragged: _Ragged | None, outputs: int
) -> tuple[list[Read], list[int], Ints]:
    """How to read each block of values: the reads, how many each step has, and the rows of those that must be gathered.

    Neighbouring gathers of one step from one arena are one read. The last blocks, so many, are what the batch gives back.
    """
    if not len(block_sizes):
        return [], [], np.empty(0, np.int64)
    row = rows.row_of_value[values]
    first = starts_of(block_sizes)
    first_row, arena, ascends, repeats = _shape_of_blocks(rows, values, row, first, block_sizes)
    # Whoever changes the result of one example in place must not change that of another.
    repeats[len(first) - outputs :] = False
    gathers = ~(ascends | repeats)
    first_length = np.full(len(first), -1)
    if ragged is not None:
        first_length[: len(ragged.first_length)] = ragged.first_length
        empty = np.flatnonzero(block_sizes[: len(ragged.arena)] == 0)
        arena[empty] = ragged.arena[empty]

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
    accesses = (Access.SLICE, Access.BROADCAST, Access.GATHER)
    reads = map(
        Read,
        arena[leader].tolist(),
        [accesses[code] for code in np.where(ascends, 0, 1 + gathers)[leader].tolist()],
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


def _input_order(graph: Graph, runs: _Runs) -> Ints:
    """Which input of its op, in recording order, each input node is."""
    orders = []
    start = 0
    for op, size in zip(runs.op[: runs.input_runs].tolist(), runs.size.tolist(), strict=False):
        if graph.ops[op].key != EARLIER:
            number_of_node = (graph.op_of_node == op).cumsum() - 1
            orders.append(number_of_node[runs.nodes[start : start + size]])
        start += size
    return concatenate(orders)


def _steps(
    graph: Graph, runs: _Runs, writes: list[Write], reads: list[Read], reads_of_step: list[int]
) -> tuple[Step, ...]:
    steps: list[Step] = []
    width_of_op = [len(op.outputs) for op in graph.ops]
    next_write, next_read, next_member = 0, 0, 0
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
