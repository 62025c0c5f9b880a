"""Grad mode, inference mode, autocast and training mode, within an example and around a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import flat, sequences, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_no_grad_within_an_example() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        y = linear(x)
        with torch.no_grad():
            target = linear(y) * 2
            score = y.sum().item()
        return y * target, (y - target) * score

    check_on_the_fly(function, inputs, sources=[*linear.parameters(), *inputs], records=False)


def test_no_grad_around_the_batch() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    with torch.no_grad():
        results = fl.batch(lambda x: linear(x) * 2 if x.sum() > 0 else linear(x))(inputs)
        assert_same(results, [linear(x) * 2 if x.sum() > 0 else linear(x) for x in inputs])
    assert not any(result.requires_grad for result in results)


def test_inference_mode() -> None:
    linear = nn.Linear(3, 3)
    inputs = [torch.randn(3) for _ in range(3)]
    expected = [linear(x).tanh() for x in inputs]
    with torch.inference_mode():
        assert_same(fl.batch(lambda x: linear(x).tanh())(inputs), expected)
    assert_same(fl.batch(lambda x: _in_inference_mode(linear, x))(inputs), expected)


def _in_inference_mode(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return torch.tensor(module(x).tanh().tolist())


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where: str) -> None:
    linear = nn.Linear(3, 3).float()
    inputs = [torch.randn(3, dtype=torch.float32) for _ in range(3)]

    def inside(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = linear(x)
            chosen = y.sum().item() > 0
            with torch.autocast("cpu", enabled=False):
                z = linear(x)
        return y if chosen else x @ linear.weight, z, functional.linear(x * 1, linear.weight)

    def outside(x: torch.Tensor) -> Any:
        return linear(x), x @ linear.weight, linear(x) if linear(x).sum().item() > 0 else x

    function = inside if where == "inside" else outside
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
        expected, actual = fl.one_by_one(function)(inputs), fl.batch(function)(inputs)
    for one, other in zip(flat(actual), flat(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("back", [True, False])
def test_a_cell_that_is_switched_to_another_mode_is_refused(back: bool) -> None:
    cell = fl.cell(nn.Dropout(0.5))

    def function(x: torch.Tensor) -> Any:
        y = cell(x), cell.eval()(x)
        cell.train(back)
        return y

    with pytest.raises(fl.errors.ArgumentError, match="a batch for each"):
        fl.batch(function)(vectors())


def _quotient_by_default(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float32)
    halves = torch.tensor(3) / 2
    torch.set_default_dtype(torch.float64)
    return halves, torch.tensor(3) / 2


def test_default_dtype_that_holds_at_the_call() -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(lambda x: _quotient_by_default(x * 1.5), inputs, records=False)


def test_a_module_runs_in_the_mode_that_it_was_called_in() -> None:
    module = nn.LSTM(3, 20, 2, dropout=0.5)

    def function(x: torch.Tensor) -> Any:
        trained = module.train()(x)[0]
        return trained, module.eval()(x)[0]

    for trained, evaluated in fl.batch(function)(sequences(2, 3)):
        assert not torch.equal(trained, evaluated)


def test_autocast_to_another_dtype() -> None:
    weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float32))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert fl.batch(lambda x: x @ weight)([torch.ones(3, dtype=torch.float32)])[0].dtype is dtype


def test_gradients_enabled_within_no_grad_are_refused() -> None:
    linear = nn.Linear(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return linear(x)

    with torch.no_grad(), pytest.raises(fl.errors.ArgumentError, match=r"Call fl\.batch where they are enabled"):
        fl.batch(function)(vectors())
