"""Functions over dimensions: sums, maxima, softmax, sorting. A dimension of one example is the next one of the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import (
    DENSE,
    Batched,
    applied,
    argument,
    changed,
    forms,
    is_list,
    only_operand,
    register,
    shifted,
    without,
)
from foldloom.tracing.rules.elementwise import broadcast, promote_alike

_WHOLE = {"max": "amax", "min": "amin"}
"""Without a dimension these return one number; so do the others of that name with a dimension."""

_DIM_SECOND = (
    "sum mean prod amax amin max min argmax argmin all any logsumexp nansum nanmean std var std_mean "
    "var_mean aminmax count_nonzero"
)
_DIM_SECOND_REQUIRED = "softmax log_softmax softmin cumsum cumprod logcumsumexp unbind cummax cummin"
_DIM_SECOND_LAST = "sort argsort mode glu"
_DIM_THIRD_LAST = "topk kthvalue diff"


@register(DENSE, forms(_DIM_SECOND))
def reduction(call: Call) -> Batched | None:
    operand = only_operand(call)
    name = call.function.__name__
    if operand is None:
        both_values = name in ("max", "min") and len(call.args) == 2 and not call.kwargs
        return broadcast(call) if both_values and promote_alike(call.tensors()) else None
    if argument(call, 1, "dim") is not None:
        return _over(call, 1)
    if call.args[2:] or call.kwargs.get("keepdim"):
        return None
    whole = getattr(torch, _WHOLE.get(name, name))
    settings = without(call, "dim", "input", "keepdim").kwargs
    return _of_all_numbers(lambda rows: whole(rows, dim=1, **settings))


def _of_all_numbers(of_rows: Callable[[torch.Tensor], Any]) -> Batched:
    return lambda block: of_rows(block.flatten(1) if block.ndim > 1 else block.unsqueeze(1))


@register(DENSE, forms(_DIM_SECOND_REQUIRED))
def along_second(call: Call) -> Batched | None:
    return _along(call, 1, 0 if call.function.__name__ == "unbind" else None)


@register(DENSE, forms("median nanmedian"))
def median(call: Call) -> Batched | None:
    """Of all numbers, the gradient is split between those that are equal to it; along a dimension, one of them has it."""
    if len(call.args) + len(call.kwargs) > 1 or only_operand(call) is None:
        return along_second(call)
    of_rows = torch.median if call.function.__name__ == "median" else torch.nanmedian

    def run(rows: torch.Tensor) -> torch.Tensor:
        found = of_rows(rows.detach(), 1).values
        if not rows.requires_grad:
            return found
        same = (rows == found.unsqueeze(1)) | (rows.isnan() & found.isnan().unsqueeze(1))
        return torch.where(same, rows, -torch.inf).amax(1)

    return _of_all_numbers(run) if call.outputs[0].shape == () and _is_filled(call) else None


def _is_filled(call: Call) -> bool:
    return 0 not in call.operands[0].shape


@register(DENSE, forms(_DIM_SECOND_LAST))
def along_last(call: Call) -> Batched | None:
    return _along(call, 1, -1)


@register(DENSE, forms(_DIM_THIRD_LAST))
def along_third(call: Call) -> Batched | None:
    return _along(call, 2, -1)


def _along(call: Call, position: int, default: int | None) -> Batched | None:
    """Along one dimension."""
    operand = only_operand(call)
    dim = argument(call, position, "dim", default)
    if operand is None or operand.ndim == 0 or type(dim) is not int:
        return None
    return applied(changed(call, position, "dim", shifted(dim)))


def _over(call: Call, position: int) -> Batched | None:
    """Over one dimension or several. What an empty list of them means, functions disagree about."""
    operand = only_operand(call)
    dim = argument(call, position, "dim")
    if operand is None or operand.ndim == 0:
        return None
    if type(dim) is int:
        return applied(changed(call, position, "dim", shifted(dim)))
    if not is_list(dim) or not dim or not all(type(one) is int for one in dim):
        return None
    return applied(changed(call, position, "dim", tuple([shifted(one) for one in dim])))


_VECTOR_NORMS = frozenset((torch.linalg.vector_norm, torch.norm, torch.Tensor.norm))


@register(DENSE, _VECTOR_NORMS)
def vector_norm(call: Call) -> Batched | None:
    """The norm of all numbers, or over dimensions."""
    is_linalg = call.function is torch.linalg.vector_norm
    order = argument(call, 1, "ord" if is_linalg else "p", 2 if is_linalg else "fro")
    if order == "nuc" or call.kwargs.get("out") is not None:
        return None
    if argument(call, 2, "dim") is not None:
        return _over(without(call, "out"), 2)
    dtype = argument(call, 4, "dtype")
    if only_operand(call) is None or argument(call, 3, "keepdim", False) or call.args[4:]:
        return None
    exponent = 2 if order in ("fro", None) else order
    if isinstance(exponent, str):
        return None
    return _of_all_numbers(lambda rows: torch.linalg.vector_norm(rows, exponent, dim=1, dtype=dtype))


@register(DENSE, [functional.normalize])
def normalize(call: Call) -> Batched | None:
    return _along(call, 2, 1) if call.kwargs.get("out") is None else None


@register(DENSE, forms("cosine_similarity"))
def cosine_similarity(call: Call) -> Batched | None:
    return _of_pairs(call, changed(call, 2, "dim", _shifted_or_none(argument(call, 2, "dim", 1))))


@register(DENSE, forms("pairwise_distance"))
def pairwise_distance(call: Call) -> Batched | None:
    return _of_pairs(call, call)


def _of_pairs(call: Call, batched: Call) -> Batched | None:
    """Of vectors in two values of one shape."""
    first, second = argument(call, 0, "x1"), argument(call, 1, "x2")
    if not isinstance(first, Operand) or not isinstance(second, Operand) or first.type is not second.type:
        return None
    return batched.apply if first.ndim and len(call.tensors()) == 2 else None


def _shifted_or_none(dim: Any) -> Any:
    return shifted(dim) if type(dim) is int else dim
