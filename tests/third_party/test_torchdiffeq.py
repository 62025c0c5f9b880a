"""torchdiffeq: solvers of fixed and adaptive steps, one equation an example."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.third_party.checking import check, tensors

torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed: make trials")
odeint = torchdiffeq.odeint

STATES = tensors((2,), (3,), (5,), (3,))
ROWS = tensors((2, 3), (1, 3), (4, 3))
TIMES = torch.linspace(0, 1, 4, dtype=torch.float64)


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3).double()

    def forward(self, t: Any, y: Any) -> Any:
        return torch.tanh(self.linear(y)) * (1 + t)


def decay(t: Any, y: Any) -> Any:
    return -y * (1 + t)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun3", "rk4", "explicit_adams"])
def test_fixed_steps(method: str) -> None:
    check(lambda y: odeint(decay, y, TIMES, method=method), STATES, STATES)


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "adaptive_heun", "fehlberg2"])
def test_adaptive_steps(method: str) -> None:
    check(lambda y: odeint(decay, y, TIMES, method=method, rtol=1e-4, atol=1e-4), STATES, STATES)


def test_module() -> None:
    field = Field()
    check(lambda y: odeint(field, y, TIMES, method="rk4")[-1], ROWS, [*ROWS, *field.parameters()])


def test_module_with_adaptive_steps() -> None:
    field = Field()
    check(lambda y: odeint(field, y, TIMES)[-1], ROWS, [*ROWS, *field.parameters()])


def test_adjoint() -> None:
    field = Field()

    def function(y: Any) -> Any:
        return torchdiffeq.odeint_adjoint(field, y, TIMES, method="rk4")[-1]

    check(function, ROWS, [*ROWS, *field.parameters()])


def test_adjoint_with_adaptive_steps() -> None:
    field = Field()
    check(lambda y: torchdiffeq.odeint_adjoint(field, y, TIMES)[-1], ROWS, [*ROWS, *field.parameters()])


def test_tuple_of_states() -> None:
    def field(t: Any, state: Any) -> Any:
        place, speed = state
        return speed, -place

    check(lambda y: odeint(field, (y, y.cos()), TIMES, method="rk4"), STATES, STATES)


def test_tuple_of_states_with_adaptive_steps() -> None:
    def field(t: Any, state: Any) -> Any:
        place, speed = state
        return speed, -place

    check(lambda y: odeint(field, (y, y.cos()), TIMES), STATES, STATES)


def test_constant_speed() -> None:
    """The error is 0, and its norm has an infinite derivative that nothing must ask for."""
    check(lambda y: odeint(lambda t, state: (torch.ones_like(state[0]),), (y,), TIMES), STATES, STATES)


def test_times_of_the_example() -> None:
    def function(y: Any) -> Any:
        times = torch.linspace(0, 1, len(y), dtype=torch.float64)
        return odeint(decay, y, times, method="euler", options={"step_size": 0.25})

    check(function, STATES, STATES)


def test_times_with_gradients() -> None:
    def function(y: Any) -> Any:
        times = torch.cat([torch.zeros(1, dtype=torch.float64), y.exp().cumsum(0)])
        return odeint(decay, y, times, method="rk4")[-1]

    check(function, STATES, STATES)


def test_backwards_in_time() -> None:
    check(lambda y: odeint(decay, y, TIMES.flip(0), method="dopri5"), STATES, STATES)


def test_event() -> None:
    def function(y: Any) -> Any:
        start = torch.zeros((), dtype=torch.float64)
        time, states = torchdiffeq.odeint_event(
            lambda t, y: -torch.ones_like(y), y.exp() + 1, start, event_fn=lambda t, y: y.min() - 0.5, method="dopri5"
        )
        return time, states[-1]

    check(function, STATES, STATES)


def test_wrong_times_are_caught() -> None:
    def function(y: Any) -> Any:
        try:
            return odeint(decay, y, torch.stack([y[0], y[1]]), method="rk4")
        except AssertionError as error:
            return str(error)

    check(function, [*STATES[:3], torch.zeros(2, dtype=torch.float64)])
