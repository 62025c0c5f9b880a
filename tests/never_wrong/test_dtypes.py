"""Finding 11: comparisons, promotion and autocast as torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import Program, assert_same, check, check_program, vectors

FLOAT32 = [torch.tensor([0.1, 0.2, -0.3]), torch.tensor([1.0, 0.1, 2.0]), torch.tensor([0.0, 0.5, 16777217.0])]

COMPARISONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "float32 == 0.1": lambda x: x == 0.1,
    "float32 != 0.1": lambda x: x != 0.1,
    "float32 < 0.1": lambda x: x < 0.1,
    "float32 >= 0.1": lambda x: x >= 0.1,
    "0.1 == float32": lambda x: 0.1 == x,  # noqa: SIM300
    "float32 == int": lambda x: x == 16777217,
    "torch.eq": lambda x: torch.eq(x, 0.1),
    "isclose": lambda x: torch.isclose(x, torch.tensor(0.1)),
    "half == 0.1": lambda x: x.half() == 0.1,
    "bfloat16 == 0.1": lambda x: x.bfloat16() == 0.1,
    "float32 == 0-d float64": lambda x: x == torch.tensor(0.1, dtype=torch.float64),
    "float32 == float64": lambda x: x == torch.full((3,), 0.1, dtype=torch.float64),
    "int8 < 200": lambda x: x.to(torch.int8) < 200,
    "int8 > -200": lambda x: x.to(torch.int8) > -200,
    "int8 == 1.5": lambda x: x.to(torch.int8) == 1.5,
    "uint8 > -1": lambda x: x.abs().to(torch.uint8) > -1,
    "uint8 == 256": lambda x: x.abs().to(torch.uint8) == 256,
    "int64 == 0.5": lambda x: x.long() == 0.5,
    "bool == 1": lambda x: (x > 0) == 1,
    "bool < 2": lambda x: (x > 0) < 2,
    "a branch": lambda x: x[0] * 2 if x[0] == 0.1 else x[1],
    "a branch on int8": lambda x: "less" if x[1].to(torch.int8) < 200 else "more",
    "in": lambda x: 0.1 in x,
    "clamp": lambda x: x.clamp(0.1, 0.3),
    "where": lambda x: torch.where(x > 0.1, x, 0.1),
    "maximum": lambda x: torch.maximum(x, torch.tensor(0.1, dtype=torch.float64)),
    "numpy number": lambda x: x == np.float64(0.1),
    "numpy float32": lambda x: x * np.float32(0.1),
}


@pytest.mark.parametrize("name", list(COMPARISONS))
def test_comparisons(name: str) -> None:
    check(COMPARISONS[name], FLOAT32)


@pytest.mark.parametrize("name", list(COMPARISONS))
def test_comparisons_of_values(name: str) -> None:
    check(lambda x: COMPARISONS[name](x * 1), FLOAT32)


OWN_NUMBERS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "equal": lambda x, number: x == number,
    "unequal": lambda x, number: x != number,
    "less": lambda x, number: x < number,
    "at least": lambda x, number: x >= number,
    "eq": lambda x, number: torch.eq(x, number),
    "sum": lambda x, number: x + number,
    "reversed difference": lambda x, number: number - x,
    "product": lambda x, number: x * number,
    "quotient": lambda x, number: x / number,
    "floor quotient": lambda x, number: x // number,
    "remainder": lambda x, number: x % number,
    "power": lambda x, number: x.float() ** number,
    "place": lambda x, number: x.flatten()[0] == number,
    "branch": lambda x, number: bool(x.flatten()[0] * 1 == number),
    "clamp": lambda x, number: x.clamp(max=number),
    "where": lambda x, number: torch.where(x > number, x, number),
    "full": lambda x, number: torch.full_like(x, number) if x.dtype.is_floating_point else x,
    "masked_fill": lambda x, number: x.float().masked_fill(x > 0, number),
    "lerp": lambda x, number: torch.add(x, x, alpha=int(number)),
    "in place": lambda x, number: (x.float() * 1).mul_(number),
    "set": lambda x, number: torch.zeros(3).index_fill(0, torch.tensor([1]), number) + x,
    "tensor of it": lambda x, number: torch.tensor(number) * x,
}

KINDS: dict[str, tuple[list[torch.Tensor], list[Any]]] = {
    "float32 and float": ([torch.tensor([0.1, 0.7]), torch.tensor([0.2, 0.3]), torch.tensor([5.0, 0.3])], [0.1, 0.2, 0.3]),
    "0-d float32 and float": ([torch.tensor(n) for n in (0.1, 0.2, 0.4)], [0.1, 0.2, 0.3]),
    "int8 and large int": ([torch.tensor([n, 3], dtype=torch.int8) for n in (1, -4, 44)], [200, 100, 300]),
    "int64 and float": ([torch.tensor([n, 3]) for n in (1, -4, 2)], [0.5, 2.5, 2.0]),
    "bool and int": ([torch.tensor([n, True]) for n in (True, False, True)], [1, 2, 3]),
    "float32 and bool": ([torch.tensor([n, 1.0]) for n in (0.5, 1.0, 2.0)], [True, False, True]),
    "float32 and int or float": ([torch.tensor([n, 1.0]) for n in (0.1, 1.0, 2.0)], [0.1, 1, 2]),
}  # fmt: skip


def numbers_of_their_own() -> list[str]:
    return [case for kind in KINDS for name in OWN_NUMBERS if _runs(case := f"{kind}, {name}")]


def _runs(case: str) -> bool:
    """Torch itself may refuse some of these."""
    kind, name = case.split(", ")
    try:
        for x, number in zip(*KINDS[kind], strict=True):
            OWN_NUMBERS[name](x, number)
    except (RuntimeError, TypeError, ZeroDivisionError):
        return False
    return True


@pytest.mark.parametrize("case", list(numbers_of_their_own()))
def test_each_example_has_a_number_of_its_own(case: str) -> None:
    """Numbers that differ are batched, and still no tensors to torch's promotion."""
    kind, name = case.split(", ")
    check(OWN_NUMBERS[name], *KINDS[kind])


PROMOTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "int + float": lambda x: x.long() + 0.5,
    "int / int": lambda x: x.long() / 2,
    "int // float": lambda x: x.long() // 0.3,
    "int8 + 200": lambda x: x.to(torch.int8) + 200,
    "uint8 - 1": lambda x: x.abs().to(torch.uint8) - 1,
    "bool + bool": lambda x: (x > 0) + (x > 1),
    "bool * float": lambda x: (x > 0) * 0.5,
    "bool + 1": lambda x: (x > 0) + 1,
    "sum of bool": lambda x: (x > 0).sum(),
    "mean of half": lambda x: x.half().mean(),
    "half * 0-d float32": lambda x: x.half() * torch.tensor(2.0),
    "half * float32": lambda x: x.half() * x,
    "0-d int + 0-d float": lambda x: x[0].long() + torch.tensor(0.5),
    "0-d value * vector": lambda x: x.double().sum() * x,
    "vector * 0-d double": lambda x: x * torch.tensor(2.0, dtype=torch.float64),
    "int ** -1.0": lambda x: (x.long() + 3) ** -1.0,
    "int ** 2": lambda x: x.long() ** 2,
    "complex": lambda x: x * 1j,
    "cat": lambda x: torch.cat([x, x.double(), x.long()]),
    "cumsum of bool": lambda x: (x > 0).cumsum(0),
    "prod of int32": lambda x: x.int().prod(),
    "true_divide": lambda x: torch.true_divide(x.int(), 3),
    "full": lambda x: torch.full_like(x, 1) + torch.full((3,), 2),
    "arange": lambda x: x + torch.arange(3),
    "tensor of numbers": lambda x: torch.tensor([1, 2.5, 3]) * x,
    "in place": lambda x: (x * 1).add_(1),
    "in place of half": lambda x: x.half().mul_(x),
    "round": lambda x: (x * 10).round(decimals=1),
    "round of Python": lambda x: round(x[0].item(), 2),
    "integer overflow": lambda x: (x.to(torch.int8) + 127) * 2,
}


