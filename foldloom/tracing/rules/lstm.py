"""An LSTM over many sequences of different lengths, on a CPU.

Torch's own runs a packed sequence operation by operation, and backward takes one product for the weights at every time step. Here the
sequences stand longest first, so that those that go on are always the first rows: each step reads and writes slices, keeps what
backward will need, and the products for inputs and weights are taken once over all steps. `python -m benchmarks sequences` compares the two.

Both directions run side by side, one of them over sequences turned round: tensors have the direction first. Gates are kept in the
order input, forget, output, candidate: three sigmoids are then one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldloom.caching import cached_property
from foldloom.execution.pool import empty
from foldloom.graph.ragged import Ragged
from foldloom.torch_private import are_transforms_active, is_any_autocast_enabled


class Steps:
    """How the rows of sequences, sequence after sequence, stand when they are sorted by time, longest sequences first."""

    def __init__(self, lengths: Tensor, order: Tensor, directions: int) -> None:
        in_order = lengths[order]
        time = torch.arange(int(in_order[0])).unsqueeze(1)
        goes_on = time < in_order
        starts = (lengths.cumsum(0) - lengths)[order]
        rows = [starts + time, starts + in_order - 1 - time][:directions]
        self.positions = torch.stack([row[goes_on] for row in rows])
        """For each direction and each row by time, its place among the rows by sequence."""
        self.counts = goes_on.sum(1)
        """How many sequences each step has."""
        self._last_step = in_order - 1

    @cached_property
    def sizes(self) -> list[int]:
        return self.counts.tolist()

    @cached_property
    def _first(self) -> Tensor:
        return self.counts.cumsum(0) - self.counts

    @cached_property
    def previous(self) -> Tensor:
        """For each row by time the one before it, where the initial states come before all rows."""
        within = torch.arange(self.positions.shape[1]) - torch.repeat_interleave(self._first, self.counts)
        before = F.pad(self._first[:-1] + self.counts[0], (1, 0))
        return torch.repeat_interleave(before, self.counts) + within

    @cached_property
    def places(self) -> Tensor:
        """For each row by sequence, and each direction, its place among the rows by time, one direction after the other."""
        rows = torch.arange(self.positions.numel()).view_as(self.positions)
        return torch.empty_like(self.positions).scatter_(1, self.positions, rows).T.flatten()

    @cached_property
    def ends(self) -> Tensor:
        """The last row of each sequence."""
        return self._first[self._last_step] + torch.arange(len(self._last_step))


_FEW = 4
"""So many sequences are needed for a step of ours to cost less than one of torch's."""


def takes(module: nn.LSTM, sequences: Ragged) -> bool:
    return (
        sequences.values.device.type == "cpu"
        and len(sequences.lengths) >= _FEW
        and bool((sequences.lengths > 0).all())
        and module.proj_size == 0
        and not is_any_autocast_enabled()
        and not are_transforms_active()
    )


def run(
    module: nn.LSTM, sequences: Ragged, initial: tuple[Tensor, Tensor] | None, noise: Tensor | None = None
) -> tuple[Ragged, Any]:
    """What the module returns for each sequence: the states of the last layer, and the last of each layer and direction.

    ``initial`` and the last states have sequences second, as torch has them. ``noise`` is what layers are multiplied by instead of
    dropout, by row and layer.
    """
    lengths, values = sequences.lengths, sequences.values
    order = torch.argsort(lengths, descending=True, stable=True)
    back = torch.argsort(order)
    directions = 2 if module.bidirectional else 1
    steps = Steps(lengths, order, directions)
    size = (directions, len(lengths), module.hidden_size)
    last_h, last_c = [], []
    for layer in range(module.num_layers):
        first = layer * directions
        if initial is None:
            h, c = values.new_zeros(size), values.new_zeros(size)
        else:
            h, c = [part[first : first + directions].index_select(1, order) for part in initial]
        count = 4 if module.bias else 2
        names = module._flat_weights_names[first * count : (first + directions) * count]
        weights = [getattr(module, name) for name in names]
        values, h, c = _layer(steps, values, h, c, *weights)
        last_h.append(h.index_select(1, back))
        last_c.append(c.index_select(1, back))
        if noise is not None and layer < module.num_layers - 1:
            values = values * noise[:, layer]
        elif module.dropout and layer < module.num_layers - 1:
            values = F.dropout(values, module.dropout, module.training)
    return Ragged(values, lengths), (torch.cat(last_h), torch.cat(last_c))


