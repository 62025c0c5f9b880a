"""torch's recurrent modules over sequences of different lengths, as a loop over time.

Their own code needs packed sequences, whose layout Python computes from the lengths. In a graph with dynamic shapes the
lengths are tensors. So all sequences run in lockstep, and those that have ended keep their state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from foldloom.graph.ragged import Ragged
from foldloom.torch_private import while_loop

States = tuple[Tensor, ...]
"""The hidden state, and for an LSTM the cell state: [members, size] each."""


def along_rows(module: torch.nn.RNNBase, sequences: Ragged, *initial: Tensor) -> list[Ragged | Tensor]:
    """The outputs for every row, and the final states of each sequence: [members, layers * directions, size] each."""
    values = sequences.values
    directions = 2 if module.bidirectional else 1
    last: list[States] = []
    for layer in range(module.num_layers):
        shown = []
        for backwards in (False, True)[:directions]:
            start = tuple([states[:, len(last)] for states in initial]) or _zeros(module, sequences)
            made, final = _along(module, f"_l{layer}{'_reverse' * backwards}", Ragged(values, sequences.lengths), start)
            shown.append(made)
            last.append(final)
        values = torch.cat(shown, 1)
    return [Ragged(values, sequences.lengths), *[torch.stack(states, 1) for states in zip(*last, strict=True)]]


def _zeros(module: torch.nn.RNNBase, sequences: Ragged) -> States:
    sizes = [module.proj_size or module.hidden_size]
    if module.mode == "LSTM":
        sizes.append(module.hidden_size)
    return tuple([sequences.values.new_zeros((sequences.lengths.shape[0], size)) for size in sizes])


def _along(module: torch.nn.RNNBase, suffix: str, sequences: Ragged, start: States) -> tuple[Tensor, States]:
    """One layer in one direction."""
    weights = {name: getattr(module, name + suffix, None) for name in ("weight_hh", "bias_hh", "weight_hr")}
    next_states = _CELLS[module.mode]
    lengths = sequences.lengths
    first = lengths.cumsum(0) - lengths
    # The input projection does not depend on the state, so it runs once for all rows.
    seen = F.linear(sequences.values, getattr(module, "weight_ih" + suffix), getattr(module, "bias_ih" + suffix, None))
    rows = seen.shape[0]

    def is_left(time: Tensor, *_: Tensor) -> Tensor:
        return time < lengths.max()

    def run(time: Tensor, shown: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        goes_on = time < lengths
        row = first + (lengths - 1 - time if suffix.endswith("reverse") else time)
        after = next_states(seen.index_select(0, row.clamp(0, rows - 1)), states, weights)
        # Outputs of sequences that have ended go to an extra row, which is dropped.
        shown = shown.index_put((torch.where(goes_on, row, rows),), after[0])
        kept = [torch.where(goes_on.unsqueeze(1), new, old) for new, old in zip(after, states, strict=True)]
        return time + 1, shown, *kept

    time = torch.zeros((), dtype=torch.int64, device=lengths.device)
    _, shown, *last = while_loop(is_left, run, (time, start[0].new_zeros((rows + 1, start[0].shape[1])), *start))
    return shown[:rows], tuple(last)


def _lstm(seen: Tensor, states: Sequence[Tensor], weights: dict[str, Any]) -> States:
    shown, memory = states
    gates = seen + F.linear(shown, weights["weight_hh"], weights["bias_hh"])
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
    memory = forget_gate.sigmoid() * memory + input_gate.sigmoid() * candidate.tanh()
    shown = output_gate.sigmoid() * memory.tanh()
    return (shown if weights["weight_hr"] is None else F.linear(shown, weights["weight_hr"])), memory


def _gru(seen: Tensor, states: Sequence[Tensor], weights: dict[str, Any]) -> States:
    (shown,) = states
    seen_reset, seen_update, seen_candidate = seen.chunk(3, 1)
    reset, update, candidate = F.linear(shown, weights["weight_hh"], weights["bias_hh"]).chunk(3, 1)
    candidate = torch.tanh(seen_candidate + (seen_reset + reset).sigmoid() * candidate)
    return (torch.lerp(candidate, shown, (seen_update + update).sigmoid()),)


def _plain(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Sequence[Tensor], dict[str, Any]], States]:
    return lambda seen, states, weights: (
        activation(seen + F.linear(states[0], weights["weight_hh"], weights["bias_hh"])),
    )


_CELLS = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _plain(torch.tanh), "RNN_RELU": _plain(torch.relu)}
