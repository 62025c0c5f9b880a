"""What will run: steps over arenas, as frozen data that pickles and holds no tensors and no weights.

Results of one type live in one *arena*, a buffer with a row for each value. A step runs one op for all its members: it
reads a block of rows for each operand and writes a contiguous run of rows for each output. A block that already stands
in order is a slice and copies nothing; a row shared by every member is broadcast; the rest is gathered, and neighbouring
gathers from one arena are one ``index_select``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from foldloom.errors import PlanError
from foldloom.graph import EARLIER, Ints, Op, Type


class Access(Enum):
    """How a block of rows is read."""

    SLICE = "slice"
    BROADCAST = "broadcast"
    GATHER = "gather"


# Plans are made for every batch, with several of these for every step: a named tuple is made much faster than a
# frozen dataclass.


class Read(NamedTuple):
    """``slots`` neighbouring operands of ``size`` rows each, from one arena.

    ``start`` is a row of the arena for a slice or a broadcast, and a position in ``Plan.indices`` for a gather. Only
    gathers have more than one slot. ``lengths`` is the position in ``Plan.lengths`` where the rows of each member are told, if
    the operand is ragged.
    """

    arena: int
    access: Access
    start: int
    size: int
    slots: int = 1
    lengths: int = -1


class Write(NamedTuple):
    """The rows ``start`` to ``start + size`` of an arena."""

    arena: int
    start: int
    size: int


class Step(NamedTuple):
    """One run of one op for ``size`` members, the first of which is at position ``first`` of ``Plan.nodes``."""

    op: int
    first: int
    size: int
    reads: tuple[Read, ...]
    writes: tuple[Write, ...]


class Arena(NamedTuple):
    """``kept`` rows were written by earlier plans of the same batch."""

    type: Type
    rows: int
    constant: bool
    kept: int = 0

    @property
    def differentiable(self) -> bool:
        return self.type.differentiable and not self.constant


@dataclass(frozen=True, slots=True)
class Statistics:
    nodes: int
    steps: int
    largest_batch: int
    rows_copied: int
    rows_in_place: int

    @property
    def mean_batch(self) -> float:
        return self.nodes / self.steps if self.steps else 0.0

    def __str__(self) -> str:
        return (
            f"{self.nodes} nodes in {self.steps} steps (mean batch {self.mean_batch:.1f}, largest {self.largest_batch}); "
            f"{self.rows_copied} rows copied, {self.rows_in_place} used in place"
        )


@dataclass(frozen=True, eq=False)
class Plan:
    """What will run: the steps, what each reads and writes, and where results are.

    >>> import torch, foldloom as fl
    >>> plan = fl.plan([fl.record(lambda x: x.exp(), torch.ones(2))]).plan
    >>> [step.size for step in plan.steps]
    [1]

    Inputs are placed first, then the steps run in order, then ``outputs`` are read: one block for each arena that holds an output, its values in the order of the
    graph's outputs. ``block_of_output`` and ``row_of_output`` say where each output stands in those blocks. ``lengths`` has, for each
    ragged operand of each step, the number of rows of each member.

    ``inputs`` has one write for each input op, in the order of ``ops``; ``input_order`` says, op after op, which of the
    given inputs stands in each row of it.
    """

    ops: tuple[Op, ...]
    arenas: tuple[Arena, ...]
    inputs: tuple[Write, ...]
    input_order: Ints
    steps: tuple[Step, ...]
    nodes: Ints
    indices: Ints
    lengths: Ints
    outputs: tuple[Read, ...]
    block_of_output: Ints
    row_of_output: Ints
    nodes_of_example: Ints
    example_of_node: Ints | None = None
    """Where examples did not take turns in order, so that ``nodes_of_example`` does not tell them apart."""

    def statistics(self) -> Statistics:
        reads = [read for step in self.steps for read in step.reads]
        copied = sum(read.size * read.slots for read in reads if read.access is Access.GATHER)
        return Statistics(
            nodes=sum(step.size for step in self.steps),
            steps=len(self.steps),
            largest_batch=max((step.size for step in self.steps), default=0),
            rows_copied=copied,
            rows_in_place=sum(read.size * read.slots for read in reads) - copied,
        )

    def examples_of(self, step: Step) -> Ints:
        """Which example each member of a step belongs to."""
        nodes = self.nodes[step.first : step.first + step.size]
        if self.example_of_node is not None:
            return self.example_of_node[nodes]
        return np.searchsorted(np.cumsum(self.nodes_of_example), nodes, side="right")

    def rows_of(self, read: Read) -> Ints:
        """The arena rows that a read takes, slot after slot."""
        if read.access is Access.GATHER:
            return self.indices[read.start : read.start + read.size * read.slots]
        if read.access is Access.BROADCAST:
            return np.full(read.size, read.start, np.int64)
        return np.arange(read.start, read.start + read.size)

    def lengths_of(self, read: Read, members: int) -> Ints:
        """The rows of each member, of a read that is ragged."""
        return self.lengths[read.lengths : read.lengths + members]

    def check(self) -> None:
        """Prove the plan well formed, or raise a PlanError.

        Every row of every arena is written exactly once, in order, before anything reads it; every step reads and writes what its op
        takes and makes; every node runs exactly once.
        """
        try:
            self._check_numbers()
            self._check_steps()
            self._check_indices()
        except (IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise PlanError(f"the plan is not well formed: {type(error).__name__}: {error}") from error

    def _check_numbers(self) -> None:
        """What is used as an index is none from behind."""
        counted = [
            *[(step.op, step.first, step.size) for step in self.steps],
            *[(arena.rows, arena.kept) for arena in self.arenas],
            *[(write.arena, write.start, write.size) for step in self.steps for write in step.writes],
            *[(write.arena, write.start, write.size) for write in self.inputs],
            *[(read.arena, read.start, read.size, read.slots, read.lengths + 1) for read in self.outputs],
            *[(r.arena, r.start, r.size, r.slots, r.lengths + 1) for step in self.steps for r in step.reads],
        ]
        if any(number < 0 for numbers in counted for number in numbers):
            raise PlanError("a step, read, write or arena has a number below zero")
        for column in (self.input_order, self.nodes, self.indices, self.lengths, self.nodes_of_example):
            if column.dtype != np.int64 or column.ndim != 1 or (len(column) and column.min() < 0):
                raise PlanError("a column of the plan has numbers below zero, or no integers")
        sizes = np.array([read.size for read in self.outputs], np.int64)
        blocks, rows = self.block_of_output, self.row_of_output
        is_there = len(blocks) == len(rows) and (blocks >= 0).all() and (rows >= 0).all()
        if not is_there or (rows >= sizes[blocks]).any():
            raise PlanError("an output of the plan is in no block")

    def _check_indices(self) -> None:
        """They are handed out in order, whatever reads say of where theirs begin."""
        gathers = [
            r for r in [*[r for step in self.steps for r in step.reads], *self.outputs] if r.access is Access.GATHER
        ]
        ends = np.cumsum([0, *[read.size * read.slots for read in gathers]]).tolist()
        if [read.start for read in gathers] != ends[:-1] or ends[-1] != len(self.indices):
            raise PlanError("indices are not read one after the other, each once")

    def _check_steps(self) -> None:
        # How many rows of each arena, from the first: nothing as large as what a plan of others claims.
        written = [arena.kept for arena in self.arenas]
        input_ops = [op for op in self.ops if op.is_input and op.key != EARLIER]
        if len(input_ops) != len(self.inputs):
            raise PlanError(f"the plan places {len(self.inputs)} inputs for {len(input_ops)} input ops")
        for op, write in zip(input_ops, self.inputs, strict=True):
            self._check_write(f"input {op}", op.outputs[0], write, written)
            if self.arenas[write.arena].constant and write.size != self.arenas[write.arena].rows:
                raise PlanError(f"input {op} is a part of arena {write.arena}, which holds constants as they are given")
        for number, step in enumerate(self.steps):
            op = self.ops[step.op]
            where = f"step {number} ({op.label or op.key})"
            self._check_reads(where, op.inputs, step.size, step.reads, written)
            if len(step.writes) != len(op.outputs):
                raise PlanError(f"{where} writes {len(step.writes)} blocks for {len(op.outputs)} outputs")
            for type, write in zip(op.outputs, step.writes, strict=True):
                if not type.ragged and write.size != step.size:
                    raise PlanError(f"{where} has {step.size} members and writes {write.size} rows")
                self._check_write(where, type, write, written)
                if self.arenas[write.arena].constant:
                    raise PlanError(f"{where} writes arena {write.arena}, which holds constants")
        for read in self.outputs:
            self._check_reads("the outputs", (self.arenas[read.arena].type,), read.size, (read,), written)
        for number, (arena, rows) in enumerate(zip(self.arenas, written, strict=True)):
            if rows != arena.rows:
                raise PlanError(f"row {rows} of arena {number} is never written")
        is_whole = not any(op.key == EARLIER for op in self.ops)
        computing = int(self.nodes_of_example.sum()) - len(self.input_order) if is_whole else len(self.nodes)
        if not len(np.unique(self.nodes)) == len(self.nodes) == computing == sum(step.size for step in self.steps):
            raise PlanError("a node runs twice or not at all")

    def _check_write(self, where: str, type: Type, write: Write, written: list[int]) -> None:
        if self.arenas[write.arena].type is not type.row:
            raise PlanError(f"{where} writes {type} into an arena of {self.arenas[write.arena].type}")
        if write.size and write.start + write.size > self.arenas[write.arena].rows:
            raise PlanError(f"{where} writes past the end of arena {write.arena}")
        if write.start > written[write.arena] or (write.size and write.start < written[write.arena]):
            raise PlanError(
                f"{where} writes arena {write.arena} out of order: rows are written once, from first to last"
            )
        written[write.arena] += write.size

    def _check_reads(
        self, where: str, types: Sequence[Type], count: int, reads: Sequence[Read], written: Sequence[int]
    ) -> None:
        slots = sum(read.slots for read in reads)
        if slots != len(types):
            raise PlanError(f"{where} reads {slots} operands where its op takes {len(types)}")
        found = [read for read in reads for _ in range(read.slots)]
        for slot, (type, read) in enumerate(zip(types, found, strict=True)):
            if not (self._fit(read, count) if type.ragged else read.size == count):
                raise PlanError(f"{where} has {count} members and reads {read.size} rows for operand {slot}")
            if read.size and self.arenas[read.arena].type is not type.row:
                raise PlanError(f"{where} reads {self.arenas[read.arena].type} for operand {slot}, which takes {type}")
        for read in reads:
            last = self._last_row_of(read)
            if last >= self.arenas[read.arena].rows:
                raise PlanError(f"{where} reads outside arena {read.arena}")
            if last >= written[read.arena]:
                raise PlanError(f"{where} reads rows of arena {read.arena} before they are written")

    def _fit(self, read: Read, count: int) -> bool:
        """Whether members have as many rows of a ragged value as are read. Each is looked at by itself, too: a sum may go around."""
        lengths = self.lengths_of(read, count)
        return len(lengths) == count and not (lengths > read.size).any() and int(lengths.sum()) == read.size

    def _last_row_of(self, read: Read) -> int:
        """The largest row that a read takes; -1 if it takes none."""
        if not read.size * read.slots:
            return -1
        if read.access is Access.BROADCAST:
            return read.start
        if read.access is Access.SLICE:
            return read.start + read.size - 1
        rows = self.rows_of(read)
        if len(rows) != read.size * read.slots:
            raise PlanError("a read takes indices that the plan does not have")
        return int(rows.max())

    def __str__(self) -> str:
        lines = [str(self.statistics())]
        for number, arena in enumerate(self.arenas):
            lines.append(f"arena {number}: {arena.rows} x {arena.type}{' constant' if arena.constant else ''}")
        for number, step in enumerate(self.steps):
            op = self.ops[step.op]
            lines.append(f"step {number}: {step.size} x {op.label or op.key}")
            lines += [f"  read  {self._describe(read)}" for read in step.reads]
            lines += [f"  write {write.arena}[{write.start}:{write.start + write.size}]" for write in step.writes]
        lines += [f"output  {self._describe(read)}" for read in self.outputs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Plan({self.statistics()})"

    def _describe(self, read: Read) -> str:
        if read.access is Access.SLICE:
            return f"{read.arena}[{read.start}:{read.start + read.size}]"
        if read.access is Access.BROADCAST:
            return f"{read.arena}[{read.start}] for all"
        slots = self.rows_of(read).reshape(read.slots, read.size)
        return f"{read.arena}{slots.tolist()}"
