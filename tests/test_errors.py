"""Mistakes are answered by name: the cell, the shapes, the example, the user's own line, and what to write."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import errors
from tests.tree_lstm import TreeLSTM, random_trees

HERE = re.escape(__file__)
double = fl.cell(lambda x: 2 * x)
double.label = "double"
ONES = [torch.ones(2), torch.ones(2)]


def test_wrong_shape_names_cell_shapes_example_and_line() -> None:
    linear = fl.cell(nn.Linear(3, 2))

    def function(size: int) -> Any:
        return linear(torch.ones(size))

    with pytest.raises(
        errors.CellError, match=rf"cell Linear cannot take \(float32\[4\]\)(.|\n)*in example 2, at {HERE}:\d+"
    ):
        fl.batch(function)([3, 3, 4])


def test_mixed_dtypes() -> None:
    linear = fl.cell(nn.Linear(3, 2))
    with pytest.raises(errors.CellError, match=r"cell Linear cannot take \(float64\[3\]\).*dtype"):
        fl.batch(linear)([torch.ones(3, dtype=torch.float64)])


def test_mixed_devices() -> None:
    add = fl.cell(lambda x, y: x + y)
    with pytest.raises(
        errors.ArgumentError, match=r"on meta and cpu in one batch. Move them to one device first: `tensor.to\('cpu'\)`"
    ):
        fl.batch(add)([torch.ones(2)], [torch.ones(2, device="meta")])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.sum(), r"returned float32\[\]: the first dimension must be the batch.*`x.sum\(-1\)`"),
        (lambda x: x[:1], r"returned float32\[1, 2\]: the first dimension must be the batch, of size 3"),
        (lambda x: 1.5, r"returned 1.5 \(float\). A cell returns tensors"),
        (lambda x: None, r"returned None \(NoneType\). A cell returns tensors"),
        (lambda x: (), "returned no tensor"),
        (lambda x: (x, "text"), r"returned 'text' \(str\)"),
    ],
)
def test_cells_that_return_something_else(function: Any, message: str) -> None:
    with pytest.raises(errors.CellOutputError, match=message):
        fl.batch(fl.cell(function))(ONES)


def test_cell_that_returns_something_else_alone() -> None:
    with pytest.raises(errors.CellOutputError, match="must be the batch, of size 1"):
        fl.cell(lambda x: x.sum())(torch.ones(2))


def test_output_that_depends_on_the_batch_size() -> None:
    fickle = fl.cell(lambda x: x if len(x) != 2 else x.double())
    with pytest.raises(
        errors.CellOutputError, match=r"returned float64\[2, 2\] for 2 members; expected float32\[2, 2\]"
    ):
        fl.batch(fickle)(ONES)
    moody = fl.cell(lambda x: (x, x) if len(x) != 2 else (x,))
    with pytest.raises(errors.CellOutputError, match="returned 1 tensors for 2 members, but 2"):
        fl.batch(moody)(ONES)


def test_result_of_another_batch() -> None:
    kept: list[Any] = []
    fl.batch(lambda x: kept.append(double(x)))(ONES)
    with pytest.raises(errors.ForeignValueError, match=r"given to cell double(.|\n)*in example 0, at"):
        fl.batch(lambda x: double(kept[0]))(ONES)
    with pytest.raises(errors.ForeignValueError, match="returned from this example"):
        fl.batch(lambda x: kept[0])(ONES)
    with pytest.raises(errors.ForeignValueError):
        fl.batch(lambda x: double((kept[0], x)))(ONES)


def test_cell_called_inside_itself() -> None:
    cells: list[fl.Cell] = []
    cells.append(fl.cell(lambda x: cells[0](x)))
    with pytest.raises(errors.NestedCellError, match=r"calls itself.*let the function given to fl.batch recurse"):
        fl.batch(cells[0])(ONES)
    with pytest.raises(errors.NestedCellError):
        cells[0](torch.ones(2))


def test_plan_with_other_cells() -> None:
    planned = fl.plan([fl.record(TreeLSTM(hidden=4), tree) for tree in random_trees(3)])
    with pytest.raises(errors.CellMismatchError, match="the plan was made for another Leaf: it expects Leaf"):
        fl.batch(TreeLSTM(hidden=5)).run(planned)
    with pytest.raises(errors.CellMismatchError, match="uses a cell 'leaf' that Linear does not have"):
        fl.batch(nn.Linear(2, 2)).run(planned)


def test_failure_while_running_names_the_example() -> None:
    table = fl.cell(nn.Embedding(5, 2))
    with pytest.raises(
        errors.CellError, match=r"cell Embedding failed in step 0 on \(int64\[3\]\), example 1: index out of range"
    ):
        fl.batch(table)([1, 7, 2])


def test_failure_of_members_together() -> None:
    def crowded(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 2:
            raise ValueError("two is a crowd")
        return x

    with pytest.raises(errors.CellError, match=r"2 members together \(each alone succeeds\), of examples 0, 1: two is"):
        fl.batch(fl.cell(crowded))(ONES)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_cell_that_changes_its_argument(mode: Any) -> None:
    greedy = fl.cell(lambda x: x.add_(1))
    with mode(), pytest.raises(errors.CellError, match="changes one of its arguments in place"):
        fl.batch(greedy)([1, 2])
    with mode(), pytest.raises(errors.CellError, match="changes one of its arguments in place"):
        fl.batch(lambda x: greedy(double(x)))(ONES)


def test_tensor_changed_after_it_was_given() -> None:
    def function(x: torch.Tensor) -> Any:
        result = double(x)
        x.add_(1)
        return result

    given = torch.ones(2)
    assert fl.batch(function)([given])[0].tolist() == given.tolist() == [2, 2]
    with pytest.raises(errors.RecordingError, match=r"made outside is changed in place \(`add_`\).*`x = x.clone\(\)`"):
        fl.record(function, torch.ones(2))

    def with_a_tensor_of_its_own(_: int) -> Any:
        x = torch.tensor([1.0, 1.0])
        result = double(x)
        x.add_(1)
        return result

    with pytest.raises(errors.ArgumentError, match=r"float32\[2\]\) was changed in place after.*`x.clone\(\)`"):
        fl.record(with_a_tensor_of_its_own, 1)


@pytest.mark.parametrize("bad", ["text", None, object(), np.array(["a"])])
def test_argument_that_cannot_be_batched(bad: Any) -> None:
    with pytest.raises(
        errors.ArgumentError, match=r"cell double was given .* which cannot be batched(.|\n)*pass settings by keyword"
    ):
        fl.batch(double)([bad])
    with pytest.raises(errors.ArgumentError, match="cannot be batched"):
        double(bad)


def test_settings() -> None:
    scale = fl.cell(lambda x, by: x * by)
    with pytest.raises(errors.ArgumentError, match=r"a tensor by keyword \(by\)"):
        fl.batch(lambda x: scale(x, by=x))(ONES)
    with pytest.raises(errors.ArgumentError, match=r"by=\[1\], which cannot tell one step from another"):
        fl.batch(lambda x: scale(x, by=[1]))(ONES)


def test_no_arguments() -> None:
    constant = fl.cell(lambda: torch.ones(1))
    with pytest.raises(errors.ArgumentError, match="with nothing to batch"):
        fl.batch(lambda x: constant())(ONES)
    with pytest.raises(errors.ArgumentError, match="with nothing to batch"):
        constant()


def test_a_recording_that_asks_for_a_value() -> None:
    with pytest.raises(
        errors.ValueNotReadyError, match=r"asks for a value that is not computed yet, at .*test_errors.py:\d+"
    ):
        fl.record(lambda x: double(x) if double(x).sum() > 0 else x, torch.ones(2))


def test_what_is_known_of_a_value_at_once() -> None:
    seen: list[Any] = []

    def function(x: torch.Tensor) -> Any:
        h = double(x)
        seen.append((h.shape, h.dtype, h.ndim, h.dim(), h.size(), h.size(0), repr(h)))
        return h

    fl.batch(function)([torch.ones(2)])
    assert seen == [((2,), torch.float32, 1, 1, (2,), 2, "tensor([2., 2.])")]


def test_the_users_own_exception_says_which_example() -> None:
    def function(x: int) -> Any:
        if x == 3:
            raise KeyError("no such word")
        return double(x)

    with pytest.raises(KeyError, match="no such word") as caught:
        fl.batch(function)([1, 2, 3])
    assert caught.value.__notes__ == ["in example 2"]
    assert fl.batch(function)([1]) == [torch.tensor(2)], "a failed batch must not leave recording switched on"


def test_columns_of_different_lengths() -> None:
    with pytest.raises(errors.ArgumentError, match=r"different lengths \[2, 1\]"):
        fl.batch(double)(ONES, [1])
    with pytest.raises(errors.ArgumentError, match="at least one list"):
        fl.batch(double)()
    with pytest.raises(errors.ArgumentError, match="nothing to plan"):
        fl.plan([])


def test_cell_of_something_that_cannot_be_called() -> None:
    with pytest.raises(errors.ArgumentError, match="takes a function or a module, not int"):
        fl.cell(3)  # type: ignore[arg-type]


def test_cell_as_a_method() -> None:
    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Model:
            @fl.cell
            def merge(self, x: torch.Tensor) -> torch.Tensor:
                return x

    reason = caught.value.__cause__ or caught.value
    assert "write `self.merge = fl.cell(self._merge)`" in str(reason)


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: double(torch.ones(int(x))), r"result is float32\[1\] in one place and float32\[2\] in another"),
        (lambda x: (double(x),) * int(x), "result is a tuple of different lengths.*return a list"),
        (lambda x: double(x) if x > 1 else 3, "result is a int in one example and a tensor in another"),
        (lambda x: {str(x): double(x)}, "result has different keys"),
        (lambda x: Pair(double(x), [[double(x)]]), r"result.second is a list of lists"),
    ],
)
def test_results_that_cannot_be_stacked(function: Any, message: str) -> None:
    with pytest.raises(errors.StackError, match=message):
        fl.batch(function, stack=True)([1.0, 2.0])


def test_stacking_nothing() -> None:
    with pytest.raises(errors.StackError, match="an empty batch has no result"):
        fl.batch(double, stack=True)([])
    with pytest.raises(errors.StackError, match="an empty batch has no result"):
        fl.one_by_one(double, stack=True)([])


def test_every_error_is_in_the_tree() -> None:
    drawn = set(re.findall(r"(\w+Error)\b", errors.__doc__ or ""))
    defined = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
    assert drawn == defined
    assert all(issubclass(getattr(errors, name), errors.FoldloomError) for name in defined)


def test_tensors_that_need_gradients_do_not_travel() -> None:
    recording = fl.record(double, torch.ones(2, requires_grad=True))
    for item in (recording, fl.plan([recording])):
        with pytest.raises(
            errors.RecordingError, match=r"needs gradients \(float32\[2\]\) cannot be sent to another process"
        ):
            pickle.dumps(item)
