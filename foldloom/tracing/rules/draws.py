"""Functions that draw random numbers, without the drawing: the numbers are drawn where a program calls them, and are an operand here.

Each computes what torch's own does with the same numbers, raises what it raises, and has its gradient, which is zero.
"""

from __future__ import annotations

from typing import Any

import torch

from foldloom.tracing.functions.calls import Call, function_named
from foldloom.tracing.rules.base import DENSE, RAGGED, Batched, register
from foldloom.tracing.rules.elementwise import elementwise
from foldloom.tracing.rules.fallback import NOT_BY_VMAP
from foldloom.tracing.rules.ragged import rowwise
from foldloom.tracing.rules.raising import BY_VALUE


class _Drawn(torch.autograd.Function):
    """What was drawn. Its gradient with respect to what it was drawn with is zero, not None."""

    @staticmethod
    def forward(ctx: Any, drawn: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.sizes = [source.shape for source in sources]
        return drawn.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        (grad,) = grads
        return None, *[None if grad is None else grad.new_zeros(size) for size in ctx.sizes]


def _is_known_not(condition: torch.Tensor) -> bool:
    """Whether a condition is known not to hold everywhere. Of tensors without data nothing is known."""
    return type(condition) is torch.Tensor and not condition.is_meta and not bool(condition.all())


def drawn_instead(target: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """What a tensor is after it has been filled with random numbers."""
    return _Drawn.apply(noise, target)  # type: ignore[no-any-return]


def bernoulli_with(chances: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """``torch.bernoulli(chances)``, of numbers between 0 and 1."""
    if _is_known_not((chances >= 0) & (chances <= 1)):
        torch.bernoulli(chances)  # it raises
    return _Drawn.apply((noise < chances).to(chances.dtype), chances)  # type: ignore[no-any-return]


def normal_with(mean: Any, spread: Any, noise: torch.Tensor) -> torch.Tensor:
    """``torch.normal(mean, spread)``, of numbers that have this spread already unless it is a tensor."""
    sources = [source for source in (mean, spread) if isinstance(source, torch.Tensor)]
    drawn = noise
    if isinstance(spread, torch.Tensor):
        if _is_known_not(spread >= 0):
            torch.normal(mean, spread)  # it raises
        drawn = drawn * spread
    return _Drawn.apply(drawn + mean, *sources)  # type: ignore[no-any-return]


def chosen_with(weights: torch.Tensor, noise: torch.Tensor, count: int) -> torch.Tensor:
    """``torch.multinomial(weights, count)``: each weight is divided by a number of the exponential distribution, and the largest win."""
    if _is_known_not((weights >= 0) & (weights < float("inf"))) or _is_known_not(weights.sum(-1) > 0):
        torch.multinomial(weights, 1)  # it raises
    ranks = weights.detach() / noise
    return ranks.argmax(-1, keepdim=True) if count == 1 else ranks.topk(count).indices


def drawn_from(state: torch.Tensor, function: str, *args: Any, **kwargs: Any) -> Any:
    """Any function that draws, called with the generator in this state."""
    if type(state) is not torch.Tensor:  # it has no data
        return function_named(function)(*args, **kwargs)
    generator = torch.default_generator
    before = generator.get_state()
    generator.set_state(state.clone())
    try:
        return function_named(function)(*args, **kwargs)
    finally:
        generator.set_state(before)


NOT_BY_VMAP[drawn_from] = "each member draws with the generator in a state of its own"
BY_VALUE.update((bernoulli_with, normal_with, chosen_with))
DENSE[bernoulli_with] = DENSE[normal_with] = DENSE[drawn_instead] = elementwise


@register(DENSE, [chosen_with])
def _chosen(call: Call) -> Batched:
    return call.apply


@register(RAGGED, [bernoulli_with, drawn_instead])
def _rows(call: Call) -> Batched | None:
    return rowwise(call) if all(type.ragged for type in call.operands) else None
