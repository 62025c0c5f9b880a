"""The arenas of one batch: where results live between the steps that make them and the steps that read them.

An exchange runs between any two steps, so for narrow steps its own cost is what counts: views are cut by one ``split`` for
all steps, because cutting them one at a time costs more than copying a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import GradientEdge

from foldloom.execution.backward.again import Made
from foldloom.execution.backward.reach import Members, Reach
from foldloom.execution.exchange import Grow, Move, exchange, hand_out, read_rows, unbind_copy, write_rows
from foldloom.execution.kernels import dtype_of
from foldloom.execution.pool import empty
from foldloom.graph import Ints
from foldloom.planning.plans import Access, Arena, Plan, Read, Write

_GATHER = Access.GATHER
_IN_NUMPY = frozenset(
    (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    )
)


class Buffers:
    """The arenas of one batch, and where autograd stands with each of them.

    A batch may take several plans, each going on where the one before has ended; then arenas grow. Exchanges must come in
    the order of a plan's steps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._untracked: set[int] = set()
        self._rows: list[torch.Tensor] = []
        self._tokens: dict[int, torch.Tensor] = {}
        """What autograd is given in place of arenas, once it has to do with them."""
        self._shapes: list[tuple[int, ...]] = []
        self._constant: list[bool] = []
        self._inputs: Sequence[Write] = ()
        self._unwritten: list[Iterator[torch.Tensor]] = []
        self._indices: Iterator[torch.Tensor] = iter(())
        self._numbers_of_rows: Ints = np.empty(0, np.int64)
        self.reach = Reach()

    def admit(self, plan: Plan) -> None:
        """Make room for a plan, whose exchanges come next."""
        rows_of_write: list[list[int]] = [[] for _ in plan.arenas]
        for arena_number, _, size in plan.inputs:
            rows_of_write[arena_number].append(size)
        gathered: list[int] = []
        for step in plan.steps:
            for arena_number, _, size in step.writes:
                rows_of_write[arena_number].append(size)
            gathered += [read.size * read.slots for read in step.reads if read.access is _GATHER]
        gathered += [read.size * read.slots for read in plan.outputs if read.access is _GATHER]
        # Moves of earlier plans keep the shapes that their tokens had.
        self._shapes = list(self._shapes)
        self._unwritten = []
        for number, (arena, sizes) in enumerate(zip(plan.arenas, rows_of_write, strict=True)):
            if number == len(self._rows):
                self._add(arena)
            elif arena.rows > self._shapes[number][0]:
                self._grow(number, arena)
            fresh: Sequence[torch.Tensor] = ()
            if sizes and not arena.constant:
                # Writing goes through an alias with a version counter of its own (`.data`): autograd would otherwise take
                # every write for a change of the rows that earlier steps saved for their backward.
                rows = self._rows[number].data
                fresh = rows.split_with_sizes([arena.kept, *sizes, self._shapes[number][0] - arena.rows])[1:]
            self._unwritten.append(iter(fresh))
        self._numbers_of_rows = plan.indices
        if gathered:
            self._indices = iter(torch.from_numpy(plan.indices).to(self._device).split_with_sizes(gathered))
        self._inputs = plan.inputs

    def _add(self, arena: Arena) -> None:
        shape = (arena.rows, *arena.type.shape)
        # Constants are read where they are; see place_inputs.
        self._rows.append(empty((0,) if arena.constant else shape, dtype_of(arena.type), self._device))
        self._shapes.append(shape)
        self._constant.append(arena.constant)
        if not arena.differentiable:
            self._untracked.add(len(self._rows) - 1)

    def _grow(self, number: int, arena: Arena) -> None:
        old = self._rows[number]
        shape = (max(arena.rows, 2 * self._shapes[number][0]), *arena.type.shape)
        self._rows[number] = empty(shape, old.dtype, self._device)
        self._rows[number].data[: arena.kept].copy_(old[: arena.kept])
        self._shapes[number] = shape
        token = self._tokens.pop(number, None)
        if token is not None and token.requires_grad:
            self._tokens[number] = Grow.apply(token, self._new_token(number))

    def size_of(self, filled: Sequence[int]) -> int:
        """How many bytes the values take of which so many are in each arena."""
        return sum([count * rows.stride(0) * rows.itemsize for count, rows in zip(filled, self._rows, strict=False)])

    def keep(self, rows_of_arena: Sequence[Ints]) -> None:
        """Move these rows to the beginning of other buffers; the rest is forgotten. There are no gradients."""
        for number, rows in enumerate(rows_of_arena):
            old = self._rows[number]
            shape = (max(2 * len(rows), self._shapes[number][0] // 2), *old.shape[1:])
            self._rows[number] = empty(shape, old.dtype, self._device)
            self._rows[number][: len(rows)].copy_(old.index_select(0, torch.from_numpy(rows).to(self._device)))
            self._shapes[number] = shape
        self._tokens.clear()
        self._unwritten = []

    def _token(self, arena: int) -> torch.Tensor:
        token = self._tokens.get(arena)
        if token is None:
            token = self._tokens[arena] = self._new_token(arena)
        return token

    def _new_token(self, arena: int) -> torch.Tensor:
        """It has the shape of the arena and no data."""
        return torch.empty((), dtype=self._rows[arena].dtype, device=self._device).expand(self._shapes[arena])

    def edge_into(self, arena: int, row: int) -> GradientEdge | None:
        """Where in autograd's graph the gradient of a row goes: to what made the block that it was written with. None if that has no
        history."""
        token = self._tokens.get(arena)
        node: Any = None if token is None else token.grad_fn
        while node is not None:
            move = getattr(node, "move", None)
            if move is None:  # the arena has grown
                node = node.next_functions[0][0]
                continue
            for number, write in enumerate(move.writes):
                if write.arena == arena and write.start <= row < write.start + write.size:
                    maker, output = node.next_functions[len(move.touched) + number]
                    return None if maker is None else GradientEdge(maker, output)
            node = node.next_functions[list(move.touched).index(arena)][0]
        return None

    def row(self, arena: int, row: int) -> torch.Tensor:
        """A row that has been written, for somebody who wants its numbers and no gradient."""
        return self._rows[arena][row]

    def rows(self, arena: int, rows: Ints) -> torch.Tensor:
        return self._rows[arena].index_select(0, torch.from_numpy(rows).to(self._device))

    def number(self, arena: int, row: int) -> Any:
        """The only number of a row, as Python's."""
        return self._rows[arena][row].item()

    def numbers(self, arena: int, rows: Ints) -> list[Any]:
        """The same for several rows."""
        values = self._rows[arena].detach()
        if values.device.type == "cpu" and values.dtype in _IN_NUMPY:
            return values.numpy()[rows].reshape(-1).tolist()
        return self.rows(arena, rows).flatten().tolist()

    def place_inputs(self, inputs: Sequence[torch.Tensor]) -> tuple[list[Write], list[torch.Tensor]]:
        """Take the constants as they are; what is left must be written by the first exchange."""
        writes: list[Write] = []
        tensors: list[torch.Tensor] = []
        for write, tensor in zip(self._inputs, inputs, strict=True):
            if self._constant[write.arena]:
                self._rows[write.arena] = tensor
            else:
                writes.append(write)
                tensors.append(tensor)
        return writes, tensors

    def exchange(
        self,
        writes: Sequence[Write],
        outputs: Sequence[torch.Tensor],
        reads: Sequence[Read],
        members: Members | None = None,
        made: Made | None = None,
        read_before: Sequence[torch.Tensor] = (),
    ) -> Sequence[torch.Tensor]:
        """Write the outputs of one step and read the operands of the next, in argument order.

        ``members`` are those of the next step; ``made`` says how the outputs were made, of the operands ``read_before``.
        """
        views = [next(self._unwritten[write.arena]) for write in writes]
        wanted = [(read, next(self._indices) if read.access is _GATHER else None) for read in reads]
        if not torch.is_grad_enabled():
            write_rows(views, outputs)
            return read_rows(self._rows, wanted)
        tracked, writes, views, outputs = self._tracked(wanted, writes, views, outputs)
        move = self._move(writes, tracked, members, made)
        touched = move.touched
        if not touched:
            return read_rows(self._rows, wanted)
        also = () if move.made is None else (*read_before, *move.made.kernel.weights)
        results = exchange(move, self._rows, views, *map(self._token, touched), *outputs, *also)
        self._tokens.update(zip(touched, results, strict=False))
        operands: Sequence[torch.Tensor] = results[len(touched) :]
        return operands if len(tracked) == len(reads) else self._interleave(wanted, operands)

    def hand_out(
        self,
        writes: Sequence[Write],
        outputs: Sequence[torch.Tensor],
        reads: Sequence[Read],
        made: Made | None = None,
        read_before: Sequence[torch.Tensor] = (),
    ) -> list[Sequence[torch.Tensor]]:
        """Write the outputs of the last step and read the outputs of the plan: for each read, its rows one by one."""
        views = [next(self._unwritten[write.arena]) for write in writes]
        wanted = [(read, next(self._indices) if read.access is _GATHER else None) for read in reads]
        if not torch.is_grad_enabled():
            write_rows(views, outputs)
            return [unbind_copy(block) for block in read_rows(self._rows, wanted)]
        tracked, writes, views, outputs = self._tracked(wanted, writes, views, outputs)
        move = self._move(writes, tracked, None, made)
        rows: Iterator[torch.Tensor] = iter(())
        if move.touched:
            also = () if move.made is None else (*read_before, *move.made.kernel.weights)
            rows = iter(hand_out(move, self._rows, views, *map(self._token, move.touched), *outputs, *also))
            for arena in move.touched:
                self._tokens[arena] = next(rows)
        return [
            unbind_copy(*read_rows(self._rows, [item]))
            if item[0].arena in self._untracked
            else [next(rows) for _ in range(item[0].size)]
            for item in wanted
        ]

    def _tracked(
        self,
        wanted: list[tuple[Read, torch.Tensor | None]],
        writes: Sequence[Write],
        views: list[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> tuple[list[tuple[Read, torch.Tensor | None]], Sequence[Write], list[torch.Tensor], Sequence[torch.Tensor]]:
        """What autograd must see of an exchange; what it need not is written."""
        untracked = self._untracked
        if not untracked:
            return wanted, writes, views, outputs
        tracked = [item for item in wanted if item[0].arena not in untracked]
        if any([write.arena in untracked for write in writes]):  # noqa: C419 (a generator is slower here)
            writes, views, outputs = self._write_untracked(writes, views, outputs)
        return tracked, writes, views, outputs

    def _move(
        self,
        writes: Sequence[Write],
        reads: Sequence[tuple[Read, torch.Tensor | None]],
        members: Members | None,
        made: Made | None,
    ) -> Move:
        touched = list(dict.fromkeys([*[write.arena for write in writes], *[read.arena for read, _ in reads]]))
        if made is not None and not made.can_run_again:
            made = None
        return Move(self._shapes, touched, writes, reads, self.reach, members, self._numbers_of_rows, made)

    def members_of(self, writes: Sequence[Write], ragged: Sequence[bool], lengths: Ints | None) -> Members:
        """The members of a step, as backward tells them apart."""
        if not self._untracked:
            return Members(writes, writes, ragged, lengths)
        tracked = [item for item in zip(writes, ragged, strict=True) if item[0].arena not in self._untracked]
        return Members(writes, [write for write, _ in tracked], [is_ragged for _, is_ragged in tracked], lengths)

    def _write_untracked(
        self, writes: Sequence[Write], views: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
    ) -> tuple[Sequence[Write], list[torch.Tensor], list[torch.Tensor]]:
        """Write what has no gradient; the rest is left."""
        left = []
        for write, view, output in zip(writes, views, outputs, strict=True):
            if write.arena in self._untracked:
                view.copy_(output)
            else:
                left.append((write, view, output))
        return [item[0] for item in left], [item[1] for item in left], [item[2] for item in left]

    def _interleave(
        self, wanted: Sequence[tuple[Read, torch.Tensor | None]], tracked: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The operands in argument order, where only some of them are tracked."""
        remaining = iter(tracked)
        operands: list[torch.Tensor] = []
        for item in wanted:
            if item[0].arena in self._untracked:
                operands += read_rows(self._rows, (item,))
            else:
                operands += [next(remaining) for _ in range(item[0].slots)]
        return operands

    def shared_rows(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """The arenas that the operands of these reads are part of, so that changing an operand would change them."""
        return [self._rows[read.arena] for read in reads if read.access is not _GATHER]
