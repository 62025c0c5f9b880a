"""Custom autograd functions, and hooks on modules, where the loss does not depend on them: nothing is called and no zeros arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import check, linear, loss_of, vectors

WEIGHT = nn.Parameter(torch.randn(3, dtype=torch.float64))
LAYER = linear()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] * weight, grads[0] * x


class SetUpApart(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * weight

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] * weight, grads[0] * x


class TwoResults(torch.autograd.Function):
    """Of two results one may be used: the gradient of the other is made zeros."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.save_for_backward(x, weight)
        return x * weight, (x + weight).sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grads[0] * weight + grads[1], grads[0] * x + grads[1]


class NoneItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        first, second = grads
        return (first * 2 if second is None else second * 3), None


def _first(function: Any) -> Callable[..., Any]:
    def program(x: torch.Tensor) -> Any:
        y = LAYER(x)
        found = function.apply(y, WEIGHT)
        return y * 2, found

    return program


FUNCTIONS = [Scaled, SetUpApart, TwoResults, NoneItself]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("part", ["first", "all", "second", "last"])
def test_function(function: Any, part: str) -> None:
    def loss(results: Any) -> torch.Tensor:
        chosen = {
            "first": results[0][0],
            "all": results,
            "second": results[1][1],
            "last": [result[1][-1] for result in results],
        }
        return loss_of(chosen[part])

    xs = vectors(3)
    check(_first(function), xs, sources=[*xs, WEIGHT, LAYER.weight], loss=loss)


def test_backward_of_a_function_that_is_not_reached_is_not_called() -> None:
    called = []

    class Noting(Scaled):
        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            called.append(grads)
            return Scaled.backward(ctx, *grads)

    results = fl.batch(_first(Noting))(vectors(3))
    results[0][0].sum().backward()
    assert not called


def test_function_within_a_cell() -> None:
    cell = fl.cell(lambda x: Scaled.apply(x, WEIGHT))
    xs = vectors(3)
    layer = linear()
    results = fl.batch(lambda x: (layer(x), cell(layer(x))))(xs)
    assert torch.autograd.grad(loss_of([first for first, _ in results]), [WEIGHT, xs[0]], allow_unused=True)[0] is None


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("needs", [True, False])
def test_hooks_on_modules(is_used: bool, needs: bool) -> None:
    seen: list[Any] = []
    norm = nn.LayerNorm(3, dtype=torch.float64)

    def hook(module: Any, into: Any, out: Any) -> Any:
        seen.append((into[0] is None, out[0].clone()))
        return (into[0] * 2,) if into[0] is not None else None

    norm.register_full_backward_hook(hook)

    def program(x: torch.Tensor) -> Any:
        normed = norm(x)
        return LAYER(x) + normed if is_used else LAYER(x)

    found = []
    for run in (fl.one_by_one, fl.batch):
        seen.clear()
        xs = [
            x.detach().requires_grad_(needs) for x in (torch.arange(3.0, dtype=torch.float64), torch.ones(3).double())
        ]
        loss = loss_of(run(program)(xs))
        grads = torch.autograd.grad(loss, [*(xs if needs else ()), norm.weight, LAYER.weight], allow_unused=True)
        found.append((grads, sorted((none, out.tolist()) for none, out in seen)))
    assert found[0][1] == found[1][1]
    torch.testing.assert_close(found[1][0], found[0][0])
