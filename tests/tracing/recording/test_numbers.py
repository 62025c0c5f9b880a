"""Python numbers that differ from call to call: operands of one operation, exactly as torch computes with numbers."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import foldloom as fl
from tests.never_wrong.checking import check, steps_run

NUMBERS: list[float] = [
    0.1,
    -0.0,
    0.0,
    1 / 3,
    1e-30,
    1e30,
    math.inf,
    -math.inf,
    math.nan,
    2.0,
    -7.5,
    0.5,
    3,
    -2,
    0,
    2**24 + 1,
]
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: getattr(operator, name)
        for name in ["add", "sub", "mul", "truediv", "pow", "gt", "ge", "lt", "le", "eq", "ne", "floordiv", "mod"]
    },
    **{f"torch.{name}": getattr(torch, name) for name in ["add", "sub", "mul", "div", "true_divide"]},
    "method": lambda x, y: x.mul(y) if isinstance(x, torch.Tensor) else y.add(x),
    "in place": lambda x, y: x.clone().mul_(y) if isinstance(x, torch.Tensor) else y.clone().sub_(x),
    "augmented": lambda x, y: operator.iadd(x * 1, y),
    "with alpha": lambda x, y: torch.add(x, y, alpha=2) if isinstance(x, torch.Tensor) else y,
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_every_bit_is_as_with_a_number(name: str, dtype: torch.dtype) -> None:
    function = BINARY[name]
    x = torch.tensor([0.3, -1.7, 0.0, 5.0]).to(dtype)
    numbers = NUMBERS if dtype.is_floating_point else [3, -2, 7, 5, 4, 1.5, 2.5]

    def both(n: float) -> tuple[Any, Any]:
        values = x + torch.zeros((), dtype=dtype)
        return function(values, n), function(n, values) if name != "augmented" else values

    try:
        expected = fl.one_by_one(both)(numbers)
    except RuntimeError:  # torch has no such function
        pytest.skip("not for this dtype")
    batched = fl.batch(both)
    for _ in range(2):  # the second time, numbers are known to vary
        for actual, wanted in zip(batched._together([(n,) for n in numbers]), expected, strict=True):
            for one, other in zip(actual, wanted, strict=True):
                assert one.dtype == other.dtype
                assert torch.equal(one.isnan(), other.isnan())
                assert one[~one.isnan()].tolist() == other[~other.isnan()].tolist()
                assert torch.equal(one.signbit(), other.signbit()) or not dtype.is_floating_point


def test_gradients_are_those_of_a_number() -> None:
    weight = torch.randn(3, requires_grad=True)

    def program(n: float) -> torch.Tensor:
        x = weight * n
        x = (x / (n + 1) - n) * (n - x)
        return (x + (x > n) * n).sum()

    check(program, [0.25 * n for n in range(12)], sources=[weight])


def test_calls_with_different_numbers_share_a_step() -> None:
    def program(n: float) -> torch.Tensor:
        return (torch.ones(3) * n + n) / (n + 1.0)

    assert steps_run(program, [1 / n for n in range(1, 40)], batches=2) <= 20  # what varies is learnt in the first


def test_a_value_with_a_number_can_be_changed_in_place() -> None:
    weight = torch.randn(3, requires_grad=True)

    def program(n: float) -> torch.Tensor:
        x = weight * 2.0
        y = x * n  # saves nothing of x, so x may change
        x.add_(n)
        return (x * y).sum()

    check(program, [0.5 * n for n in range(9)], sources=[weight])


def test_numbers_beside_values_of_any_number_of_rows() -> None:
    def program(words: torch.Tensor, n: float) -> torch.Tensor:
        rows = torch.stack([word.tanh() for word in words])
        return ((rows * n - n) / (n + 2.0)).sum(0)

    lengths = range(1, 9)
    check(program, [torch.randn(length, 3) for length in lengths], [1 / length for length in lengths])


def test_a_solver_with_a_step_size_of_its_own_for_each_example() -> None:
    field = torch.nn.Linear(3, 3)

    def solve(y: torch.Tensor) -> torch.Tensor:
        time, step = 0.0, 0.3
        while time < 1.0:
            step = min(step, 1.0 - time)
            slope = torch.tanh(field(y))
            error = (step * slope).norm().item()
            if error < 0.2:
                time, y = time + step, y + step * slope
            step *= min(1.5, max(0.5, 0.15 / (error + 1e-6)))
        return y

    check(solve, [torch.randn(3) * n for n in range(1, 8)], sources=[*field.parameters()])


def test_tensors_that_examples_share_are_weights() -> None:
    """A matrix that is no parameter: its products are one step, whoever asks first."""
    matrix = torch.randn(3, 3)

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = matrix @ x
        return x

    check(program, [torch.randn(3) for _ in range(6)])
    assert steps_run(program, [torch.randn(3) for _ in range(6)]) <= 6


def test_examples_that_are_recorded_together_call_what_each_calls_alone() -> None:
    """An exported file knows operations by what examples showed, so a number stays a setting of its operation."""
    examples = [(torch.ones(3), float(number)) for number in range(1, 9)]

    def scaled(example: tuple[torch.Tensor, float]) -> torch.Tensor:
        value, number = example
        return value * number

    for together, example in zip(fl.record_each(scaled, examples), examples, strict=True):
        assert together.graph.ops == fl.record(scaled, example).graph.ops
