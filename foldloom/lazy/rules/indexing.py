"""Indexing. A single whole number is data, not part of the signature: members may each take another element."""

from __future__ import annotations

from typing import Any

import torch

from foldloom.lazy.calls import Call, Operand
from foldloom.lazy.rules.base import DENSE, Batched, forms, register


def take(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``values[index]`` of one example, for a whole number or several."""
    length = values.shape[0]
    from_start = torch.where(index < 0, index + length, index)
    return values.index_select(0, from_start.reshape(-1)).reshape((*index.shape, *values.shape[1:]))


@register(DENSE, [take])
def take_each(call: Call) -> Batched | None:
    values, index = call.args
    if not isinstance(values, Operand) or not isinstance(index, Operand) or index.type.dtype == "bool":
        return None
    ones = (1,) * index.ndim

    def run(block: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        member = torch.arange(len(block), device=block.device).view(-1, *ones)
        return block[member, indices]

    return run


@register(DENSE, [torch.Tensor.__getitem__])
def getitem(call: Call) -> Batched | None:
    values, index = call.args
    parts = index if isinstance(index, tuple) else (index,)
    if not isinstance(values, Operand) or not all(_is_plain(part) for part in parts):
        return None
    full = (slice(None), *parts)
    return lambda block: block[full]


def _is_plain(part: Any) -> bool:
    return part is None or part is Ellipsis or type(part) is int or (type(part) is slice and _is_static(part))


def _is_static(part: slice) -> bool:
    return not any(isinstance(bound, (Operand, torch.Tensor)) for bound in (part.start, part.stop, part.step))


@register(DENSE, forms("select narrow"))
def select(call: Call) -> Batched | None:
    if call.kwargs or not isinstance(call.args[0], Operand) or not all(type(arg) is int for arg in call.args[1:]):
        return None
    function, (dim, *where) = call.function, call.args[1:]
    return lambda block: function(block, dim + 1 if dim >= 0 else dim, *where)