class _Layer(torch.autograd.Function):
    """Of one layer, in all directions: the states by sequence, and the last state and cell of each sequence."""

    @staticmethod
    def forward(ctx: Any, steps: Steps, values: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        size, sizes = h.shape[2], steps.sizes
        for_input, for_state, *biases = _by_kind(weights, len(h))
        directions, count = steps.positions.shape

        def room_for(width: int) -> Tensor:
            return empty((directions, count, width), values.dtype, values.device)

        rows, gates = room_for(values.shape[1]), room_for(4 * size)
        hidden, cells, squashed = room_for(size), room_for(size), room_for(size)
        torch.index_select(values, 0, steps.positions.flatten(), out=rows.view(directions * count, -1))
        torch.bmm(rows, for_input.mT, out=gates)
        if biases:
            gates += (biases[0] + biases[1]).unsqueeze(1)
        by_state, before_h, before_c = for_state.mT, h, c
        parts = (gates, gates[..., : 3 * size], *gates.split(size, 2), hidden, cells, squashed)
        for going_on, gate, opened, input, forget, output, candidate, hidden_now, cell, squashed_now in _by_step(
            sizes, parts
        ):
            gate.baddbmm_(before_h.narrow(1, 0, going_on), by_state)
            opened.sigmoid_()
            candidate.tanh_()
            torch.mul(forget, before_c.narrow(1, 0, going_on), out=cell)
            cell.addcmul_(input, candidate)
            torch.tanh(cell, out=squashed_now)
            torch.mul(output, squashed_now, out=hidden_now)
            before_h, before_c = hidden_now, cell
        ctx.steps, ctx.given = steps, 3 + len(weights)
        ctx.save_for_backward(values, h, c, *weights, rows, gates, hidden, cells, squashed, for_input, for_state)
        return _by_sequence(hidden, steps), hidden[:, steps.ends], cells[:, steps.ends]

    @staticmethod
    def backward(ctx: Any, *grads_or_none: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(grad is None for grad in grads_or_none):
            return (None,) * int(ctx.given + 1)
        grads = _with_zeros(ctx, grads_or_none)
        if torch.is_grad_enabled():
            return _backward_recorded(ctx, grads)
        steps, (_, h, c, *weights) = ctx.steps, ctx.saved_tensors[: ctx.given]
        rows, gates, hidden, cells, squashed, for_input, for_state = ctx.saved_tensors[ctx.given :]
        grad_states, grad_last_h, grad_last_c = grads
        size, sizes = h.shape[2], steps.sizes
        input, forget, output, candidate = gates.split(size, 2)
        before_c = torch.cat((c, cells), 1)[:, steps.previous]

        # All that does not wait for later steps: what each gate passes on of the gradient of its cell, or of its state.
        grad_gates = torch.empty_like(gates)
        through_input, through_forget, through_output, through_candidate = grad_gates.split(size, 2)
        torch.mul(input * (1 - input), candidate, out=through_input)
        torch.mul(forget * (1 - forget), before_c, out=through_forget)
        torch.mul(output * (1 - output), squashed, out=through_output)
        torch.mul(input, 1 - candidate.square(), out=through_candidate)
        to_cell = output * (1 - squashed.square())

        grad_hidden = _by_time(grad_states, steps)
        grad_cells = torch.zeros_like(cells)
        grad_hidden.index_add_(1, steps.ends, grad_last_h)
        grad_cells.index_add_(1, steps.ends, grad_last_c)
        grad_h, grad_c = torch.zeros_like(h), torch.zeros_like(c)
        of_cell = grad_gates[..., : 2 * size].unflatten(2, (2, size))
        parts = (
            grad_gates, of_cell, through_output, through_candidate, grad_cells.unsqueeze(2),
            to_cell, forget, grad_cells, grad_hidden,
        )  # fmt: skip
        by_time = list(_by_step(sizes, parts))
        for time in range(len(sizes) - 1, -1, -1):
            going_on, gate, both, of_output, of_candidate, for_both, through, kept, cell, hidden_now = by_time[time]
            earlier_c, earlier_h = by_time[time - 1][-2:] if time else (grad_c, grad_h)
            cell.addcmul_(hidden_now, through)
            both.mul_(for_both)
            of_output.mul_(hidden_now)
            of_candidate.mul_(cell)
            earlier_h.narrow(1, 0, going_on).baddbmm_(gate, for_state)
            earlier_c.narrow(1, 0, going_on).addcmul_(cell, kept)

        grad_values = None
        if ctx.needs_input_grad[1]:
            grad_values = torch.zeros_like(rows[0])
            for of_direction, positions in zip(grad_gates @ for_input, steps.positions, strict=True):
                grad_values.index_add_(0, positions, of_direction)
        before_h = torch.cat((h, hidden), 1)[:, steps.previous]
        of_kinds = [grad_gates.mT @ rows, grad_gates.mT @ before_h]
        if len(weights) == 4 * len(h):
            of_kinds += [grad_gates.sum(1)] * 2
        return None, grad_values, grad_h, grad_c, *_by_direction(of_kinds)


def _with_zeros(ctx: Any, grads: Sequence[Tensor | None]) -> list[Tensor]:
    """The gradients of states, last states and last cells, zeros where there is none."""
    values, h, c = ctx.saved_tensors[:3]
    shapes = ((len(values), h.shape[0] * h.shape[2]), h.shape, c.shape)
    return [h.new_zeros(shape) if grad is None else grad for grad, shape in zip(grads, shapes, strict=True)]


def _by_step(sizes: list[int], parts: Sequence[Tensor]) -> Iterator[tuple[Any, ...]]:
    """How many sequences each step has, and its rows of each tensor: all made beforehand, which takes less than slice by slice."""
    return zip(sizes, *[part.split(sizes, 1) for part in parts], strict=True)


# Function.apply without its first line, which looks through all arguments for the wrappers of function transforms.
_layer = super(torch.autograd.Function, _Layer).apply


def _backward_recorded(ctx: Any, grads: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """For derivatives of derivatives: the same in ordinary operations, which autograd knows."""
    needed, given = ctx.needs_input_grad[1:], ctx.saved_tensors[: ctx.given]
    with torch.enable_grad():
        results = _plain(ctx.steps, *given)
        wanted = [tensor for tensor, is_needed in zip(given, needed, strict=True) if is_needed]
        found = iter(torch.autograd.grad(results, wanted, grads, create_graph=True, allow_unused=True))
    return None, *[next(found) if is_needed else None for is_needed in needed]


def _plain(steps: Steps, values: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden, cells = [], []
    of_direction = len(weights) // len(h)
    for number, positions in enumerate(steps.positions):
        own = weights[number * of_direction : (number + 1) * of_direction]
        state, all_states = (h[number], c[number]), []
        for rows in values[positions].split(steps.sizes):
            state = torch.lstm_cell(rows, [part[: len(rows)] for part in state], *own)
            all_states.append(state)
        hidden.append(torch.cat([h for h, _ in all_states]))
        cells.append(torch.cat([c for _, c in all_states]))
    stacked_h, stacked_c = torch.stack(hidden), torch.stack(cells)
    return _by_sequence(stacked_h, steps), stacked_h[:, steps.ends], stacked_c[:, steps.ends]


def _by_sequence(hidden: Tensor, steps: Steps) -> Tensor:
    """Rows by time as rows by sequence, the directions side by side."""
    return hidden.flatten(0, 1).index_select(0, steps.places).view(hidden.shape[1], -1)


def _by_time(states: Tensor, steps: Steps) -> Tensor:
    """The other way round."""
    return torch.stack(
        [part[place] for part, place in zip(states.chunk(len(steps.positions), 1), steps.positions, strict=True)]
    )


def _by_kind(weights: Sequence[Tensor], directions: int) -> list[Tensor]:
    """For the input, for the state, and if there are any both biases: each of all directions, gates in our order."""
    kinds = len(weights) // directions
    return [torch.stack([_sorted_gates(weight.detach()) for weight in weights[kind::kinds]]) for kind in range(kinds)]


def _by_direction(of_kinds: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the order of torch's weights and of its gates. Exchanging the last two gates is its own inverse."""
    return [_sorted_gates(kind[direction]) for direction in range(len(of_kinds[0])) for kind in of_kinds]


def _sorted_gates(weight: Tensor) -> Tensor:
    """Torch has the candidate before the output gate."""
    first, second, third, fourth = weight.chunk(4)
    return torch.cat((first, second, fourth, third))
