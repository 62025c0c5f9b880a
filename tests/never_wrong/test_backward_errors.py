"""What backward raises one by one, because a tensor that was saved for it has been changed in place since, it raises batched; nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import SCHEDULERS, linear, loss_of, vectors

LAYER = linear()
LSTM = nn.LSTMCell(3, 3, dtype=torch.float64)
SQUARE = fl.cell(lambda x: x * x)


def product_of_what_changes(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v * v
    v.add_(1)
    return kept


def result_that_changes(x: torch.Tensor) -> Any:
    v = torch.tanh(LAYER(x))
    v.add_(1)
    return v


def sum_of_what_changes(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v + v
    v.add_(1)
    return kept * v


def constant_that_changes(x: torch.Tensor) -> Any:
    v = torch.zeros(3, dtype=torch.float64)
    kept = LAYER(v)
    v[0] = 1
    return kept + x


def one_of_two_constants_changes(x: torch.Tensor) -> Any:
    v, other = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    kept = LAYER(v)
    other[0] = 1
    return kept + x + other


def view_that_was_used(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v[0] * v[1]
    v.add_(1)
    return kept


def changed_through_a_view(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v * v
    v[1:].zero_()
    return kept


def detached_alias(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v.detach() * x
    v.add_(1)
    return kept


def data_alias(x: torch.Tensor) -> Any:
    """Of which autograd hears nothing."""
    v = x * 2
    kept = (v.data.clone() * x).sin()
    v.data.add_(1)
    return kept + v


def copy_that_changes(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v * v
    other = v.clone()
    other.add_(1)
    return kept + other


def in_place_again(x: torch.Tensor) -> Any:
    v = x * 2
    v.relu_()
    v.relu_()
    return v


def product_in_place(x: torch.Tensor) -> Any:
    v = x * 2
    v.mul_(x)
    v.add_(1)
    return v


def product_with_itself(x: torch.Tensor) -> Any:
    v = x * 2
    v.mul_(v)
    return v


def factor_without_history(x: torch.Tensor) -> Any:
    """One factor is saved for the gradient of the other."""
    v, constant = x * 2, x.detach() + 1
    kept = v * constant
    v.add_(1)
    return kept


def factor_that_is_saved(x: torch.Tensor) -> Any:
    v, constant = x * 2, x.detach() + 1
    kept = v * constant
    constant.add_(1)
    return kept


def under_no_grad(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v * v
    with torch.no_grad():
        v.add_(1)
    return kept


def saved_under_no_grad(x: torch.Tensor) -> Any:
    v = x * 2
    with torch.no_grad():
        kept = v * v
    v.add_(1)
    return kept + v


def result_that_nobody_uses(x: torch.Tensor) -> Any:
    v = x * 2
    torch.tanh(v).mul_(v)
    return v


def cell_of_torch(x: torch.Tensor) -> Any:
    hidden, state = LSTM(LAYER(x))
    state.mul_(2)
    return hidden


def own_cell(x: torch.Tensor) -> Any:
    v = LAYER(x)
    kept = SQUARE(v)
    v.add_(1)
    return kept


def rows_that_change(x: torch.Tensor) -> Any:
    v = torch.stack([x * 2, x * 3])
    kept = v * v
    v[0] = 1
    return kept


def row_beside_its_stack(x: torch.Tensor) -> Any:
    v = x * 2
    stack = torch.stack([v, v])
    kept = stack * stack
    v.add_(1)
    return kept


def after_a_wait(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v * v
    if kept.sum() > 0:
        v.add_(1)
    return kept


def in_some_examples(x: torch.Tensor) -> Any:
    v = x * 2
    kept = v * v
    if x[0] > 0:
        v.add_(1)
    return kept


def transposed_in_place(x: torch.Tensor) -> Any:
    v = x.view(3, 1) * 2
    kept = v * v
    v.t_()
    return kept


def filled_step_by_step(x: torch.Tensor) -> Any:
    states = torch.zeros(4, 3, dtype=torch.float64)
    for step in range(3):
        states[step + 1] = torch.tanh(LAYER(states[step].clone() + x))
    return states


def filled_from_itself(x: torch.Tensor) -> Any:
    states = torch.zeros(4, 3, dtype=torch.float64)
    for step in range(3):
        states[step + 1] = torch.tanh(LAYER(states[step] + x))
    return states


def matrix_filled_from_itself(x: torch.Tensor) -> Any:
    states = torch.zeros(4, 3, dtype=torch.float64)
    for step in range(3):
        states[step + 1] = LAYER(states[step])
    return states + x


PROGRAMS: list[Callable[[torch.Tensor], Any]] = [
    product_of_what_changes, result_that_changes, sum_of_what_changes, constant_that_changes, one_of_two_constants_changes,
    view_that_was_used, changed_through_a_view, detached_alias, data_alias, copy_that_changes, in_place_again, product_in_place,
    product_with_itself, factor_without_history, factor_that_is_saved, under_no_grad, saved_under_no_grad, result_that_nobody_uses,
    cell_of_torch, own_cell, rows_that_change, row_beside_its_stack, after_a_wait, in_some_examples, transposed_in_place,
    filled_step_by_step, filled_from_itself, matrix_filled_from_itself,
]  # fmt: skip


def backward(results: Any, sources: list[torch.Tensor]) -> list[Any] | str:
    """Gradients, or what backward raises."""
    try:
        return [*torch.autograd.grad(loss_of(results), sources, allow_unused=True)]
    except RuntimeError as error:
        return str(error)[:80]


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=str)
def test_backward_raises_as_one_by_one(function: Callable[[torch.Tensor], Any], scheduler: fl.Scheduler) -> None:
    inputs = vectors()
    sources = [*inputs, *LAYER.parameters(), *LSTM.parameters()]
    expected = backward([function(x) for x in inputs], sources)
    found = backward(fl.batch(function, scheduler=scheduler)(inputs), sources)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            torch.testing.assert_close(one, other)


def test_only_the_examples_that_changed_raise() -> None:
    inputs = vectors()
    inputs[0].data.abs_()
    inputs[1].data.abs_().neg_()
    changed, unchanged, *_ = fl.batch(in_some_examples)(inputs)
    unchanged.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()


def test_weights_that_no_gradient_reaches_call_no_hooks() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    seen: list[Any] = []
    weight.register_hook(seen.append)

    def function(x: torch.Tensor) -> Any:
        return x * 2, x * weight, x * weight[1]

    results = fl.batch(function)(vectors())
    torch.stack([result[0] for result in results]).sum().backward(retain_graph=True)
    assert not seen
    torch.stack([result[1] for result in results]).sum().backward()
    assert len(seen) == 1


def a_view_changed_twice(x: torch.Tensor) -> Any:
    base = x * 2
    torch.relu_(base[1:])
    torch.relu_(base[1:])
    return base


def another_part_changed(x: torch.Tensor) -> Any:
    base = x * 2
    base[0].exp_()
    base[1].exp_()
    return base


def a_view_changed_once(x: torch.Tensor) -> Any:
    base = x * 2
    base[0].exp_()
    return base * 3


def a_view_changed_twice_of_which_nothing_is_saved(x: torch.Tensor) -> Any:
    base = x * 2
    base[0].mul_(3)
    base[0].mul_(3)
    return base


NORM = nn.BatchNorm1d(3).double().eval()


def saved_by_a_norm(x: torch.Tensor) -> Any:
    base = x * 2
    normed = NORM(base.unsqueeze(0))
    base.mul_(2)
    return normed


def a_stack_of_saved_results_changed(x: torch.Tensor) -> Any:
    stack = torch.stack([x.max(), x.exp()[0].exp()])
    stack[1] = 1
    return stack


@pytest.mark.parametrize(
    "function",
    [
        saved_by_a_norm,
        a_stack_of_saved_results_changed,
        a_view_changed_twice,
        another_part_changed,
        a_view_changed_once,
        a_view_changed_twice_of_which_nothing_is_saved,
    ],
)
def test_what_was_written_through_a_view(function: Callable[..., Any]) -> None:
    errors = []
    for run in (fl.one_by_one, fl.batch):
        xs = vectors(3)
        errors.append(_backward_error(run(function)(xs)))
    assert errors[0] == errors[1]


def test_tensors_of_the_users_that_are_changed_after_they_were_saved() -> None:
    weight = torch.nn.Parameter(torch.ones(3).double())

    def saved(x: torch.Tensor) -> Any:
        y = x * weight
        x += 1
        return y

    def not_saved(x: torch.Tensor) -> Any:
        y = x + weight
        x += 1
        return y, x * weight

    def rows_saved(x: torch.Tensor) -> Any:
        y = [row * weight for row in x]
        x += 1
        return torch.stack(y)

    for function, shape in ((saved, (3,)), (not_saved, (3,)), (rows_saved, (2, 3))):
        errors = [
            _backward_error(run(function)([torch.ones(shape).double() for _ in range(3)]))
            for run in (fl.one_by_one, fl.batch)
        ]
        assert errors[0] == errors[1], function


def _backward_error(results: Any) -> bool:
    try:
        loss_of(results).backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False
