"""tensordict: dicts of tensors with a common batch size, and modules over them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.third_party.checking import check, tensors

pytest.importorskip("tensordict", reason="tensordict is not installed: make trials")

from tensordict import TensorDict, tensorclass
from tensordict.nn import TensorDictModule, TensorDictSequential

ROWS = tensors((2, 4), (3, 4), (5, 4), (3, 4))


def made(x: Any) -> Any:
    return TensorDict({"x": x, "inner": {"sum": x.sum(1)}}, batch_size=[len(x)])


@tensorclass
class State:
    hidden: torch.Tensor
    score: torch.Tensor


def test_made_and_read() -> None:
    def function(x: Any) -> Any:
        data = made(x.exp())
        return data["x"], data["inner", "sum"], data.get("x").mean(), data.batch_size

    check(function, ROWS, ROWS)


def test_returned() -> None:
    check(made, ROWS, ROWS)


def test_to_dict() -> None:
    check(lambda x: made(x * 2).to_dict(), ROWS, ROWS)


def test_without_a_batch_size() -> None:
    check(lambda x: TensorDict({"x": x, "mean": x.mean()})["mean"], ROWS, ROWS)


def test_set_and_update() -> None:
    def function(x: Any) -> Any:
        data = made(x)
        data["more"] = x.tanh()
        data.update({"x": data["x"] + 1})
        return sorted(data.keys(include_nested=True, leaves_only=True), key=str), data["more"], data["x"]

    check(function, ROWS, ROWS)


def test_index() -> None:
    check(lambda x: [made(x)[0]["x"], made(x)[1:]["inner", "sum"]], ROWS, ROWS)


def test_apply() -> None:
    check(lambda x: made(x).apply(lambda part: part * 3)["x"], ROWS, ROWS)


def test_arithmetic() -> None:
    check(lambda x: (made(x) * 2 + made(x))["inner", "sum"], ROWS, ROWS)


def test_stack_and_cat() -> None:
    def function(x: Any) -> Any:
        above: Any = torch.stack([made(x), made(x + 1)])
        below: Any = torch.cat([made(x), made(x - 1)])
        return above["x"], below["x"]

    check(function, ROWS, ROWS)


def test_select_and_flatten() -> None:
    def function(x: Any) -> Any:
        data = made(x)
        return data.select("x")["x"], data.flatten_keys(".")["inner.sum"], data.unsqueeze(0)["x"]

    check(function, ROWS, ROWS)


def test_module() -> None:
    layer = nn.Linear(4, 3).double()
    module = TensorDictModule(layer, in_keys=["x"], out_keys=["hidden"])
    check(lambda x: module(made(x))["hidden"], ROWS, [*ROWS, *layer.parameters()])


def test_modules_in_a_row() -> None:
    first, second = nn.Linear(4, 3).double(), nn.Linear(3, 1).double()
    model = TensorDictSequential(
        TensorDictModule(first, in_keys=["x"], out_keys=["hidden"]),
        TensorDictModule(torch.tanh, in_keys=["hidden"], out_keys=["hidden"]),
        TensorDictModule(second, in_keys=["hidden"], out_keys=["score"]),
    )
    check(lambda x: model(made(x))["score"], ROWS, [*ROWS, *first.parameters(), *second.parameters()])


def test_module_of_keywords() -> None:
    layer = nn.Linear(4, 3).double()
    module = TensorDictModule(layer, in_keys=["x"], out_keys=["hidden"])
    check(lambda x: module(x=x), ROWS, [*ROWS, *layer.parameters()])


def test_class() -> None:
    def function(x: Any) -> Any:
        kind: Any = State
        state = kind(hidden=x, score=x.sum(1), batch_size=[len(x)])
        return state.hidden.exp(), state[0].score

    check(function, ROWS, ROWS)


def test_examples_are_tensordicts() -> None:
    def function(data: Any) -> Any:
        return data["x"].exp().sum() + data["inner", "sum"].mean()

    check(function, [made(x) for x in ROWS], ROWS)


def test_wrong_batch_size_is_caught() -> None:
    def function(x: Any) -> Any:
        try:
            return TensorDict({"x": x}, batch_size=[3])["x"]
        except RuntimeError as error:
            return type(error).__name__

    check(function, ROWS, ROWS)
