"""Factory functions and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_dropout_in_training_is_drawn_for_each_call() -> None:
    dropout = nn.Dropout(0.5)
    results = fl.batch(lambda x: (dropout(x), dropout(x), functional.dropout(x, 0.9)))([torch.ones(4000)] * 3)
    masks = [mask for result in results for mask in result]
    assert len({tuple(mask.tolist()) for mask in masks}) == 9
    for kept, value in ((results[0][0], 2.0), (results[1][1], 2.0), (results[2][2], 10.0)):
        assert {round(number, 9) for number in kept.tolist()} == {0.0, value}
        assert abs(kept.mean() - 1) < 0.2


def test_factory_functions() -> None:
    def function(x: torch.Tensor, size: int) -> Any:
        made = torch.zeros(size), torch.ones(2, 3), torch.full((3,), 2.0), torch.eye(3), torch.arange(3.0)
        more = torch.tensor(1.5), torch.tensor([1, 2, 3]), torch.linspace(0, 1, 3), torch.empty(3).fill_(2.0)
        likes = (
            torch.zeros(x.shape, dtype=x.dtype, device=x.device),
            torch.ones(*x.shape),
            torch.zeros(3, dtype=torch.long),
        )
        return [
            x * made[1] + made[3] @ x + made[2] * made[4],
            made[0],
            more[0] * x,
            more[1] * x,
            more[2] * x + more[3],
            likes,
        ]

    inputs = vectors()
    check_on_the_fly(function, inputs, [1, 3, 2], sources=inputs)


def test_what_a_factory_makes_may_be_changed() -> None:
    def function(x: torch.Tensor) -> Any:
        table, other = torch.zeros(2, 3), torch.zeros(2, 3)
        table[0] = x
        table[1, 1:] += x[1:] * 2
        table.mul_(3)
        return table, other, torch.zeros(2, 3)

    inputs = vectors()
    check_on_the_fly(function, inputs, sources=inputs)


def test_random_numbers_are_those_of_a_loop() -> None:
    def function(x: torch.Tensor) -> Any:
        drawn = (
            torch.randn(3),
            torch.rand(3),
            torch.randint(0, 9, (3,)),
            torch.randperm(3),
            torch.normal(0.0, 1.0, (3,)),
        )
        return [x * numbers for numbers in drawn]

    inputs = vectors()
    torch.manual_seed(5)
    expected = fl.one_by_one(function)(inputs)
    torch.manual_seed(5)
    assert_same(fl.batch(function)(inputs), expected)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: (x * 1).normal_(),
    "bernoulli_": lambda x: torch.zeros(500).bernoulli_(0.5) * x,
    "exponential_": lambda x: torch.empty(500).exponential_() * x,
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x, dim=0),
    "multinomial": lambda x: torch.multinomial(x.softmax(0), 400, replacement=True),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random_operations_are_drawn_for_each_example(name: str) -> None:
    results = fl.batch(RANDOM[name])([torch.ones(500)] * 3)
    assert len({tuple(result.tolist()) for result in results}) == 3


def test_the_same_seed_gives_the_same_results() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.rand_like(x) * functional.dropout(x, 0.5)
        return y * torch.rand(3) if y.sum() > 0.5 else y - torch.rand(3)

    inputs = vectors(6)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(fl.batch(function)(inputs))
    assert_same(runs[0], runs[1])


def test_dropout_of_a_weight_is_drawn_for_each_example() -> None:
    weight = nn.Parameter(torch.ones(500))
    results = fl.batch(lambda x: functional.dropout(weight, 0.5) * x)([torch.ones(()) for _ in range(3)])
    assert len({tuple(result.tolist()) for result in results}) == 3
