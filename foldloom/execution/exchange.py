"""The exchange between two steps: outputs go into their arenas, operands come out.

Autograd must see three things that plain buffers hide: that an operand depends on the outputs that filled its rows, that a
row's gradient is the sum over everyone who read it, and that it is complete before the step that made it runs backward.
All three follow from treating an arena as a value that each exchange passes on:

    arena', operands = exchange(arena, outputs)

The forward pass never copies an arena: what autograd is given in its place is a *token* of the same shape that holds no
data. Backward, the token's gradient is the real thing, the gradient arena. Each exchange adds the gradients of its
operands to it, takes the gradients of its outputs from it, and passes it on to the exchange before. So the order is
kept by the graph, every backward pass has gradient arenas of its own, and they are freed when the pass is over.

Members of a step that the loss does not depend on take no part in backward: `reach` says why, and how they are told.

Hazard: in the usual pass the gradient arena is changed in place, which is safe because each token has one reader. When the
backward pass is itself recorded (``create_graph=True``) the same arithmetic is done out of place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from foldloom.execution.backward.again import Made, gradients_again, must_run_again
from foldloom.execution.backward.reach import Mask, Members, Reach
from foldloom.execution.pool import zeros
from foldloom.graph import Ints
from foldloom.planning.plans import Access, Read, Write
from foldloom.torch_private import is_alias_of

unbind_copy: Callable[[torch.Tensor], Sequence[torch.Tensor]] = torch.unbind_copy  # type: ignore[assignment]


def write_rows(views: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    for view, output in zip(views, outputs, strict=True):
        view.copy_(output)


def read_rows(arenas: Sequence[torch.Tensor], reads: Iterable[tuple[Read, torch.Tensor | None]]) -> list[torch.Tensor]:
    """A block for each operand."""
    operands: list[torch.Tensor] = []
    for read, index in reads:
        rows = arenas[read.arena]
        if index is not None:
            gathered = rows.index_select(0, index)
            operands += gathered.chunk(read.slots) if read.slots > 1 else (gathered,)
        elif read.access is Access.SLICE:
            operands.append(rows.narrow(0, read.start, read.size))
        else:
            operands.append(rows.narrow(0, read.start, 1).expand(read.size, *rows.shape[1:]))
    return operands


_SMALL_GATHER = 1 << 17
"""Gradients of fewer numbers than this are joined before they are added: a copy is cheaper than another call."""


class Move:
    """What one exchange moves, as far as autograd is concerned.

    ``members`` is the step that the operands are for; None for the outputs of a plan. ``made`` says how the outputs were
    made, if they may have to be differentiated again. It must not hold what holds it: a graph that
    is part of a reference cycle keeps a whole batch alive until the garbage collector comes by.
    """

    __slots__ = ("indices", "made", "members", "reach", "reached_before", "reads", "shapes", "touched", "writes")

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        touched: Sequence[int],
        writes: Sequence[Write],
        reads: Sequence[tuple[Read, torch.Tensor | None]],
        reach: Reach,
        members: Members | None,
        indices: Ints,
        made: Made | None,
    ) -> None:
        self.shapes = shapes
        self.touched = touched
        self.writes = writes
        self.reads = reads
        self.reach = reach
        self.members = members
        self.indices = indices
        self.made = made
        self.reached_before: Mask | None = None
        """The members that took part in a backward pass that was recorded. Later passes may reach their operands through it."""

    def reached_members(self) -> Mask | None:
        """Which members of the step take part in this backward pass; None if all do."""
        reached = None if self.members is None else self.reach.of_members(self.members)
        if reached is None or self.reached_before is None:
            return reached
        return None if self.reached_before.all() else reached | self.reached_before

    def add(self, gradients: dict[int, torch.Tensor | None], operand_grads: Sequence[torch.Tensor | None]) -> None:
        """Add the gradients of the operands to the gradient arenas."""
        reached = self.reached_members()
        slot = 0
        for read, index in self.reads:
            grads = operand_grads[slot : slot + read.slots]
            slot += read.slots
            received = [grad for grad in grads if grad is not None]
            if not received:
                continue
            if reached is not None:
                self._add_of_some(gradients, read, grads, reached)
                continue
            arena = self.arena_for(gradients, read, received[0])
            if index is None:
                self.reach.add(read, None, len(arena))
                if read.access is Access.SLICE:
                    arena.narrow(0, read.start, read.size).add_(received[0])
                else:
                    arena.select(0, read.start).add_(received[0].sum(0))
            elif len(received) == read.slots and received[0].numel() * read.slots < _SMALL_GATHER:
                self.reach.add(read, self.rows_of(read), len(arena))
                arena.index_add_(0, index, torch.cat(received) if read.slots > 1 else _apart(received[0], arena))
            else:
                for number, (grad, rows) in enumerate(zip(grads, index.split(read.size), strict=True)):
                    if grad is not None:
                        self.reach.add(read, self.rows_of(read, number), len(arena))
                        arena.index_add_(0, rows, _apart(grad, arena))

    def _add_of_some(
        self,
        gradients: dict[int, torch.Tensor | None],
        read: Read,
        grads: Sequence[torch.Tensor | None],
        reached: Mask,
    ) -> None:
        """The same for the members that were reached, if there are any."""
        places = self._places(read, reached)
        if not len(places):
            return
        for number, grad in enumerate(grads):
            if grad is not None:
                arena = self.arena_for(gradients, read, grad)
                rows = self.rows_of(read, number)[places]
                self.reach.add(read, rows, len(arena))
                some = grad.index_select(0, torch.from_numpy(places).to(grad.device))
                arena.index_add_(0, torch.from_numpy(rows).to(grad.device), some)

    def _places(self, read: Read, reached: Mask) -> Ints:
        """Where in a block the rows of reached members are."""
        if read.lengths >= 0:
            assert self.members is not None
            assert self.members.lengths is not None, "who reads ragged operands has their lengths"
            reached = np.repeat(reached, self.members.lengths)
        return np.flatnonzero(reached)

    def add_recorded(
        self, gradients: dict[int, torch.Tensor | None], operand_grads: Sequence[torch.Tensor | None]
    ) -> None:
        """The same as `add`, differentiably."""
        reached = self.reached_members()
        self.reached_before = np.ones(1, np.bool_) if reached is None else reached
        remaining = iter(operand_grads)
        for read, _ in self.reads:
            for number in range(read.slots):
                grad = next(remaining)
                if grad is None:
                    continue
                rows = self.rows_of(read, number)
                if reached is not None:
                    places = self._places(read, reached)
                    rows, grad = rows[places], grad.index_select(0, torch.from_numpy(places).to(grad.device))
                arena = gradients[read.arena]
                if arena is None:
                    arena = self._zeros(read.arena, grad)
                self.reach.add(read, rows, len(arena))
                gradients[read.arena] = arena.index_add(0, torch.from_numpy(rows).to(grad.device), grad)

    def rows_of(self, read: Read, slot: int | None = None) -> Ints:
        """The rows of the arena that a read takes, or one slot of it."""
        if read.access is Access.SLICE:
            return np.arange(read.start, read.start + read.size)
        if read.access is Access.BROADCAST:
            return np.full(read.size, read.start, np.int64)
        first = read.start + (slot or 0) * read.size
        return self.indices[first : first + read.size * (read.slots if slot is None else 1)]

    def of_outputs(self, gradients: dict[int, torch.Tensor | None]) -> Iterator[torch.Tensor | None]:
        """The gradients of the outputs; None of those that were not reached at all."""
        for write in self.writes:
            arena = gradients[write.arena]
            if arena is None or not self.reach.of_write(write).any():
                yield None
            else:
                yield arena.narrow(0, write.start, write.size)

    def call_hooks(self, gradients: dict[int, torch.Tensor | None]) -> None:
        """The gradients of the outputs are complete: call the hooks of those that were reached."""
        for write in self.writes:
            for hook in self.reach.hooks.of_write(write):
                arena, first = gradients[write.arena], hook.first - write.start
                if arena is not None and self.reach.of_write(write)[first : first + hook.rows].any():
                    gradients[write.arena] = hook.changed(arena)

    def arena_for(self, gradients: dict[int, torch.Tensor | None], read: Read, grad: torch.Tensor) -> torch.Tensor:
        """The gradient arena of a read, to which a gradient is to be added."""
        arena = gradients[read.arena]
        if arena is None:
            arena = gradients[read.arena] = self._zeros(read.arena, grad)
        return arena

    def _zeros(self, arena: int, grad: torch.Tensor) -> torch.Tensor:
        return zeros(self.shapes[arena], grad.dtype, grad.device)


def _apart(grad: torch.Tensor, arena: torch.Tensor) -> torch.Tensor:
    """A gradient that a function passed on as it came (an addition does) is part of the arena, and cannot be added to it."""
    return grad.clone() if is_alias_of(grad, arena) else grad


def _begin(ctx: Any, move: Move, views: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Write the outputs, which come after the tokens; what is needed to make them again comes last, and is kept."""
    ctx.set_materialize_grads(False)
    ctx.move, ctx.count = move, len(tensors)
    first, last = len(move.touched), len(move.touched) + len(move.writes)
    write_rows(views, tensors[first:last])
    if move.made is not None:
        ctx.save_for_backward(*tensors[first:])
    return [token.detach() for token in tensors[:first]]


