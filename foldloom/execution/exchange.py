"""The exchange between two steps: outputs go into their arenas, operands come out.

Autograd must see three things that plain buffers hide: that an operand depends on the outputs that filled its rows, that a
row's gradient is the sum over everyone who read it, and that it is complete before the step that made it runs backward.
All three follow from treating an arena as a value that each exchange passes on:

    arena', operands = exchange(arena, outputs)

The forward pass never copies an arena: what autograd is given in its place is a *token* of the same shape that holds no
data. Backward, the token's gradient is the real thing, the gradient arena. Each exchange adds the gradients of its
operands to it, takes the gradients of its outputs from it, and passes it on to the exchange before. So the order is
kept by the graph, every backward pass has gradient arenas of its own, and they are freed when the pass is over.

Hazard: in the usual pass the gradient arena is changed in place, which is safe because each token has one reader. When the
backward pass is itself recorded (``create_graph=True``) the same arithmetic is done out of place.

An exchange runs between any two steps, so for narrow steps its own cost is what counts: views are cut by one ``split`` for
all steps, because cutting them one at a time costs more than copying a few rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from foldloom.execution.kernels import dtype_of
from foldloom.execution.pool import empty, zeros
from foldloom.graph import Ints
from foldloom.planning.plans import Access, Arena, Plan, Read, Write


class Buffers:
    """The arenas of one batch, and where autograd stands with each of them.

    A batch may take several plans, each going on where the one before has ended; then arenas grow. Exchanges must come in
    the order of a plan's steps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._untracked: set[int] = set()
        self._rows: list[torch.Tensor] = []
        self._token: list[torch.Tensor] = []
        self._like: list[torch.Tensor] = []
        self._constant: list[bool] = []
        self._inputs: Sequence[Write] = ()
        self._unwritten: list[Iterator[torch.Tensor]] = []
        self._indices: Iterator[torch.Tensor] = iter(())
        self._numbers: dict[int, Any] = {}

    def admit(self, plan: Plan) -> None:
        """Make room for a plan, whose exchanges come next."""
        rows_of_write: list[list[int]] = [[] for _ in plan.arenas]
        for write in (*plan.inputs, *[write for step in plan.steps for write in step.writes]):
            rows_of_write[write.arena].append(write.size)
        # Moves of earlier plans keep the shapes that their tokens had.
        self._like = list(self._like)
        self._unwritten, self._numbers = [], {}
        for number, (arena, sizes) in enumerate(zip(plan.arenas, rows_of_write, strict=True)):
            if number == len(self._rows):
                self._add(arena)
            elif arena.rows > len(self._like[number]):
                self._grow(number, arena)
            # Writing goes through an alias with a version counter of its own (`.data`): autograd would otherwise take
            # every write for a change of the rows that earlier steps saved for their backward.
            fresh: Sequence[torch.Tensor] = ()
            if sizes and not arena.constant:
                fresh = self._rows[number].data[arena.kept : arena.rows].split_with_sizes(sizes)
            self._unwritten.append(iter(fresh))
        reads = (*[read for step in plan.steps for read in step.reads], *plan.outputs)
        gathered = [read.size * read.slots for read in reads if read.access is _GATHER]
        self._indices = iter(torch.from_numpy(plan.indices).to(self._device).split_with_sizes(gathered))
        self._inputs = plan.inputs

    def _add(self, arena: Arena) -> None:
        shape, dtype = (arena.rows, *arena.type.shape), dtype_of(arena.type)
        # Constants are read where they are; see place_inputs.
        self._rows.append(empty((0,) if arena.constant else shape, dtype, self._device))
        self._token.append(torch.empty((), dtype=dtype, device=self._device).expand(shape))
        self._like.append(self._token[-1])
        self._constant.append(arena.constant)
        if not arena.differentiable:
            self._untracked.add(len(self._rows) - 1)

    def _grow(self, number: int, arena: Arena) -> None:
        old = self._rows[number]
        shape = (max(arena.rows, 2 * len(old)), *arena.type.shape)
        self._rows[number] = empty(shape, old.dtype, self._device)
        self._rows[number].data[: arena.kept].copy_(old[: arena.kept])
        self._like[number] = torch.empty((), dtype=old.dtype, device=self._device).expand(shape)
        token = self._token[number]
        self._token[number] = _Grow.apply(token, self._like[number]) if token.requires_grad else self._like[number]

    def row(self, arena: int, row: int) -> torch.Tensor:
        """A row that has been written, for somebody who wants its numbers and no gradient."""
        return self._rows[arena][row]

    def rows(self, arena: int, rows: Ints) -> torch.Tensor:
        return self._rows[arena].index_select(0, torch.from_numpy(rows).to(self._device))

    def number(self, arena: int, row: int) -> Any:
        """The only number of a row, as Python's. Many examples may ask, so an arena is looked into through numpy, where it can be."""
        numbers = self._numbers.get(arena)
        if numbers is None:
            rows = self._rows[arena]
            readable = rows.device.type == "cpu" and rows.dtype in _IN_NUMPY
            numbers = self._numbers[arena] = rows.detach().numpy() if readable else rows
        return numbers.item(row) if type(numbers) is np.ndarray else numbers[row].item()

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
        self, writes: Sequence[Write], outputs: Sequence[torch.Tensor], reads: Sequence[Read]
    ) -> Sequence[torch.Tensor]:
        """Write the outputs of one step and read the operands of the next, in argument order."""
        views = [next(self._unwritten[write.arena]) for write in writes]
        wanted = [(read, next(self._indices) if read.access is _GATHER else None) for read in reads]
        if not torch.is_grad_enabled():
            _write(views, outputs)
            return _read(self._rows, wanted)
        untracked = self._untracked
        tracked = wanted
        if untracked:
            tracked = [item for item in wanted if item[0].arena not in untracked]
            if any([write.arena in untracked for write in writes]):  # noqa: C419 (a generator is slower here)
                writes, views, outputs = self._write_untracked(writes, views, outputs)
        touched = list(dict.fromkeys([*[write.arena for write in writes], *[read.arena for read, _ in tracked]]))
        if not touched:
            return _read(self._rows, wanted)
        tokens = self._token
        move = _Move(self._like, touched, writes, tracked)
        results = _exchange(move, self._rows, views, *[tokens[arena] for arena in touched], *outputs)
        for position, arena in enumerate(touched):
            tokens[arena] = results[position]
        operands: Sequence[torch.Tensor] = results[len(touched) :]
        return operands if len(tracked) == len(reads) else self._interleave(wanted, operands)

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
                operands += _read(self._rows, (item,))
            else:
                operands += [next(remaining) for _ in range(item[0].slots)]
        return operands

    def shared_rows(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        """The arenas that the operands of these reads are part of, so that changing an operand would change them."""
        return [self._rows[read.arena] for read in reads if read.access is not _GATHER]


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
_is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]


