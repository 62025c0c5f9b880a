"""A batch inside a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import foldloom as fl
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import no_fiber_left_behind, sequences, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_a_batch_inside_a_batch() -> None:
    examples = sequences()
    check_on_the_fly(
        lambda s: sum(fl.batch(lambda row: row.tanh() * 2)(list(s))), examples, sources=examples, records=False
    )


def test_a_batch_inside_a_batch_that_waits_for_values() -> None:
    examples = sequences()

    def inner(row: torch.Tensor) -> torch.Tensor:
        return row * 2 if (row * 3).sum() > 0 else fl.batch(lambda x: x if x > 0 else -x)(list(row))[0] * row

    def outer(s: torch.Tensor) -> Any:
        rows = fl.batch(inner)(list(s))
        return rows, fl.batch(lambda row, n: row * n)(rows, range(len(rows))) if rows[0].sum() > 0 else rows[-1]

    check_on_the_fly(outer, examples, sources=examples, records=False)


def test_an_exception_of_an_inner_batch_can_be_caught() -> None:
    def function(s: torch.Tensor) -> Any:
        try:
            return fl.batch(lambda row: 1 // int(row.sum().item() > 0))(list(s))
        except ZeroDivisionError as error:
            return error.__notes__[0]

    with no_fiber_left_behind():
        results = fl.batch(function)([torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [-2.0], [3.0]])])
    assert results == [[1, 1], "in example 1"]


def test_an_empty_batch_inside_a_batch() -> None:
    assert fl.batch(lambda x: fl.batch(lambda y: y * 2)([]))(vectors()) == [[], [], []]


@pytest.mark.parametrize("waits", [True, False])
def test_a_batch_inside_a_batch_with_stacked_results(waits: bool) -> None:
    examples = sequences()

    def inner(row: torch.Tensor) -> Any:
        return (row * 2, row.sum()) if waits and (row * 3).sum() > 0 else (row * 3, row.sum())

    check_on_the_fly(
        lambda s: fl.batch(inner, stack=True)(list(s))[0].sum(0), examples, sources=examples, records=not waits
    )


def test_what_an_inner_batch_records_belongs_to_its_example() -> None:
    """Though the inner examples of both run after both have begun."""
    examples = [torch.tensor([[0.71, 2.0]]), torch.tensor([[0.58, 3.0]])]

    def function(x: torch.Tensor) -> Any:
        halves = fl.batch(lambda v: v / 2)(x.sum(0))
        return x.sum(0).numpy().sum() + sum(halves).item()

    for scheduler in (fl.ByAgenda(), fl.ByDepth()):
        found = fl.batch(function, scheduler=scheduler)(examples)
        assert found == pytest.approx([function(x) for x in examples])
