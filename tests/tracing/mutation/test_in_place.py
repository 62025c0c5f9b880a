"""Changes in place, of values and of what is the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly, steps_of
from tests.tracing.plain import sequences

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")

SHARED = torch.zeros(3, dtype=torch.float64)


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "methods": lambda x: x.add_(1).mul_(2).sub_(x * 0.5).neg_(),
    "fill and zero": lambda x: (x[0].fill_(2.0), x[-1].zero_(), x),
    "copy": lambda x: x.copy_(x * 2),
}


def _augmented(x: torch.Tensor) -> Any:
    y = x
    x += 1
    x *= x.sum()
    x[0] -= 3
    x[1:] /= 2
    x **= 2
    return x, y


def _items(x: torch.Tensor) -> Any:
    x[0] = x[1] * 2
    x[1, 2] = 5.0
    x[:, 0] = x[:, 1]
    x[-1] = torch.zeros(3)
    x[2:] = 1
    x[..., 1] = x.sum()
    return x


def _first_row(x: torch.Tensor) -> Any:
    y = x[0]
    y.mul_(2)
    x.add_(1)
    return x, y


def _parts(x: torch.Tensor) -> Any:
    left, right = x[:, :1], x[:, 1:]
    left += right[:, :1] * 2
    upper = x.view(-1)[4:8]
    upper.mul_(3)
    return x, left, upper


def _transposed(x: torch.Tensor) -> Any:
    y = x.t()
    y[0] = 7.0
    z = x.transpose(0, 1).unsqueeze(0)
    z.add_(1)
    return x, y, z


def _masked(x: torch.Tensor) -> Any:
    x[x > 0] = 0.0
    x[x < -1] *= 2
    x.masked_fill_(x == 0, 3.0)
    return x


def _index_methods(x: torch.Tensor) -> Any:
    x.index_fill_(0, torch.tensor([0]), 2.0)
    x.index_add_(0, torch.tensor([1]), x[2:3].clone())
    return x.scatter_(1, torch.tensor([[0], [1], [0], [2]]), 9.0)


CHANGES |= {
    "augmented assignment": _augmented, "items": _items, "a row that is a view": _first_row, "parts that are views": _parts,
    "transposed": _transposed, "masked": _masked, "by index": _index_methods,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(lambda x: CHANGES[name](x * 2), inputs, sources=inputs, records=name != "masked")


@pytest.mark.parametrize(
    "name",
    [name for name in CHANGES if name in ("augmented assignment", "items", "copy", "masked", "transposed", "by index")],
)
def test_changes_in_place_of_sequences(name: str) -> None:
    examples = sequences(4, 4)

    def function(rows: torch.Tensor) -> Any:
        return CHANGES[name](torch.stack([row * 2 for row in rows]))

    check_on_the_fly(function, examples, sources=examples, records=name != "masked")


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.__iadd__(1),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: SHARED.add_(x),
        lambda x: torch.add(x, 1, out=torch.zeros(3)),
        lambda x: torch.tensor([0.0, 1.0, 2.0]).__setitem__(0, x.sum()),
    ],
    ids=["method", "operator", "item", "a tensor of all", "out", "an item of a new tensor"],
)
def test_a_change_of_what_is_the_users_is_made(change: Callable[[torch.Tensor], Any]) -> None:
    found: list[Any] = []
    for batch in (fl.one_by_one, fl.batch):
        SHARED.zero_()
        inputs = [torch.ones(3), torch.arange(3.0)]
        results = batch(lambda x: (x * 2, change(x), x * 3))(inputs)
        found.append((results, inputs, SHARED.clone()))
    assert_same(found[1], found[0])


def test_a_recording_cannot_change_what_is_the_users() -> None:
    with pytest.raises(fl.errors.RecordingError, match=r"in example 0, at .*test_in_place.py:\d+") as caught:
        fl.record(lambda x: x.add_(1), torch.ones(3))
    assert "clone" in str(caught.value)


@pytest.mark.parametrize("kind", ["part", "list", "inplace"])
def test_a_change_of_part_of_what_is_the_users(kind: str) -> None:
    table = nn.Embedding(5, 3)

    def part(x: torch.Tensor) -> None:
        y = x[0:1]
        y.add_(1)

    def of_list(x: torch.Tensor) -> None:
        table(x)
        x += 1

    def inplace(x: torch.Tensor) -> None:
        functional.relu(x, inplace=True)

    function = {"part": part, "list": of_list, "inplace": inplace}[kind]
    given = torch.tensor([-1, -2]) if kind == "inplace" else torch.tensor([1, 2])
    expected = given.clone()
    function(expected)
    fl.batch(function)([given])
    assert torch.equal(given, expected)


def test_elements_at_other_places_are_set_in_one_step() -> None:
    inputs = sequences(4, 4, 4)

    def function(x: torch.Tensor, place: int) -> torch.Tensor:
        y = x * 2
        y[place] = x[0, 0]
        y[place - 1] = 3
        y[place - 2] = x[:1]
        return y

    check_on_the_fly(function, inputs, [0, 3, -1], sources=inputs)
    assert steps_of(function, inputs, [0, 3, 2]) == steps_of(function, inputs[:1], [1])
    with pytest.raises(IndexError, match="out of bounds"):
        fl.batch(lambda x: (x * 2).__setitem__(4, 1.0))(inputs)