def _write(views: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    for view, output in zip(views, outputs, strict=True):
        view.copy_(output)


def _read(arenas: Sequence[torch.Tensor], reads: Iterable[tuple[Read, torch.Tensor | None]]) -> list[torch.Tensor]:
    operands: list[torch.Tensor] = []
    for read, index in reads:
        rows = arenas[read.arena]
        if index is not None:
            gathered = rows.index_select(0, index)
            operands += gathered.chunk(read.slots) if read.slots > 1 else (gathered,)
        elif read.access is Access.SLICE:
            operands.append(rows[read.start : read.start + read.size])
        else:
            operands.append(rows.narrow(0, read.start, 1).expand(read.size, *rows.shape[1:]))
    return operands


_SMALL_GATHER = 1 << 17
"""Gradients of fewer numbers than this are joined before they are added: a copy is cheaper than another call."""


class _Move:
    """What one exchange moves, as far as autograd is concerned.

    It must not hold what holds it: a graph that is part of a reference cycle keeps a whole batch alive until the garbage
    collector comes by.
    """

    __slots__ = ("like", "reads", "touched", "writes")

    def __init__(
        self,
        like: Sequence[torch.Tensor],
        touched: Sequence[int],
        writes: Sequence[Write],
        reads: Sequence[tuple[Read, torch.Tensor | None]],
    ) -> None:
        self.like = like
        self.touched = touched
        self.writes = writes
        self.reads = reads

    def add(self, gradients: dict[int, torch.Tensor | None], operand_grads: Sequence[torch.Tensor | None]) -> None:
        """Add the gradients of the operands to the gradient arenas."""
        slot = 0
        for read, index in self.reads:
            grads = operand_grads[slot : slot + read.slots]
            slot += read.slots
            received = [grad for grad in grads if grad is not None]
            if not received:
                continue
            arena = gradients[read.arena]
            if arena is None:
                arena = gradients[read.arena] = self._zeros(read.arena)
            if index is None:
                if read.access is Access.SLICE:
                    arena[read.start : read.start + read.size].add_(received[0])
                else:
                    arena.select(0, read.start).add_(received[0].sum(0))
            elif len(received) == read.slots and received[0].numel() * read.slots < _SMALL_GATHER:
                arena.index_add_(0, index, torch.cat(received) if read.slots > 1 else _apart(received[0], arena))
            else:
                for grad, rows in zip(grads, index.split(read.size), strict=True):
                    if grad is not None:
                        arena.index_add_(0, rows, _apart(grad, arena))

    def add_recorded(
        self, gradients: dict[int, torch.Tensor | None], operand_grads: Sequence[torch.Tensor | None]
    ) -> None:
        """The same, differentiably."""
        remaining = iter(operand_grads)
        for read, index in self.reads:
            for slot in range(read.slots):
                grad = next(remaining)
                if grad is None:
                    continue
                arena = gradients[read.arena]
                if arena is None:
                    arena = self._zeros(read.arena)
                if index is not None:
                    rows = index.narrow(0, slot * read.size, read.size)
                elif read.access is Access.SLICE:
                    rows = torch.arange(read.start, read.start + read.size, device=grad.device)
                else:
                    rows = torch.full((read.size,), read.start, device=grad.device)
                gradients[read.arena] = arena.index_add(0, rows, grad)

    def _zeros(self, arena: int) -> torch.Tensor:
        like = self.like[arena]
        return zeros(like.shape, like.dtype, like.device)


def _apart(grad: torch.Tensor, arena: torch.Tensor) -> torch.Tensor:
    """A gradient that a function passed on as it came (an addition does) is part of the arena, and cannot be added to it."""
    return grad.clone() if _is_alias_of(grad, arena) else grad


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        move: _Move,
        arenas: Sequence[torch.Tensor],
        views: Sequence[torch.Tensor],
        *tokens_and_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.move = move
        token_count = len(move.touched)
        _write(views, tokens_and_outputs[token_count:])
        tokens = [token.detach() for token in tokens_and_outputs[:token_count]]
        return (*tokens, *_read(arenas, move.reads))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        move: _Move = ctx.move
        gradients = dict(zip(move.touched, grads, strict=False))
        add = move.add_recorded if torch.is_grad_enabled() else move.add
        add(gradients, grads[len(gradients) :])
        outputs: list[torch.Tensor | None] = []
        for write in move.writes:
            arena = gradients[write.arena]
            outputs.append(None if arena is None else arena[write.start : write.start + write.size])
        return (None, None, None, *gradients.values(), *outputs)


class _Grow(torch.autograd.Function):
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


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
_exchange = super(torch.autograd.Function, _Exchange).apply
