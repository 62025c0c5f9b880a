"""Autograd functions, checkpoints and the transforms of torch.func."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import LINEAR, batched, sequences, vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class Tenfold(torch.autograd.Function):
    """A product and a place that has no gradient; the gradient of one factor is ten times too large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, scale: float) -> Any:
        return x * y * scale, x.argmax()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.scale = inputs[2]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 10 * grads[0] * y * ctx.scale, grads[0] * x * ctx.scale, None


class InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * 3) + torch.zeros(3)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 7


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


def test_an_autograd_function_that_changes_its_argument_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match="Let its forward return a new tensor"):
        fl.batch(lambda x: Doubles.apply(x * 2))(vectors())


def test_an_autograd_function_of_what_comes_out_of_batching() -> None:
    x = vector(3)
    rounded = Straight.apply(batched(lambda: [x * 3])[0])
    assert_same(torch.autograd.grad(rounded.sum(), x), [torch.full((3,), 3.0)])


def test_checkpoints_that_are_reentrant() -> None:
    inputs, weight = vectors(), nn.Parameter(torch.randn(3))

    def gradient_by(run: Any) -> Any:
        weight.grad = None
        results = run(lambda x: checkpoint(lambda y: y.tanh() * weight * (x * 2), x * 3, use_reentrant=True))(inputs)
        sum(result.sum() for result in results).backward()
        return weight.grad

    # Torch notes for each thread whether checkpoints are allowed, and derivatives inside of other tests' programs may leave it off.
    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(gradient_by, fl.one_by_one).result()
        found = pool.submit(gradient_by, fl.batch).result()
    assert_same(found, expected)


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "autograd.Function": lambda x: (
        Straight.apply(x * 3),
        Straight.apply(LINEAR.weight) * x[0],
        Straight.apply(x.detach()),
    ),
    "autograd.Function of several": lambda x: (Tenfold.apply(x, x * 2, 3.0), Tenfold.apply(LINEAR.bias, x[0], 2.0)),
    "autograd.Function in numpy": lambda x: (InNumpy.apply(x * 2), InNumpy.apply(x[0])),
    "checkpoint": lambda x: checkpoint(lambda y: y.tanh() * (x * 2), x * 3, use_reentrant=False),
    "vmap": torch.vmap(lambda row: row * 2),
    "a derivative inside": torch.func.grad(lambda x: (x**3).sum()),
    "a derivative of what is around": lambda x: torch.func.grad(lambda y: (y * x).sum())(x[0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_functions_with_derivatives_of_their_own(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(
        lambda x: TRANSFORMS[name](x * 1.5), inputs, sources=[*inputs, *LINEAR.parameters()], records=False
    )
