"""Given tensors, alone and in lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.law.on_the_fly import check_on_the_fly, steps_of
from tests.tracing.plain import flat, vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_given_rows_and_other_values_in_one_step() -> None:
    """One step multiplies numbers that were given one by one and numbers out of a given list."""
    table = nn.Embedding(7, 3)
    words = [torch.tensor([2, 3]), torch.tensor([4, 6, 1])]
    check_on_the_fly(lambda row: (torch.tensor(5) * 1, table(row), [word * 1 for word in row]), words)


def test_given_tensors_as_indices_of_given_tensors() -> None:
    inputs = vectors()
    check_on_the_fly(lambda x, place: x[place], inputs, [torch.tensor(n) for n in (2, 0, 1)], sources=inputs)


def test_tensors_in_lists_are_values_of_the_example() -> None:
    examples = [[*vectors(2)], [*vectors(2)], [*vectors(2)]]

    def function(rows: Any, named: Any, pair: Any) -> Any:
        return [row.tanh() for row in rows], named["x"].exp() * named["n"], pair[0] + pair[1], isinstance(rows, list)

    named: list[dict[str, Any]]
    named, pairs = [{"x": vector(3), "n": 2} for _ in range(3)], [(vector(3), 2.0) for _ in range(3)]
    sources = [*flat(examples), *[item["x"] for item in named], *[item[0] for item in pairs]]
    check_on_the_fly(function, examples, named, pairs, sources=sources)
    assert steps_of(function, examples, named, pairs) == steps_of(function, examples[:1], named[:1], pairs[:1])
