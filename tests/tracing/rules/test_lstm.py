"""Our LSTM over many sequences is torch's LSTM over each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.tracing.rules import lstm
from tests.law import assert_same

LENGTHS = [3, 1, 5, 2, 5]


def lstm_and_sequences(**settings: Any) -> tuple[nn.LSTM, list[torch.Tensor]]:
    torch.manual_seed(0)
    module = nn.LSTM(4, 3, dtype=torch.float64, **settings)
    return module, [torch.randn(length, 4, dtype=torch.float64, requires_grad=True) for length in LENGTHS]


def initial_states(module: nn.LSTM) -> tuple[torch.Tensor, torch.Tensor]:
    size = module.num_layers * (2 if module.bidirectional else 1), len(LENGTHS), module.hidden_size
    h, c = (torch.randn(size, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return h, c


def number_of(states: torch.Tensor, last: Any) -> torch.Tensor:
    return (
        (states.sin() * torch.arange(1.0, len(states) + 1).unsqueeze(1)).sum()
        + last[0].cos().sum()
        + last[1].sin().sum()
    )


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_values_and_derivatives(bidirectional: bool, num_layers: int, bias: bool, begins: bool) -> None:
    module, sequences = lstm_and_sequences(bidirectional=bidirectional, num_layers=num_layers, bias=bias)
    initial = initial_states(module) if begins else None
    ragged = fl.Ragged(torch.cat(sequences), torch.tensor(LENGTHS))
    assert lstm.takes(module, ragged)
    states, last = lstm.run(module, ragged, initial)
    alone = [
        module(
            sequence.unsqueeze(1), None if initial is None else tuple([part[:, [n]].contiguous() for part in initial])
        )
        for n, sequence in enumerate(sequences)
    ]
    expected_states = torch.cat([states.squeeze(1) for states, _ in alone])
    expected_last = tuple([torch.cat(parts, 1) for parts in zip(*[last for _, last in alone], strict=True)])
    assert_same((states.values, last), (expected_states, expected_last))

    given = [*sequences, *module.parameters(), *(initial or ())]
    found, expected = number_of(states.values, last), number_of(expected_states, expected_last)
    assert_same(
        torch.autograd.grad(found, given, retain_graph=True), torch.autograd.grad(expected, given, retain_graph=True)
    )
    derivatives = [torch.autograd.grad(number, given, create_graph=True) for number in (found, expected)]
    assert_same(*derivatives)
    assert_same(
        *[torch.autograd.grad(torch.stack([d.square().sum() for d in of_one]).sum(), given) for of_one in derivatives]
    )


def test_in_a_batch() -> None:
    module, sequences = lstm_and_sequences(bidirectional=True)

    def last_state(sequence: torch.Tensor) -> Any:
        states, (h, c) = module(sequence)
        return list(states), h, c.flatten()

    batched, alone = (run(last_state)(sequences) for run in (fl.batch, fl.one_by_one))
    assert_same(batched, [(list(states), h, c) for states, h, c in alone])


def test_large_weights_that_are_used_in_several_steps() -> None:
    """Some with many sequences, some with few, which torch's own module runs."""
    module = nn.LSTM(100, 50, bidirectional=True, dtype=torch.float64)

    def twice(sequence: torch.Tensor, again: bool) -> Any:
        states, _ = module(sequence)
        return module(states)[0].sum() if again else states.sum()

    columns = [torch.randn(length, 100, dtype=torch.float64) for length in LENGTHS], [True, False, False, True, False]
    grads = []
    for run in (fl.one_by_one, fl.batch):
        module.zero_grad()
        torch.stack(run(twice)(*columns)).sum().backward()
        grads.append([weight.grad for weight in module.parameters()])
    assert_same(*grads)
    assert all(type(weight) is nn.Parameter for weight in module._flat_weights)


def test_only_what_is_needed() -> None:
    module, sequences = lstm_and_sequences()
    values = torch.cat(sequences).detach()
    states, _ = lstm.run(module, fl.Ragged(values, torch.tensor(LENGTHS)), None)
    states.values.sum().backward()
    assert all(weight.grad is not None for weight in module.parameters())
    with torch.no_grad():
        again, _ = lstm.run(module, fl.Ragged(values, torch.tensor(LENGTHS)), None)
    assert_same(again.values, states.values.detach())


def test_dropout_between_layers() -> None:
    module, sequences = lstm_and_sequences(num_layers=2, dropout=0.5)
    ragged = fl.Ragged(torch.cat(sequences), torch.tensor(LENGTHS))
    first, second = (lstm.run(module, ragged, None)[0].values for _ in range(2))
    assert not torch.equal(first, second)
    module.eval()
    assert_same(*[lstm.run(module, ragged, None)[0].values for _ in range(2)])


@pytest.mark.parametrize(
    ("settings", "lengths"),
    [({"proj_size": 2}, LENGTHS), ({}, [3, 2]), ({}, [*LENGTHS, 0])],
    ids=["proj", "few", "empty"],
)
def test_what_is_left_to_torch(settings: dict[str, int], lengths: list[int]) -> None:
    module, _ = lstm_and_sequences(**settings)
    assert not lstm.takes(module, fl.Ragged(torch.randn(sum(lengths), 4), torch.tensor(lengths)))
