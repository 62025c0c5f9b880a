"""Weights that are derived, replaced and shared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import LINEAR, OTHER_LINEAR, sequences, vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_a_closure_over_tensors_that_need_gradients() -> None:
    weight, bias, rows = vector(3, 3), vector(3), vector(5, 3)
    derived = (weight * 2).exp()
    inputs = vectors()

    def function(x: torch.Tensor, number: int) -> Any:
        return derived @ x + bias, x @ weight + rows[number], (rows @ x).softmax(0) @ rows

    check_on_the_fly(function, inputs, [0, 3, 3], sources=[weight, bias, rows, *inputs])


def test_tensors_shared_by_all_examples() -> None:
    table, mask = torch.randn(3, 3), torch.tensor([1.0, 0.0, 1.0])
    inputs = vectors()
    check_on_the_fly(lambda x: (x @ table * mask, table[1] * x, table + x, table.t() @ x), inputs, sources=inputs)


def test_weights_that_are_derived() -> None:
    weight, bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        first, second = weight[0], weight.t() * 2
        return (
            x @ second + first,
            (weight + weight.t()) @ x,
            torch.cat([bias, bias]),
            weight.sum() * x,
            (x * first).sum(),
        )

    check_on_the_fly(function, inputs, sources=[weight, bias, *inputs])


def test_results_of_another_batch_as_inputs() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    states = fl.batch(linear)(inputs)

    def function(state: torch.Tensor, number: int) -> torch.Tensor:
        return state.tanh() * states[(number + 1) % 3]

    check_on_the_fly(function, states, [0, 1, 2], sources=[*linear.parameters(), *inputs])


def test_a_derived_weight_that_changes() -> None:
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        double = LINEAR.weight * 2
        double.add_(1)
        return x @ double

    check_on_the_fly(function, inputs, sources=[*inputs, LINEAR.weight])
    check_on_the_fly(lambda x: (x @ (LINEAR.weight * 2), function(x)), inputs, sources=[*inputs, LINEAR.weight])


def test_a_recording_of_a_module_with_other_weights_is_refused() -> None:
    """It would run with the module's own."""
    with pytest.raises(fl.errors.ArgumentError, match="given other weights"):
        fl.record(lambda x: torch.func.functional_call(LINEAR, dict(OTHER_LINEAR.named_parameters()), (x,)), vector(3))


def _called_with_others(x: torch.Tensor) -> Any:
    return torch.func.functional_call(LINEAR, {"weight": OTHER_LINEAR.weight * 2}, (x,))


def _module_changed(x: torch.Tensor) -> Any:
    own = LINEAR.weight
    before = LINEAR(x)
    LINEAR.weight = OTHER_LINEAR.weight
    after = LINEAR(x)
    LINEAR.weight = own
    return before, after


def _derived_without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        fixed = LINEAR.weight * 2
    return x @ fixed, x @ (LINEAR.weight * 2)


WEIGHTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "functional_call": _called_with_others,
    "functional_call with parameters": lambda x: torch.func.functional_call(
        LINEAR, dict(OTHER_LINEAR.named_parameters()), (x,)
    ),
    "a module whose weight is replaced": _module_changed,
    "a derived weight without gradients": _derived_without_gradients,
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_replaced_or_derived(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(
        lambda x: WEIGHTS[name](x * 1.5),
        inputs,
        sources=[*inputs, *LINEAR.parameters(), *OTHER_LINEAR.parameters()],
        records=False,
    )
