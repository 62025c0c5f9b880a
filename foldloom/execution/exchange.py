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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from foldloom.execution.kernels import dtype_of
from foldloom.plan import Access, Plan, Read, Write


class Buffers:
    """The arenas of one run, and where autograd stands with each of them."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.indices = torch.from_numpy(plan.indices).to(device)
        self._rows: list[torch.Tensor] = []
        self._token: list[torch.Tensor] = []
        for arena in plan.arenas:
            shape, dtype = (arena.rows, *arena.type.shape), dtype_of(arena.type)
            # Constants are read where they are; see place_inputs.
            self._rows.append(torch.empty(0 if arena.constant else shape, dtype=dtype, device=device))
            self._token.append(torch.empty((), dtype=dtype, device=device).expand(shape))
        # Writing through an alias with a version counter of its own: autograd would otherwise take every write for a
        # change of the rows that earlier steps saved for their backward.
        self._writable = [rows.data for rows in self._rows]

    def place_inputs(self, inputs: Sequence[torch.Tensor]) -> tuple[list[Write], list[torch.Tensor]]:
        """Take the constants as they are; what is left must be written by the first exchange."""
        writes: list[Write] = []
        tensors: list[torch.Tensor] = []
        for write, tensor in zip(self.plan.inputs, inputs, strict=True):
            if self.plan.arenas[write.arena].constant:
                self._rows[write.arena] = tensor
            else:
                writes.append(write)
                tensors.append(tensor)
        return writes, tensors

    def exchange(
        self, writes: Sequence[Write], outputs: Sequence[torch.Tensor], reads: Sequence[Read]
    ) -> list[torch.Tensor]:
        """Write the outputs of one step and read the operands of the next, in argument order."""
        if not torch.is_grad_enabled():
            self.write(writes, outputs)
            return self.read(reads)
        arenas = self.plan.arenas
        tracked_reads = [read for read in reads if arenas[read.arena].differentiable]
        tracked_writes: list[Write] = []
        tracked_outputs: list[torch.Tensor] = []
        for write, output in zip(writes, outputs, strict=True):
            if arenas[write.arena].differentiable:
                tracked_writes.append(write)
                tracked_outputs.append(output)
            else:
                self.write((write,), (output,))
        touched = list(dict.fromkeys([item.arena for item in (*tracked_writes, *tracked_reads)]))
        if not touched:
            return self.read(reads)
        tokens = [self._token[arena] for arena in touched]
        results = _Exchange.apply(self, tracked_writes, tracked_reads, touched, *tokens, *tracked_outputs)
        for arena, token in zip(touched, results, strict=False):
            self._token[arena] = token
        tracked = list(results[len(touched) :])
        if len(tracked_reads) == len(reads):
            return tracked
        remaining = iter(tracked)
        operands: list[torch.Tensor] = []
        for read in reads:
            if arenas[read.arena].differentiable:
                operands += [next(remaining) for _ in range(read.slots)]
            else:
                operands += self.read((read,))
        return operands

    def write(self, writes: Sequence[Write], outputs: Sequence[torch.Tensor]) -> None:
        for write, output in zip(writes, outputs, strict=True):
            self._writable[write.arena].narrow(0, write.start, write.count).copy_(output)

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        operands: list[torch.Tensor] = []
        for read in reads:
            rows = self._rows[read.arena]
            if read.access is Access.SLICE:
                operands.append(rows.narrow(0, read.start, read.count))
            elif read.access is Access.BROADCAST:
                operands.append(rows.narrow(0, read.start, 1).expand(read.count, *rows.shape[1:]))
            else:
                gathered = rows.index_select(0, self.indices.narrow(0, read.start, read.count * read.slots))
                operands += gathered.split(read.count) if read.slots > 1 else [gathered]
        return operands

    def new_token(self, arena: int) -> torch.Tensor:
        token = self._token[arena]
        return torch.empty((), dtype=token.dtype, device=token.device).expand(token.shape)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        buffers: Buffers,
        writes: Sequence[Write],
        reads: Sequence[Read],
        touched: Sequence[int],
        *tokens_and_outputs: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.indices, ctx.writes, ctx.reads, ctx.touched = buffers.indices, writes, reads, touched
        ctx.tokens = [(token.shape, token.dtype, token.device) for token in tokens_and_outputs[: len(touched)]]
        buffers.write(writes, tokens_and_outputs[len(touched) :])
        return (*[buffers.new_token(arena) for arena in touched], *buffers.read(reads))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        gradients = _Gradients(ctx.touched, ctx.tokens, grads[: len(ctx.touched)], ctx.indices)
        operand_grads = iter(grads[len(ctx.touched) :])
        add = gradients.add_recorded if torch.is_grad_enabled() else gradients.add
        for read in ctx.reads:
            add(read, operand_grads)
        outputs = [gradients.of_output(write) for write in ctx.writes]
        return (None, None, None, None, *gradients.by_arena.values(), *outputs)


class _Gradients:
    """The gradient arenas of one backward pass, as one exchange sees them."""

    def __init__(
        self,
        touched: Sequence[int],
        tokens: Sequence[tuple[torch.Size, torch.dtype, torch.device]],
        received: Sequence[torch.Tensor | None],
        indices: torch.Tensor,
    ) -> None:
        self.by_arena: dict[int, torch.Tensor | None] = dict(zip(touched, received, strict=True))
        self._tokens = dict(zip(touched, tokens, strict=True))
        self._indices = indices

    def add(self, read: Read, operand_grads: Iterator[torch.Tensor | None]) -> None:
        for slot in range(read.slots):
            grad = next(operand_grads)
            if grad is None:
                continue
            arena = self._arena(read.arena)
            if read.access is Access.SLICE:
                arena.narrow(0, read.start, read.count).add_(grad)
            elif read.access is Access.BROADCAST:
                arena.select(0, read.start).add_(grad.sum(0))
            else:
                arena.index_add_(0, self._indices.narrow(0, read.start + slot * read.count, read.count), grad)

    def add_recorded(self, read: Read, operand_grads: Iterator[torch.Tensor | None]) -> None:
        for slot in range(read.slots):
            grad = next(operand_grads)
            if grad is None:
                continue
            if read.access is Access.GATHER:
                rows = self._indices.narrow(0, read.start + slot * read.count, read.count)
            else:
                rows = torch.arange(read.start, read.start + read.count, device=grad.device)
                if read.access is Access.BROADCAST:
                    rows = rows[:1].expand(read.count)
            self.by_arena[read.arena] = self._arena(read.arena).index_add(0, rows, grad)

    def of_output(self, write: Write) -> torch.Tensor | None:
        arena = self.by_arena[write.arena]
        return None if arena is None else arena.narrow(0, write.start, write.count)

    def _arena(self, number: int) -> torch.Tensor:
        arena = self.by_arena[number]
        if arena is None:
            shape, dtype, device = self._tokens[number]
            arena = self.by_arena[number] = torch.zeros(shape, dtype=dtype, device=device)
        return arena
