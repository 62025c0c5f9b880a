"""Hooks of modules see one example at a time."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_hooks_see_one_example_at_a_time() -> None:
    linear = nn.Linear(3, 3)
    shapes = []
    linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    linear.register_forward_hook(lambda module, args, result: shapes.append(tuple(result.shape)) or result.tanh())  # type: ignore[func-returns-value]
    inputs = vectors()
    check_on_the_fly(linear, inputs, sources=[*linear.parameters(), *inputs])
    assert set(shapes) == {(3,)}


def test_backward_hooks_see_one_example_at_a_time() -> None:
    linear = nn.Linear(3, 3)
    seen: list[Any] = []
    linear.register_full_backward_hook(lambda module, before, after: seen.append(after[0].clone()) or (before[0] * 2,))  # type: ignore[func-returns-value, index]
    inputs = vectors()
    check_on_the_fly(lambda x: linear(x * 2) * x, inputs, sources=[*linear.parameters(), *inputs], records=False)
    assert {tuple(grad.shape) for grad in seen} == {(3,)}
