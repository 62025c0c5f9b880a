"""Values with any number of rows in what is captured. Stacking tensors and taking rows makes no node, so a value may be a row of one operand and
an operand itself, in one call and not in the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from foldloom.tracing import fast_path
from tests.never_wrong.checking import Program, check_program
from tests.tracing.automatic.random_programs import captured_at_once

pytestmark = pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts")


@pytest.fixture(autouse=True)
def _captured_at_once() -> Iterator[None]:
    with captured_at_once():
        yield


def first_row_and(rows: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(rows[0] * 2 + h) * 3


def last_row_and(rows: Tensor, h: Tensor) -> Tensor:
    return torch.tanh(rows[-1] * 2 - h) * 3


def stacked_beside(rows: Tensor, h: Tensor) -> Tensor:
    return (torch.stack([h, h * 2]).tanh() * rows[:2]).sum(0)


def one_row(rows: Tensor, h: Tensor) -> Tensor:
    return (torch.stack([h]).tanh() * 2 + rows[:1]).sum(0)


def joined_beside(rows: Tensor, h: Tensor) -> Tensor:
    return (torch.cat([rows, rows]).tanh() * 2).sum(0) + h


def three_rows(rows: Tensor, h: Tensor) -> Tensor:
    return (rows[:3] * 2).tanh().sum(0) + h


def last_three_rows(rows: Tensor, h: Tensor) -> Tensor:
    return (rows[-3:] * 2).tanh().sum(0) + h


def turned_round(rows: Tensor, h: Tensor) -> Tensor:
    return (rows.flip(0).tanh() * torch.arange(1.0, 2.0, dtype=h.dtype)).sum(0) + h


def as_one_tensor(rows: Tensor, h: Tensor) -> Tensor:
    return rows.reshape(-1)[:3].tanh() * 2 + h


def taken_apart(rows: Tensor, h: Tensor) -> Tensor:
    first, *others = torch.unbind(rows)
    return first.tanh() * 2 + h + len(others)


FUNCTIONS = (
    first_row_and, last_row_and, stacked_beside, one_row, joined_beside, three_rows, last_three_rows, turned_round, as_one_tensor,
    taken_apart,
)  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("rows_at_first", [1, 3])
def test_rows_that_are_operands_too(function: Callable[[Tensor, Tensor], Tensor], rows_at_first: int) -> None:
    """In the first calls `h` is the first row or the last one, and there are as many rows as are taken; later neither is so."""

    def make() -> Program:
        torch.manual_seed(0)
        given = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(5)]

        def program(x: Tensor) -> Tensor:
            h = torch.tanh(x)
            total = torch.zeros(3, dtype=torch.float64)
            for turn in range(8):
                others = [h * (place + 2) for place in range(rows_at_first + turn // 4 - 1)]
                rows = torch.stack([h, *others] if turn % 2 else [*others, h])
                total = total + function(rows, rows[turn % 2] if turn >= 4 and len(rows) > 1 else h)
            return total

        return Program(program, [given], given)

    check_program(make)


def test_a_variable_that_was_a_row_is_assigned_anew() -> None:
    def make() -> Program:
        torch.manual_seed(0)
        given = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(4)]

        def program(x: Tensor) -> Tensor:
            h = x * 0.5
            for _ in range(4):
                base = torch.stack([h, h * 2, h * 3])
                h = torch.tanh(h) + 1
                h = base[0] * h + base[2].sigmoid()
                if h.sum() > 100:
                    break
            return h

        return Program(program, [given], given)

    check_program(make)
