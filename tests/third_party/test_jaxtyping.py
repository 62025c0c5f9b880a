"""jaxtyping: shapes and dtypes in hints, checked by beartype."""

# ruff: noqa: F722, F821 - what jaxtyping calls a shape is no forward reference

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.third_party.checking import check, tensors

pytest.importorskip("beartype", reason="beartype is not installed: make trials")
pytest.importorskip("jaxtyping", reason="jaxtyping is not installed: make trials")

from beartype import beartype
from jaxtyping import Bool, Float, Float32, Float64, Int, Num, Shaped, TypeCheckError, jaxtyped

MATRICES = tensors((2, 4), (3, 4), (5, 4), (3, 4))
checked = jaxtyped(typechecker=beartype)


@checked
def gram(x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows rows"]:
    return x @ x.t()


@checked
def weighted(x: Float[Tensor, "rows size"], weights: Float[Tensor, "rows"]) -> Float[Tensor, "size"]:
    return weights @ x


@checked
def total(x: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
    return x.sum()


@checked
def padded(x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows+1 size"]:
    return torch.cat([x, x[:1]])


@checked
def best(x: Num[Tensor, "rows size"]) -> tuple[Int[Tensor, "rows"], Bool[Tensor, "rows size"]]:
    return x.argmax(1), x > 0


@checked
def joined(rows: list[Float[Tensor, "size"]]) -> Float[Tensor, "rows size"]:
    return torch.stack(rows).exp()


@checked
@dataclass
class State:
    hidden: Float64[Tensor, "rows 4"]
    last: Float64[Tensor, "4"]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3).double()

    @checked
    def forward(self, x: Float[Tensor, "rows size"]) -> Float[Tensor, "rows out"]:
        hidden: Tensor = self.linear(x)
        return hidden.relu()


def test_same_name_same_size() -> None:
    check(gram, MATRICES, MATRICES)


def test_two_arguments() -> None:
    check(lambda x: weighted(x, x.sum(1).softmax(0)), MATRICES, MATRICES)


def test_any_shape() -> None:
    check(lambda x: total(x) + total(x[0]), MATRICES, MATRICES)


def test_sum_of_sizes() -> None:
    check(padded, MATRICES, MATRICES)


def test_dtypes() -> None:
    check(best, MATRICES)


def test_list() -> None:
    check(lambda x: joined(list(x)), MATRICES, MATRICES)


def test_dataclass() -> None:
    check(lambda x: State(x.tanh(), x[-1]), MATRICES, MATRICES)


def test_module() -> None:
    model = Layer()
    check(model, MATRICES, [*MATRICES, *model.parameters()])


def test_asked() -> None:
    def function(x: Any) -> Any:
        kinds: list[Any] = [
            Float[Tensor, "rows 4"],
            Float[Tensor, "3 size"],
            Float32[Tensor, "..."],
            Shaped[Tensor, "_ _"],
        ]
        return [isinstance(x * 2, kind) for kind in kinds]

    check(function, MATRICES)


def test_wrong_shape_is_caught() -> None:
    def function(x: Any) -> Any:
        try:
            return weighted(x, x[0])
        except TypeCheckError as error:
            return type(error).__name__

    check(function, tensors((2, 3), (3, 3), (4, 3)))


def test_wrong_dtype_is_caught() -> None:
    def function(x: Any) -> Any:
        try:
            return gram(x.long() if len(x) == 3 else x)
        except TypeCheckError as error:
            return type(error).__name__

    check(function, MATRICES, MATRICES)


def test_assertion_inside() -> None:
    @jaxtyped(typechecker=None)
    def function(x: Any) -> Any:
        matrix: Any = Float[Tensor, "rows size"]
        vector: Any = Float[Tensor, "rows"]
        assert isinstance(x, matrix)
        scores = x.sum(1)
        assert isinstance(scores, vector)
        return scores

    check(function, MATRICES, MATRICES)
