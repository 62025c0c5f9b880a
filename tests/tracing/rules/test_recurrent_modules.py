"""Recurrent modules, cell by cell and over whole sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.law.on_the_fly import check_on_the_fly, steps_of
from tests.tracing.plain import sequences, vector

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_recurrent_cells_in_a_loop(kind: Any) -> None:
    cell = kind(3, 2)
    examples = sequences(1, 4, 2)

    def function(sequence: torch.Tensor) -> Any:
        state = None
        for row in sequence:
            state = cell(row, state)
        return state

    check_on_the_fly(function, examples, sources=[*cell.parameters(), *examples])
    assert steps_of(function, examples) == 4, "one for each place in the longest sequence"


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_modules_over_a_sequence(kind: Any, layers: int, bidirectional: bool) -> None:
    module = kind(3, 2, layers, bidirectional=bidirectional)
    examples, rows = sequences(), sequences()
    states = [vector(layers * (1 + bidirectional), 2) for _ in examples]
    sources = [*module.parameters(), *examples, *states, *rows]

    def with_state(sequence: torch.Tensor, state: torch.Tensor) -> Any:
        return module(sequence, (state, state * 2) if kind is nn.LSTM else state)

    check_on_the_fly(lambda sequence: (module(sequence), module(sequence * 2)[0]), examples, sources=sources)
    check_on_the_fly(with_state, examples, states, sources=sources)
    check_on_the_fly(lambda row: module(torch.stack([one * 2 for one in row]).flip(0)), rows, sources=sources)


def test_steps_of_a_recurrent_module_do_not_grow_with_the_number_of_lengths() -> None:
    module, table = nn.LSTM(3, 2, bidirectional=True), nn.Embedding(9, 3)

    def function(words: torch.Tensor) -> torch.Tensor:
        return module(table(words))[0].sum(0)

    few, many = ([torch.arange(length) for length in range(1, most)] for most in (3, 9))
    assert 0 < steps_of(function, few) == steps_of(function, many)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_modules_with_a_batch_of_one(kind: Any) -> None:
    """The idiom of code that was written before torch took sequences alone."""
    module, first = kind(3, 2), kind(3, 2, batch_first=True)
    examples = sequences()
    sources = [*module.parameters(), *first.parameters(), *examples]
    check_on_the_fly(lambda s: (module(s.unsqueeze(1)), first(s.unsqueeze(0))), examples, sources=sources)


def test_initial_states_that_all_share() -> None:
    module, start = nn.LSTM(3, 2), nn.Parameter(torch.randn(1, 2))
    examples = sequences()
    sources = [*module.parameters(), start, *examples]
    check_on_the_fly(lambda s: module(s, (start, start * 2)), examples, sources=sources)
    check_on_the_fly(lambda s: module(s, (torch.zeros(1, 2), torch.ones(1, 2))), examples, sources=sources)
    check_on_the_fly(lambda s: (module(s, None), module(s, hx=None)), examples, sources=sources)
