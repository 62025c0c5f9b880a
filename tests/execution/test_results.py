"""Results come back in the nesting in which the examples returned them."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import foldloom as fl
from foldloom import Ragged

double = fl.cell(lambda x: 2 * x)
halves = fl.cell(lambda x: (x / 2, x.long()))
Point = namedtuple("Point", ["x", "y"])


@dataclass
class Record:
    name: str
    value: Any
    parts: list[Any]


def test_any_nesting() -> None:
    def function(x: float) -> Any:
        y = double(x)
        return {"b": (y, [y, Point(y, "text")]), "a": Record("r", y, []), "c": None, "d": x}

    (result,) = fl.batch(function)([1.5])
    assert result == {
        "b": (torch.tensor(3.0), [torch.tensor(3.0), Point(torch.tensor(3.0), "text")]),
        "a": Record("r", torch.tensor(3.0), []),
        "c": None,
        "d": 1.5,
    }
    assert list(result) == ["b", "a", "c", "d"]


def test_results_of_several_types() -> None:
    results = fl.batch(lambda x: (halves(x), double(x)))([1.0, 5.0])
    assert [(a.item(), b.item(), c.item()) for (a, b), c in results] == [(0.5, 1, 2.0), (2.5, 5, 10.0)]


def test_single_outputs_of_a_cell_with_several() -> None:
    assert [r.item() for r in fl.batch(lambda x: double(halves(x)[1]))([1.0, 5.0])] == [2, 10]


def test_stacked_tensors() -> None:
    def function(x: float) -> Any:
        return {"both": halves(x), "number": x, "flag": x > 1, "name": str(x), "given": torch.tensor([x])}

    result = fl.batch(function, stack=True)([1.0, 5.0])
    assert result["both"][0].tolist() == [0.5, 2.5]
    assert result["both"][1].tolist() == [1, 5]
    assert result["number"].tolist() == [1.0, 5.0]
    assert result["flag"].tolist() == [False, True]
    assert result["name"] == ["1.0", "5.0"]
    assert result["given"].tolist() == [[1.0], [5.0]]


def test_stacked_lists_are_ragged() -> None:
    def function(n: int) -> Any:
        return [double(float(i)) for i in range(n)]

    ragged = fl.batch(function, stack=True)([2, 0, 3])
    assert isinstance(ragged, Ragged)
    assert ragged.values.tolist() == [0, 2, 0, 2, 4]
    assert ragged.lengths.tolist() == [2, 0, 3]
    assert ragged.example_of_row.tolist() == [0, 0, 2, 2, 2]
    assert [row.tolist() for row in ragged] == [[0, 2], [], [0, 2, 4]]
    assert len(ragged) == 3
    assert repr(ragged) == "Ragged(3 examples, 5 rows of torch.float32[])"


def test_lists_of_structures_become_structures_of_ragged() -> None:
    def function(n: int) -> Any:
        return n, [{"pair": halves(float(i)), "name": str(i)} for i in range(n)]

    numbers, rows = fl.batch(function, stack=True)([2, 0, 1])
    assert numbers.tolist() == [2, 0, 1]
    assert rows["pair"][0].values.tolist() == [0, 0.5, 0]
    assert rows["pair"][1].lengths.tolist() == [2, 0, 1]
    assert rows["name"] == [["0", "1"], [], ["0"]]


def test_only_empty_lists() -> None:
    ragged = fl.batch(lambda x: [], stack=True)([1, 2])
    assert ragged.lengths.tolist() == [0, 0]
    assert len(ragged.values) == 0


def test_stacked_in_one_piece_is_not_copied() -> None:
    def all_states(n: int) -> Any:
        states = [double(1.0)]
        for _ in range(n):
            states.append(double(states[-1]))
        return states

    with torch.no_grad():
        ragged = fl.batch(all_states, stack=True)([3])
    assert ragged.values._base is not None, "evenly spaced results are views"


def test_ragged_to_nested_keeps_gradients() -> None:
    values = torch.arange(6.0).view(3, 2).requires_grad_()
    nested = Ragged(values, torch.tensor([1, 2])).to_nested()
    assert nested.layout is torch.jagged
    assert [part.shape for part in nested.unbind()] == [(1, 2), (2, 2)]
    nested.values().sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[1, 1]] * 3


def test_arrays_and_other_leaves_stay_as_they_are() -> None:
    results = fl.batch(lambda x: (double(x), np.array([x])), stack=True)([1, 2])
    assert results[0].tolist() == [2, 4]
    assert [array.tolist() for array in results[1]] == [[1], [2]]


def test_several_columns() -> None:
    add = fl.cell(lambda x, y: x + y)
    assert [r.item() for r in fl.batch(add)([1, 2], (10, 20))] == [11, 22]


def test_what_is_given_in_one_example_and_computed_in_another_is_stacked() -> None:
    def function(n: int, x: torch.Tensor) -> Any:
        return (x if n == 0 else double(x)), [x, double(x)]

    columns = [0, 1, 0, 2], [torch.full((2,), float(n), requires_grad=True) for n in range(4)]
    single, lists = fl.batch(function, stack=True)(*columns)
    expected_single, expected_lists = fl.one_by_one(function, stack=True)(*columns)
    assert torch.equal(single, expected_single)
    assert torch.equal(lists.values, expected_lists.values)
    (single.sum() + lists.values.sum()).backward()
    assert [x.grad.tolist() for x in columns[1]] == [[4, 4], [5, 5], [4, 4], [5, 5]]
