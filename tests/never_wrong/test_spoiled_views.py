"""Views that cannot be differentiated any more, because their base was changed in place: torch raises where one is used, and so does a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import foldloom as fl
from tests.never_wrong.checking import check, linear, vectors

LAYER = linear()
TABLE = torch.nn.Embedding(4, 3, dtype=torch.float64)

CHANGES: dict[str, Callable[[Any], Any]] = {
    "base": lambda base: base.add_(1),
    "element": lambda base: base.__setitem__(1, 2.0),
    "another view": lambda base: base[1:].mul_(2),
    "detached": lambda base: base.detach().mul_(2),
}

VIEWS: dict[str, Callable[[Any], Any]] = {
    "iteration": lambda base: next(iter(base)),
    "unbind": lambda base: base.unbind()[2],
    "split": lambda base: base.split(2)[0],
    "chunk": lambda base: base.chunk(3)[1],
    "view of one": lambda base: base.unbind()[0].view(1),
}

USES: dict[str, Callable[[Any], Any]] = {
    "multiplied": lambda view: view * 2,
    "added up": lambda view: sum([view]),
    "cloned": lambda view: view.clone(),
    "viewed": lambda view: view.reshape(-1),
    "stacked": lambda view: torch.stack([view, view]),
    "written": lambda view: torch.zeros(3).double().__setitem__(slice(0, view.numel()), view),
    "asked": lambda view: view.is_leaf,
    "its history": lambda view: view.grad_fn is None,
    "given to a module": lambda view: LAYER(view.expand(3)),
    "in a cell": lambda view: fl.cell(lambda block: block * 2)(view),
}

HARMLESS: dict[str, Callable[[Any], Any]] = {
    "compared": lambda view: view > 0.3,
    "read": lambda view: view.tolist(),
    "detached": lambda view: view.detach() * 3,
    "its flag": lambda view: view.requires_grad,
    "its shape": lambda view: view.shape,
    "like it": lambda view: torch.zeros_like(view),
    "as another type": lambda view: view.long(),
    "without gradients": torch.no_grad()(lambda view: view * 2),
}


def spoiling(change: Any, view: Any, use: Any) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        base = x * 2
        found = view(base)
        change(base)
        return use(found)

    return function


def error_of(run: Callable[[], Any]) -> str | None:
    try:
        run()
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize("use", USES)
def test_who_asks_for_the_history_hears_torchs_error(use: str) -> None:
    function = spoiling(CHANGES["base"], VIEWS["unbind"], USES[use])
    xs = vectors(3)
    alone = error_of(lambda: fl.one_by_one(function)(xs))
    assert alone is not None
    assert error_of(lambda: fl.batch(function)(xs)) == alone


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_the_view_and_the_change(view: str, change: str) -> None:
    function = spoiling(CHANGES[change], VIEWS[view], USES["multiplied"])
    xs = vectors(3)
    alone = error_of(lambda: fl.one_by_one(function)(xs))
    assert alone is not None
    assert error_of(lambda: fl.batch(function)(xs)) == alone


@pytest.mark.parametrize("use", HARMLESS)
@pytest.mark.parametrize("view", ["unbind", "split"])
def test_what_asks_for_no_history_goes_on(use: str, view: str) -> None:
    check(spoiling(CHANGES["base"], VIEWS[view], HARMLESS[use]), vectors(3))


def test_a_spoiled_view_that_is_returned_is_spoiled() -> None:
    def function(x: torch.Tensor) -> Any:
        base = x * 2
        _, second, _ = base
        base += 1
        return {"base": base, "view": second}

    xs = vectors(3)
    for found, alone in zip(fl.batch(function)(xs), fl.one_by_one(function)(xs), strict=True):
        assert torch.equal(found["view"].detach(), alone["view"].detach())
        assert found["view"].requires_grad
        for view in (found["view"], alone["view"]):
            with pytest.raises(RuntimeError, match=r"Output 1 of Unbind.* modified inplace"):
                view * 2
        assert torch.equal(found["base"], alone["base"])
    with pytest.raises(RuntimeError, match="modified inplace"):
        fl.batch(function, stack=True)(xs)


def test_views_that_are_made_one_by_one_are_not_spoiled() -> None:
    def function(x: torch.Tensor) -> Any:
        base = x * 2
        first, *_ = base.tensor_split(3)
        other, _ = torch.broadcast_tensors(base, torch.zeros(2, 1))
        base += 1
        return first * 2, other * 3

    xs = vectors(3)
    check(function, xs, sources=xs)


def test_views_of_what_needs_no_gradient_are_not_spoiled() -> None:
    def function(x: torch.Tensor) -> Any:
        base = x.detach() * 2
        first, second, _ = base
        base += 1
        return first * x, second

    check(function, vectors(3))


def test_a_base_that_comes_to_need_gradients_spoils_its_views() -> None:
    def function(x: torch.Tensor) -> Any:
        base = x.detach() * 2
        first, *_ = base
        base += x
        return first * 2

    xs = vectors(3)
    alone = error_of(lambda: fl.one_by_one(function)(xs))
    assert alone is not None
    assert error_of(lambda: fl.batch(function)(xs)) == alone


def test_views_of_stacks_weights_and_words() -> None:
    def of_a_stack(x: torch.Tensor) -> Any:
        base = torch.stack([x * 2, x])
        rows = list(base)
        base += 1
        return rows[0] * 2

    def of_a_weight(x: torch.Tensor) -> Any:
        base = LAYER.bias * 2
        rows = list(base)
        base += x
        return rows[0] * 2

    def of_a_word(n: torch.Tensor) -> Any:
        base = TABLE(n)
        for row in base:
            base.clamp_(min=0.0)
            row = row + 1
        return row

    for function, examples in (
        (of_a_stack, vectors(3)),
        (of_a_weight, vectors(3)),
        (of_a_word, [torch.tensor(n) for n in (0, 1, 3)]),
    ):
        alone = error_of(lambda f=function, xs=examples: fl.one_by_one(f)(xs))  # type: ignore[misc]
        assert alone is not None
        assert error_of(lambda f=function, xs=examples: fl.batch(f)(xs)) == alone  # type: ignore[misc]


def test_an_error_that_is_caught_is_the_examples_own() -> None:
    def function(x: torch.Tensor, changes: bool) -> Any:
        base = x * 2
        first, *_ = base
        if changes:
            base += 1
        try:
            return first * 2
        except RuntimeError:
            return base * 3

    xs = vectors(4)
    check(function, xs, [True, False, True, False], sources=xs)