@pytest.mark.parametrize("name", list(PROMOTIONS))
def test_promotion(name: str) -> None:
    check(PROMOTIONS[name], [x.clamp(-3, 3) for x in FLOAT32])


def ties() -> list[torch.Tensor]:
    rows = ([1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 3.0, 3.0], [0.0, -1.0, -1.0, -1.0])
    return [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in rows]


TIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "median": lambda x: x.median(),
    "median of a dimension": lambda x: x.median(0).values,
    "nanmedian": lambda x: x.nanmedian(),
    "max": lambda x: x.max(),
    "max of a dimension": lambda x: x.max(0).values,
    "min": lambda x: x.min(),
    "amax": lambda x: x.amax(0),
    "aminmax": lambda x: torch.aminmax(x),
    "sort": lambda x: x.sort().values,
    "sort stable": lambda x: x.sort(stable=True, descending=True).indices,
    "topk": lambda x: x.topk(2).values,
    "kthvalue": lambda x: x.kthvalue(2).values,
    "mode": lambda x: x.mode().values,
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(),
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "quantile": lambda x: x.quantile(0.5),
    "cummax": lambda x: x.cummax(0).values,
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "relu at zero": lambda x: x.relu() + x.abs() + F.hardtanh(x),
    "clamp at its edge": lambda x: x.clamp(1.0, 3.0),
    "max_pool": lambda x: F.max_pool1d(x[None, None], 2)[0, 0],
    "norm inf": lambda x: torch.linalg.vector_norm(x, torch.inf),
    "prod with zero": lambda x: x.prod(),
    "unique": lambda x: x.detach().unique(),
}


@pytest.mark.parametrize(
    "name",
    list(TIES),
)
def test_ties_split_their_gradient_as_in_torch(name: str) -> None:
    inputs = ties()
    check(lambda x: TIES[name](x * 1), inputs, sources=inputs)


AUTOCAST: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(3, 3),
    "LSTM": lambda: nn.LSTM(3, 3),
    "GRU": lambda: nn.GRU(3, 3),
    "LSTMCell": lambda: nn.LSTMCell(3, 3),
    "Sequential": lambda: nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 3)),
    "Conv1d": lambda: nn.Conv1d(2, 2, 1),
}


@pytest.mark.parametrize(
    "case",
    [f"{name} {where}" for name in AUTOCAST for where in ("inside", "around")],
)
def test_modules_under_autocast(case: str) -> None:
    name, where = case.split()
    module, inputs = AUTOCAST[name](), [torch.randn(2, 3) for _ in range(3)]

    def function(x: torch.Tensor) -> Any:
        if where == "around":
            return module(x)
        with torch.autocast("cpu", torch.bfloat16):
            result = module(x)
        return result, module(x)

    with torch.autocast("cpu", torch.bfloat16, enabled=where == "around"):
        expected = [function(x) for x in inputs]
        actual = fl.batch(function)(inputs)
    assert_same(actual, expected)


def test_default_dtype_changed_inside() -> None:
    def build() -> Program:
        inputs = [x.detach() for x in vectors()]

        def function(x: torch.Tensor) -> Any:
            torch.set_default_dtype(torch.float64)
            made = torch.ones(3), x.long() / 3, torch.tensor(0.5) * x.long()
            positive = bool(x.sum() > 0)
            torch.set_default_dtype(torch.float32)
            return made, torch.ones(3), x.long() / 3, positive

        return Program(function, [inputs])

    check_program(build)
