"""State of torch belongs to the example that sets it, also while it waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_grad_mode_belongs_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        with torch.set_grad_enabled(number % 2 == 0):
            for _ in range(number + 1):
                assert (x * 2).sum().item() < 1e9
                assert torch.is_grad_enabled() == (number % 2 == 0)
                x = x * 2
        return x

    inputs = vectors(4)
    check_on_the_fly(function, inputs, [0, 1, 2, 3], sources=inputs, records=False)


def test_autocast_belongs_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 0):
            first = (x @ x).item()
            return (x.unsqueeze(0) @ x.unsqueeze(1)).dtype, torch.is_autocast_enabled("cpu"), type(first)

    check_on_the_fly(function, [torch.ones(3, dtype=torch.float32)] * 3, [0, 1, 2], records=False)


def test_the_default_dtype_belongs_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        torch.set_default_dtype(torch.float32 if number % 2 else torch.float64)
        found = [torch.get_default_dtype(), torch.zeros(1).dtype]
        x.sum().item()
        found += [torch.get_default_dtype(), torch.ones(2).dtype, torch.rand(1).dtype]
        torch.set_default_dtype(torch.float64)
        return found

    check_on_the_fly(function, vectors(4), [0, 1, 2, 3], records=False)


def test_random_numbers_belong_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        torch.manual_seed(number)
        first = torch.rand(2)
        (x * 2).sum().item()
        return first, torch.rand(2), torch.randn(2)

    check_on_the_fly(function, vectors(4), [0, 1, 2, 3], records=False)
