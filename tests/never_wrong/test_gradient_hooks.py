"""Hooks on values, gradients that are retained, and leaves that a program makes."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import SCHEDULERS, check, linear, loss_of, vectors

LAYER = linear()

Seen = list[Any]


def doubled(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x)
    y.register_hook(lambda grad: grad * 2)
    return y * y


def used_before_and_after(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x)
    before = y.sin()
    y.register_hook(lambda grad: seen.append(grad.clone()))
    return before + y.cos()


def several(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x)
    y.register_hook(lambda grad: grad + 1)
    y.register_hook(lambda grad: seen.append(grad.clone()))
    removed = y.register_hook(lambda grad: grad * 1000)
    removed.remove()
    return y.exp()


def not_reached(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x)
    if x[0] > 0:
        (y * 3).register_hook(lambda grad: seen.append("never"))
    return y.exp()


def before_a_change(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x) * 2
    y.register_hook(lambda grad: seen.append(grad.clone()))
    y.mul_(3)
    return y


def after_a_wait(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x)
    z = y.sin()
    if z.sum() > 0:
        y.register_hook(lambda grad: grad * 5)
    return z * y


def of_what_was_given(x: torch.Tensor, seen: Seen) -> Any:
    x.register_hook(lambda grad: seen.append(grad.clone()))
    return LAYER(x)


def of_rows(x: torch.Tensor, seen: Seen) -> Any:
    rows = torch.stack([LAYER(x), x * 2])
    rows.register_hook(lambda grad: seen.append(grad.clone()))
    return rows.sum(0) * rows[1]


def of_a_row(x: torch.Tensor, seen: Seen) -> Any:
    row = LAYER(x)[1]
    row.register_hook(lambda grad: grad * 7)
    return row * x


def retained(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x)
    y.retain_grad()
    return y * 3, y


def retained_and_changed(x: torch.Tensor, seen: Seen) -> Any:
    y = LAYER(x) * 2
    y.retain_grad()
    y.mul_(3)
    return y * 3, y


HOOKED = [
    doubled, used_before_and_after, several, not_reached, before_a_change, after_a_wait, of_what_was_given, of_rows, of_a_row, retained,
    retained_and_changed,
]  # fmt: skip


def gradients_and_seen(
    run: Callable[..., Any], function: Callable[..., Any], given: list[torch.Tensor]
) -> tuple[list[Any], Seen]:
    inputs, seen = [x.detach().clone().requires_grad_() for x in given], Seen()
    LAYER.zero_grad()
    results = run(lambda x: function(x, seen))(inputs)
    loss_of(results).backward()
    retained = [result[1].grad for result in results if isinstance(result, tuple)]
    in_order = sorted([item.tolist() if isinstance(item, torch.Tensor) else item for item in seen])
    return [*[x.grad for x in inputs], LAYER.weight.grad, LAYER.bias.grad, *retained], in_order


@pytest.mark.parametrize("function", HOOKED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=str)
def test_hooks_see_what_they_would(function: Callable[..., Any], scheduler: fl.Scheduler) -> None:
    given = vectors()
    expected, expected_seen = gradients_and_seen(lambda f: lambda xs: [f(x) for x in xs], function, given)
    found, found_seen = gradients_and_seen(lambda f: fl.batch(f, scheduler=scheduler), function, given)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_seen, expected_seen)


@pytest.mark.parametrize("name", ["register_hook", "retain_grad", "register_post_accumulate_grad_hook"])
def test_hooks_of_what_has_no_history(name: str) -> None:
    arguments = () if name == "retain_grad" else (print,)
    with pytest.raises(RuntimeError):
        fl.batch(lambda x: getattr((x * 2).detach(), name)(*arguments))(vectors())


def test_hooks_that_come_too_late_are_refused() -> None:
    def function(x: torch.Tensor) -> Any:
        rows = torch.stack([x * 2, x * 3])
        before = rows.sum(0)
        rows.register_hook(lambda grad: grad * 2)
        return before + rows[0]

    with pytest.raises(fl.errors.ArgumentError, match="before they are used"):
        fl.batch(function)(vectors())


def test_hooks_keep_no_batch_alive() -> None:
    def function(x: torch.Tensor) -> Any:
        y = LAYER(x)
        y.register_hook(lambda grad: grad * 2)
        y.retain_grad()
        return y

    gc.collect()
    gc.disable()
    try:
        results = fl.batch(function)(vectors())
        loss_of(results).backward()
        alive = weakref.ref(results[0])
        del results
        assert alive() is None
    finally:
        gc.enable()


# ---- Leaves.


def leaf_of_what_was_given(x: torch.Tensor) -> Any:
    return x.requires_grad_() * 2, x.is_leaf, x.requires_grad


def leaf_that_is_used_before(x: torch.Tensor) -> Any:
    y = x.detach() * 2
    before = y * 3
    y.requires_grad_()
    return before.requires_grad, (y * 3).requires_grad, y, y * 3


def leaf_of_a_constant(x: torch.Tensor) -> Any:
    y = torch.zeros(3, dtype=torch.float64).requires_grad_()
    return y, LAYER(y + x)


def flag_taken_away(x: torch.Tensor) -> Any:
    y = x.detach().clone().requires_grad_()
    before = y * 2
    y.requires_grad_(False)
    return before.requires_grad, (y * 2).requires_grad, y


def leaf_changed_within_no_grad(x: torch.Tensor) -> Any:
    y = x.detach().clone().requires_grad_()
    before = y * 2
    with torch.no_grad():
        y += x
        y[0] = 3
    return before, y * 5, y


def parameter(x: torch.Tensor) -> Any:
    weight = nn.Parameter(x.detach() * 2)
    return weight, weight * x, isinstance(weight, nn.Parameter), type(weight).__name__


def module_made_inside(x: torch.Tensor) -> Any:
    norm = nn.LayerNorm(3, dtype=torch.float64)
    return norm(LAYER(x)), [name for name, _ in norm.named_parameters()], norm.weight


LEAVES = [
    leaf_of_what_was_given, leaf_that_is_used_before, leaf_of_a_constant, flag_taken_away, leaf_changed_within_no_grad, parameter,
    module_made_inside,
]  # fmt: skip


@pytest.mark.parametrize("function", LEAVES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("tracked", [True, False])
def test_leaves_that_a_program_makes(function: Callable[[torch.Tensor], Any], tracked: bool) -> None:
    inputs = [x.detach().requires_grad_(tracked) for x in vectors()]
    check(function, inputs, sources=[*inputs, *LAYER.parameters()] if tracked else LAYER.parameters())


@pytest.mark.parametrize(
    "call",
    [
        lambda x: (x * 2).requires_grad_(False),
        lambda x: (x * 2).argmax().requires_grad_(),
        lambda x: x.detach().requires_grad_().add_(1),
    ],
)
def test_flags_that_cannot_be_set(call: Callable[[torch.Tensor], Any]) -> None:
    inputs = vectors()
    with pytest.raises(RuntimeError) as alone:
        call(inputs[0])
    with pytest.raises(RuntimeError) as batched:
        fl.batch(call)(inputs)
    assert str(batched.value)[:20] == str(alone.value)[:20]


def test_gradients_arrive_in_leaves() -> None:
    def function(x: torch.Tensor) -> Any:
        leaf = (x.detach() * 2).requires_grad_()
        return leaf, (leaf * leaf).sum()

    results = fl.batch(function)(vectors())
    loss_of([loss for _, loss in results]).backward()
    for number, (leaf, _) in enumerate(results):
        assert leaf.is_leaf
        weight = math.cos(number)  # of this result in the loss
        torch.testing.assert_close(leaf.grad, 2 * weight * leaf.detach())


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=repr)
def test_hooks_of_weights_that_are_read_where_a_value_says(scheduler: fl.Scheduler) -> None:
    """Such a call runs at once, with the weights themselves. One by one, nothing comes to a weight that the loss does not use."""
    weight, seen = nn.Parameter(torch.arange(3.0)), Seen()
    weight.register_hook(lambda grad: seen.append(grad.clone()))

    def program(n: int) -> Any:
        index = torch.tensor(n) % 3
        return weight[index] > 0.1, LAYER.weight[index].sum(), weight[index] * 2

    batched = fl.batch(program, scheduler=scheduler)
    sum(result[1] for result in batched([1, 2])).backward()
    assert not seen
    assert weight.grad is None
    batched([1, 2])[0][2].backward()
    assert [grad.tolist() for grad in seen] == [[0.0, 2.0, 0.0]]
