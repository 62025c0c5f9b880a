"""Functions over dimensions: sums, maxima, softmax, sorting. A dimension of one example is the next one of the block."""

from __future__ import annotations

from typing import Any

import torch

from foldloom.lazy.calls import Call
from foldloom.lazy.rules.base import DENSE, Batched, argument, forms, only_operand, register, shifted

_WHOLE = {"max": "amax", "min": "amin"}
"""Without a dimension these return one number; so do the others of that name with a dimension."""

_DIM_SECOND = (
    "sum mean prod amax amin max min argmax argmin all any logsumexp nansum nanmean std var aminmax count_nonzero"
)
_DIM_SECOND_REQUIRED = "softmax log_softmax softmin cumsum cumprod logcumsumexp glu unbind cummax cummin"
_DIM_SECOND_LAST = "sort argsort median nanmedian mode normalize cosine_similarity glu"
_DIM_THIRD = "topk kthvalue renorm"


@register(DENSE, forms(_DIM_SECOND))
def reduction(call: Call) -> Batched | None:
    operand = only_operand(call)
    if operand is None:
        return None
    name = call.function.__name__
    dim = argument(call, 1, "dim")
    rest = {key: value for key, value in call.kwargs.items() if key not in ("dim", "input")}
    if type(dim) is bool:  # std(x, False): `unbiased`, from before there was `correction`
        return None
    if dim is None or dim == ():
        if call.args[2:] or rest.get("keepdim"):
            return None
        whole = getattr(torch, _WHOLE.get(name, name))
        rest.pop("keepdim", None)
        return lambda block: whole(block.flatten(1) if block.ndim > 1 else block.unsqueeze(1), dim=1, **rest)
    if operand.ndim == 0:
        return None
    return _along(call, shifted(dim) if isinstance(dim, int) else tuple([shifted(one) for one in dim]), 1)


@register(DENSE, forms(_DIM_SECOND_REQUIRED))
def along_second(call: Call) -> Batched | None:
    return _dim_at(call, 1, 0 if call.function.__name__ == "unbind" else None)


@register(DENSE, forms(_DIM_SECOND_LAST))
def along_last(call: Call) -> Batched | None:
    name = call.function.__name__
    if name in ("median", "nanmedian") and argument(call, 1, "dim") is None:
        return None
    if name in ("normalize", "cosine_similarity"):
        return None
    return _dim_at(call, 1, -1)


@register(DENSE, forms(_DIM_THIRD))
def along_third(call: Call) -> Batched | None:
    return _dim_at(call, 2, -1)


def _dim_at(call: Call, position: int, default: int | None) -> Batched | None:
    operand = only_operand(call)
    dim = argument(call, position, "dim", default)
    if operand is None or operand.ndim == 0 or type(dim) is not int:
        return None
    return _along(call, shifted(dim), position)


def _along(call: Call, dim: Any, position: int) -> Batched:
    function, args = call.function, list(call.args[1:])
    kwargs = {key: value for key, value in call.kwargs.items() if key not in ("dim", "input")}
    if len(args) >= position:
        args[position - 1] = dim
    else:
        kwargs["dim"] = dim
    return lambda block: function(block, *args, **kwargs)