def _end(ctx: Any, move: Move, gradients: dict[int, torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The gradients of all that an exchange was given."""
    if move.reach.hooks:
        move.call_hooks(gradients)
    made = move.made
    reached = None if made is None else move.reach.of_members(made.members)
    if made is not None and reached is not None and reached.any():
        saved = ctx.saved_tensors
        outputs = list(zip(move.writes, saved, strict=False))
        operands = saved[len(outputs) : len(saved) - len(made.kernel.weights)]
        if must_run_again(made, operands, outputs, reached):
            found = [(w, g) for w, g in zip(move.writes, move.of_outputs(gradients), strict=True) if g is not None]
            again = gradients_again(made, operands, found, reached)
            return (None, None, None, *gradients.values(), *[None] * len(outputs), *again)
    also = ctx.count - len(move.touched) - len(move.writes)
    return (None, None, None, *gradients.values(), *move.of_outputs(gradients), *[None] * also)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        move: Move,
        arenas: Sequence[torch.Tensor],
        views: Sequence[torch.Tensor],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        tokens = _begin(ctx, move, views, tensors)
        return (*tokens, *read_rows(arenas, move.reads))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        move: Move = ctx.move
        gradients = dict(zip(move.touched, grads, strict=False))
        add = move.add_recorded if torch.is_grad_enabled() else move.add
        add(gradients, grads[len(gradients) :])
        return _end(ctx, move, gradients)


class _HandOut(torch.autograd.Function):
    """The last exchange of a plan, where each of its outputs is wanted by itself.

    Each is a tensor with memory of its own, which they may change in place; and of those that the loss does not depend on,
    backward hears nothing.
    """

    @staticmethod
    def forward(
        ctx: Any,
        move: Move,
        arenas: Sequence[torch.Tensor],
        views: Sequence[torch.Tensor],
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        tokens = _begin(ctx, move, views, tensors)
        return (*tokens, *[row for block in read_rows(arenas, move.reads) for row in unbind_copy(block)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        move: Move = ctx.move
        gradients = dict(zip(move.touched, grads, strict=False))
        first = len(gradients)
        for read, _ in move.reads:
            of_read = grads[first : first + read.size]
            first += read.size
            received = np.flatnonzero([grad is not None for grad in of_read])
            if len(received):
                rows = move.rows_of(read)[received]
                added = torch.stack([grad for grad in of_read if grad is not None])
                arena = move.arena_for(gradients, read, added)
                move.reach.add(read, rows, len(arena))
                add = arena.index_add if torch.is_grad_enabled() else arena.index_add_
                gradients[read.arena] = add(0, torch.from_numpy(rows).to(added.device), added)
        return _end(ctx, move, gradients)


class Grow(torch.autograd.Function):
    """The token of an arena that has grown: the gradient of what it was before is the first rows of its gradient."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, grown: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.rows = len(token)
        return grown.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        (grad,) = grads
        return None if grad is None else grad[: ctx.rows], None


class Given(torch.autograd.Function):
    """Tensors of the user's as one block of rows. Those that backward does not reach get no gradient, rather than zeros."""

    @staticmethod
    def forward(ctx: Any, reach: Reach, write: Write, is_ragged: bool, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.reach, ctx.write = reach, write
        ctx.rows = [len(tensor) for tensor in tensors] if is_ragged else None
        return torch.cat(tensors) if is_ragged else torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        (grad,) = grads
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        reached = ctx.reach.of_write(ctx.write)
        if ctx.rows is None:
            found = reached.tolist()
            each = grad.unbind(0)
        else:
            ends = np.cumsum(ctx.rows)
            found = [bool(reached[end - rows : end].any()) for end, rows in zip(ends, ctx.rows, strict=True)]
            each = grad.split(ctx.rows)
        return (None, None, None, *[one if is_reached else None for one, is_reached in zip(each, found, strict=True)])


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
exchange = super(torch.autograd.Function, _Exchange).apply
hand_out = super(torch.autograd.Function, _HandOut).apply
