"""beartype: checks of hints when a function is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch
from torch import Tensor, nn

from tests.third_party.checking import check, tensors

pytest.importorskip("beartype", reason="beartype is not installed: make trials")

from beartype import beartype
from beartype.door import die_if_unbearable, is_bearable
from beartype.roar import BeartypeCallHintParamViolation
from beartype.vale import IsAttr, IsEqual

MATRICES = tensors((2, 4), (3, 4), (5, 4), (3, 4))
Matrix = Annotated[Tensor, IsAttr["ndim", IsEqual[2]]]


@beartype
def twice(x: Tensor) -> Tensor:
    return 2 * x


@beartype
def total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


@beartype
def ends(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return parts[0], parts[-1]


@beartype
def scaled(x: Tensor, by: Tensor | float | None = None) -> Tensor:
    return x if by is None else x * by


@beartype
def named(x: Tensor) -> dict[str, Tensor]:
    return {"sum": x.sum(), "mean": x.mean(0)}


@beartype
def squared(x: Matrix) -> Matrix:
    return x.t() @ x


@beartype
@dataclass
class State:
    hidden: Tensor
    steps: int


@beartype
class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x)
        return hidden.tanh()


def test_argument_and_result() -> None:
    check(twice, MATRICES, MATRICES)


def test_list() -> None:
    check(lambda x: total(list(x)), MATRICES, MATRICES)


def test_sequence_and_tuple() -> None:
    check(lambda x: ends(x.unbind(0)), MATRICES, MATRICES)


def test_union() -> None:
    check(lambda x: [scaled(x), scaled(x, 2.0), scaled(x, x.sum())], MATRICES, MATRICES)


def test_dict() -> None:
    check(named, MATRICES, MATRICES)


def test_validator() -> None:
    check(squared, MATRICES, MATRICES)


def test_dataclass() -> None:
    check(lambda x: State(x.exp(), len(x)), MATRICES, MATRICES)


def test_module() -> None:
    model = Layer()
    check(model, MATRICES, [*MATRICES, *model.parameters()])


def test_parameter() -> None:
    @beartype
    def weighted(x: Any, weight: nn.Parameter) -> Any:
        return x @ weight

    weight = nn.Parameter(torch.randn(4, 2, dtype=torch.float64))
    check(lambda x: weighted(x, weight), MATRICES, [*MATRICES, weight])


def test_asked_at_the_door() -> None:
    kind: Any = Tensor
    kinds: Any = list[Tensor]
    check(lambda x: (is_bearable(x, kind), is_bearable([x * 2], kinds)), MATRICES)


def test_refused_at_the_door() -> None:
    def function(x: Any) -> Any:
        die_if_unbearable(x.sum(), Tensor)
        return x.sum()

    check(function, MATRICES, MATRICES)


def test_numbers_are_no_tensors() -> None:
    def function(x: Any) -> Any:
        try:
            number: Any = len(x)
            return twice(number)
        except BeartypeCallHintParamViolation as error:
            return type(error).__name__

    check(function, MATRICES)


def test_tensors_are_no_numbers() -> None:
    def function(x: Any) -> Any:
        kinds: list[Any] = [int, float, Sequence, Tensor | int]
        return [is_bearable(x.sum(), kind) for kind in kinds]

    check(function, MATRICES)
