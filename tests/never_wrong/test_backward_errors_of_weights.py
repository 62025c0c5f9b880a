"""What is computed from weights alone is one tensor for all examples. One that changes it in place gets the errors that it gets one by one,
and the others do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import loss_of, vectors

WEIGHT = nn.Parameter(torch.rand(3, dtype=torch.float64) + 0.5)
MATRIX = nn.Parameter(torch.rand(3, 3, dtype=torch.float64) + 0.5)


def square_of_what_changes(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    kept = v * v
    v.add_(1)
    return kept


def sum_of_what_changes(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    kept = v + v
    v.add_(1)
    return kept * v


def result_that_changes(x: torch.Tensor) -> Any:
    v = WEIGHT.exp()
    v.add_(1)
    return v


def result_that_changes_by_a_value(x: torch.Tensor) -> Any:
    v = WEIGHT.exp()
    v.add_(x)
    return v


def softmax_that_is_masked(x: torch.Tensor) -> Any:
    p = WEIGHT.softmax(0)
    p[0] = 0
    return p * x


def largest_of_what_changes(x: torch.Tensor) -> Any:
    v = WEIGHT.cummax(0).values
    v[0] = v.max()
    return v


def product_with_a_value(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    kept = x * v
    v.add_(1)
    return kept


def product_with_a_value_without_gradients(x: torch.Tensor) -> Any:
    """Which saves the other factor only."""
    v = WEIGHT * 2
    kept = v * x.detach()
    v.add_(1)
    return kept + x


def sum_with_a_value(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    kept = x + v
    v.add_(x)
    return kept * v


def view_that_was_used(x: torch.Tensor) -> Any:
    m = MATRIX * 2
    kept = m[0] * x
    m[0] = 1
    return kept


def changed_by_a_view(x: torch.Tensor) -> Any:
    m = MATRIX * 2
    kept = (m * m).sum(0)
    m[1].mul_(x)
    return kept + m.sum(0)


def used_farther_on(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    kept = (v * v).sum() + 1
    v.mul_(2)
    return kept * x + v


def multiplied_in_place(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    v.mul_(x)
    v.mul_(WEIGHT)
    return v


def no_gradient_arrives(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    kept = v * v
    v.add_(1)
    return v, kept.detach()


def without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        v = WEIGHT * 2
        kept = v * v
        v.add_(1)
    return kept * x


def another_one_changes(x: torch.Tensor) -> Any:
    v, other = WEIGHT * 2, WEIGHT * 3
    kept = v * v
    other.add_(1)
    return kept + other


def used_after_the_change(x: torch.Tensor) -> Any:
    v = WEIGHT * 2
    v.add_(1)
    return v * v + x * v


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    square_of_what_changes, sum_of_what_changes, result_that_changes, result_that_changes_by_a_value, softmax_that_is_masked,
    largest_of_what_changes, product_with_a_value, product_with_a_value_without_gradients, sum_with_a_value, view_that_was_used, changed_by_a_view, used_farther_on,
    multiplied_in_place, no_gradient_arrives, without_gradients, another_one_changes, used_after_the_change,
]  # fmt: skip


def outcome(results: Any, sources: list[torch.Tensor]) -> Any:
    try:
        return torch.autograd.grad(loss_of(results), sources, allow_unused=True)
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("waits", [False, True])
def test_backward_raises_as_one_by_one(function: Callable[[torch.Tensor], Any], waits: bool) -> None:
    def program(x: torch.Tensor) -> Any:
        if waits and (x * 2).sum() > 100:
            return x
        return function(x)

    xs = vectors(3)
    sources = [*xs, WEIGHT, MATRIX]
    wanted = outcome(fl.one_by_one(program)(xs), sources)
    found = outcome(fl.batch(program)(xs), sources)
    torch.testing.assert_close(found, wanted)


def test_only_the_examples_that_changed_raise() -> None:
    def program(x: torch.Tensor, changes: bool) -> Any:
        v = WEIGHT * 2
        kept = v * v
        more = kept * x
        if changes:
            v.add_(1)
        return kept, more, v

    xs = vectors(3)
    sources = [*xs, WEIGHT]
    for used in range(3):
        for part in range(3):
            wanted, found = (
                outcome(run(program)(xs, [False, True, False])[used][part], sources)
                for run in (fl.one_by_one, fl.batch)
            )
            torch.testing.assert_close(found, wanted)
