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

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from foldloom.execution.kernels import dtype_of
from foldloom.execution.pool import empty, zeros
from foldloom.plan import Access, Plan, Read, Write


class Buffers:
    """The arenas of one run, and where autograd stands with each of them.

    Exchanges must come in the order of the plan's steps.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._differentiable = [arena.differentiable for arena in plan.arenas]
        self._rows: list[torch.Tensor] = []
        self._token: list[torch.Tensor] = []
        self._unwritten: list[Iterator[torch.Tensor]] = []
        rows_of_write: list[list[int]] = [[] for _ in plan.arenas]
        for write in (*plan.inputs, *[write for step in plan.steps for write in step.writes]):
            rows_of_write[write.arena].append(write.count)
        for arena, sizes in zip(plan.arenas, rows_of_write, strict=True):
            shape, dtype = (arena.rows, *arena.type.shape), dtype_of(arena.type)
            # Constants are read where they are; see place_inputs.
            rows = empty((0,) if arena.constant else shape, dtype, device)
            self._rows.append(rows)
            self._token.append(torch.empty((), dtype=dtype, device=device).expand(shape))
            # Writing goes through an alias with a version counter of its own (`.data`): autograd would otherwise take
            # every write for a change of the rows that earlier steps saved for their backward.
            self._unwritten.append(iter(() if arena.constant else rows.data.split(sizes)))
        reads = (*[read for step in plan.steps for read in step.reads], *plan.outputs)
        gathered = [read.count * read.slots for read in reads if read.access is Access.GATHER]
        self._indices = iter(torch.from_numpy(plan.indices).to(device).split(gathered))
        self._inputs = plan.inputs
        self._like = list(self._token)

    def place_inputs(self, inputs: Sequence[torch.Tensor]) -> tuple[list[Write], list[torch.Tensor]]:
        """Take the constants as they are; what is left must be written by the first exchange."""
        writes: list[Write] = []
        tensors: list[torch.Tensor] = []
        for write, tensor in zip(self._inputs, inputs, strict=True):
            if self._rows[write.arena].shape[0] < write.count:
                self._rows[write.arena] = tensor
            else:
                writes.append(write)
                tensors.append(tensor)
        return writes, tensors

    def exchange(
        self, writes: Sequence[Write], outputs: Sequence[torch.Tensor], reads: Sequence[Read]
    ) -> Sequence[torch.Tensor]:
        """Write the outputs of one step and read the operands of the next, in argument order."""
        gather = Access.GATHER
        indices = [next(self._indices) if read.access is gather else None for read in reads]
        if not torch.is_grad_enabled():
            for write, output in zip(writes, outputs, strict=True):
                next(self._unwritten[write.arena]).copy_(output)
            return self.read(reads, indices)
        differentiable = self._differentiable
        transfer = _Transfer(self._rows, self._like)
        tensors: list[torch.Tensor] = []
        for write, output in zip(writes, outputs, strict=True):
            view = next(self._unwritten[write.arena])
            if differentiable[write.arena]:
                transfer.writes.append(write)
                transfer.views.append(view)
                transfer.touched[write.arena] = None
                tensors.append(output)
            else:
                view.copy_(output)
        for read, index in zip(reads, indices, strict=True):
            if differentiable[read.arena]:
                transfer.reads.append(read)
                transfer.indices.append(index)
                transfer.touched[read.arena] = None
        if not transfer.touched:
            return self.read(reads, indices)
        tokens = [self._token[arena] for arena in transfer.touched]
        transfer.tokens = tokens
        results = _exchange(transfer, *tokens, *tensors)
        for arena, token in zip(transfer.touched, results, strict=False):
            self._token[arena] = token
        tracked = results[len(transfer.touched) :]
        return tracked if len(transfer.reads) == len(reads) else self._interleave(reads, indices, tracked)

    def _interleave(
        self, reads: Sequence[Read], indices: Sequence[torch.Tensor | None], tracked: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The operands in argument order, where only some of them are tracked."""
        remaining = iter(tracked)
        operands: list[torch.Tensor] = []
        for read, index in zip(reads, indices, strict=True):
            if self._differentiable[read.arena]:
                operands += [next(remaining) for _ in range(read.slots)]
            else:
                operands += _read(self._rows, (read,), (index,))
        return operands

    def read(self, reads: Sequence[Read], indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        return _read(self._rows, reads, indices)


def _read(
    arenas: Sequence[torch.Tensor], reads: Sequence[Read], indices: Sequence[torch.Tensor | None]
) -> list[torch.Tensor]:
    operands: list[torch.Tensor] = []
    for read, index in zip(reads, indices, strict=True):
        rows = arenas[read.arena]
        if index is not None:
            gathered = rows.index_select(0, index)
            operands += gathered.split(read.count) if read.slots > 1 else (gathered,)
        elif read.access is Access.SLICE:
            operands.append(rows.narrow(0, read.start, read.count))
        else:
            operands.append(rows.narrow(0, read.start, 1).expand(read.count, *rows.shape[1:]))
    return operands


class _Transfer:
    """What one exchange moves, as far as autograd is concerned. It must not hold what holds it: a graph that is part of a
    reference cycle keeps a whole batch alive until the garbage collector comes by."""

    __slots__ = ("indices", "like", "reads", "rows", "tokens", "touched", "views", "writes")

    def __init__(self, rows: list[torch.Tensor], like: list[torch.Tensor]) -> None:
        self.rows = rows
        self.like = like
        self.writes: list[Write] = []
        self.views: list[torch.Tensor] = []
        self.reads: list[Read] = []
        self.indices: list[torch.Tensor | None] = []
        self.touched: dict[int, None] = {}
        self.tokens: list[torch.Tensor]

    def forward(self, outputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        for view, output in zip(self.views, outputs, strict=True):
            view.copy_(output)
        tokens = [token.detach() for token in self.tokens]
        results = (*tokens, *_read(self.rows, self.reads, self.indices))
        del self.views, self.rows, self.tokens
        return results

    def add(self, gradients: dict[int, torch.Tensor | None], operand_grads: Iterator[torch.Tensor | None]) -> None:
        """Add the gradients of the operands to the gradient arenas."""
        for read, index in zip(self.reads, self.indices, strict=True):
            pieces = None if index is None or read.slots == 1 else index.split(read.count)
            for slot in range(read.slots):
                grad = next(operand_grads)
                if grad is None:
                    continue
                arena = gradients[read.arena]
                if arena is None:
                    arena = gradients[read.arena] = self._zeros(read.arena)
                if index is not None:
                    arena.index_add_(0, index if pieces is None else pieces[slot], grad)
                elif read.access is Access.SLICE:
                    arena.narrow(0, read.start, read.count).add_(grad)
                else:
                    arena.select(0, read.start).add_(grad.sum(0))

    def add_recorded(
        self, gradients: dict[int, torch.Tensor | None], operand_grads: Iterator[torch.Tensor | None]
    ) -> None:
        """The same, differentiably."""
        for read, index in zip(self.reads, self.indices, strict=True):
            for slot in range(read.slots):
                grad = next(operand_grads)
                if grad is None:
                    continue
                arena = gradients[read.arena]
                if arena is None:
                    arena = self._zeros(read.arena)
                if index is not None:
                    rows = index.narrow(0, slot * read.count, read.count)
                elif read.access is Access.SLICE:
                    rows = torch.arange(read.start, read.start + read.count, device=grad.device)
                else:
                    rows = torch.full((read.count,), read.start, device=grad.device)
                gradients[read.arena] = arena.index_add(0, rows, grad)

    def _zeros(self, arena: int) -> torch.Tensor:
        like = self.like[arena]
        return zeros(like.shape, like.dtype, like.device)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, transfer: _Transfer, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.transfer = transfer
        return transfer.forward(tensors[len(transfer.touched) :])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        transfer: _Transfer = ctx.transfer
        gradients = dict(zip(transfer.touched, grads, strict=False))
        add = transfer.add_recorded if torch.is_grad_enabled() else transfer.add
        add(gradients, iter(grads[len(gradients) :]))
        outputs: list[torch.Tensor | None] = []
        for write in transfer.writes:
            arena = gradients[write.arena]
            outputs.append(None if arena is None else arena.narrow(0, write.start, write.count))
        return (None, *gradients.values(), *outputs)


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
_exchange = super(torch.autograd.Function, _Exchange).apply  # type: ignore[misc]
