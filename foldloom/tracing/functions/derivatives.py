"""Functions without a derivative.

One by one, such a function can be called, and backward raises if it comes to it. In a batch, autograd would come to it though nobody asks:
it visits whatever the graph leads to, if only with None; and in an arena all values have a history if one of them has.
So what such a function computes is cut off from what it was computed from, and raises itself when a gradient arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from foldloom.execution.kernels import without_hooks

_with_derivative: set[str] = set()
"""Names of operations that were differentiated once."""

NO_DERIVATIVE: dict[Hashable, Exception] = {}
"""What backward raises, by the name of the function, its template and the types of its operands."""


def missing_derivative(results: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> Exception | None:
    """What backward of a trial call raises because the derivative is not implemented. Custom functions have one, and are not to be called in vain."""
    roots = [
        result for result in results if result.grad_fn is not None and not isinstance(result.grad_fn, BackwardCFunction)
    ]
    names = {root.grad_fn.name() for root in roots if root.grad_fn is not None}
    if names <= _with_derivative:
        return None
    try:
        seeds = [torch.zeros_like(root) for root in roots]
        wanted = [operand for operand in operands if operand.requires_grad]
        with without_hooks(wanted):
            torch.autograd.grad(roots, wanted, seeds, allow_unused=True, retain_graph=True)
    except (NotImplementedError, RuntimeError) as error:
        return error.with_traceback(None) if "not implemented" in str(error) else None
    except Exception:
        return None
    _with_derivative.update(names)
    return None


def without_derivative(tensor: torch.Tensor, error: Exception) -> torch.Tensor:
    """The same numbers, through which no gradient passes."""
    return _WithoutDerivative.apply(torch.empty(0, requires_grad=True), tensor.detach(), error)  # type: ignore[no-any-return]


class _WithoutDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, error: Exception) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.error = error
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        if grads[0] is not None:
            raise type(ctx.error)(*ctx.error.args)
        return None, None, None


def cut_off(form: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """A batched function without a derivative."""

    def run(*blocks: Any) -> Any:
        with torch.no_grad():
            results = form(*blocks)
        if not torch.is_grad_enabled():
            return results
        leaves = results if isinstance(results, (tuple, list)) else (results,)
        return tuple([_without(leaf, error) for leaf in leaves])

    return run


def _without(leaf: Any, error: Exception) -> Any:
    values = getattr(leaf, "values", None)
    if isinstance(values, torch.Tensor) and not isinstance(leaf, torch.Tensor):
        return type(leaf)(without_derivative(values, error), leaf.lengths) if values.is_floating_point() else leaf
    return without_derivative(leaf, error) if leaf.is_floating_point() or leaf.is_complex() else leaf
