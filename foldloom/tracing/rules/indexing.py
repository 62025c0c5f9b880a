"""Indexing. A single whole number is data, not part of the signature: members may each take another element.

Rows and slices of ragged values compute nothing, so they are no operations: `recording/handlers.py` takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import (
    DENSE,
    Batched,
    aligned,
    applied,
    argument,
    changed,
    dtype_name,
    forms,
    only_operand,
    register,
    shifted,
    without,
)


def take(values: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """``values[index]`` of one example, for a whole number or several."""
    length = values.shape[0]
    from_start = torch.where(index < 0, index + length, index)
    return values.index_select(0, from_start.reshape(-1)).reshape((*index.shape, *values.shape[1:]))


@register(DENSE, [take])
def take_each(call: Call) -> Batched | None:
    values, index = call.args
    if not isinstance(index, Operand) or index.type.dtype == "bool":
        return None
    if not isinstance(values, Operand):
        return lambda indices: values[indices]
    ones = (1,) * index.ndim

    def run(block: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        member = torch.arange(len(block), device=block.device).view(-1, *ones)
        return block[member, indices]

    return run


@register(DENSE, [torch.Tensor.__getitem__])
def getitem(call: Call) -> Batched | None:
    values, index = call.args
    parts = index if type(index) is tuple else (index,)
    own = _own_places(parts, of_members=isinstance(values, Operand))
    if not isinstance(values, Operand):
        return (lambda *blocks: values[own(blocks)]) if own is not None else None
    if all(_is_plain(part) for part in parts):
        full = (slice(None), *parts)
        return lambda block: block[full]
    if type(index) is list and all(type(place) is int for place in index):
        return lambda block: block[:, index]
    return (lambda *blocks: blocks[values.number][own(blocks)]) if own is not None else None


def _is_plain(part: Any) -> bool:
    return part is None or part is Ellipsis or type(part) is int or (type(part) is slice and _is_static(part))


def _is_static(part: slice) -> bool:
    return not any(isinstance(bound, (Operand, torch.Tensor)) for bound in (part.start, part.stop, part.step))


def _own_places(
    parts: tuple[Any, ...], *, of_members: bool = True
) -> Callable[[Sequence[torch.Tensor]], tuple[Any, ...]] | None:
    """An index of a block, or of one table for all, where members have whole numbers of their own for the first dimensions."""
    count = next((number for number, part in enumerate(parts) if not _is_number(part)), len(parts))
    numbers, rest = parts[:count], parts[count:]
    if not any(isinstance(part, Operand) for part in numbers) or not all(
        _is_plain(part) and type(part) is not int for part in rest
    ):
        return None
    ndim = max(part.ndim for part in numbers if not isinstance(part, int))

    def places(blocks: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        own = [aligned(blocks[part.number], ndim) if isinstance(part, Operand) else part for part in numbers]
        first = next(block for block in own if isinstance(block, torch.Tensor))
        member = torch.arange(len(blocks[0]), device=first.device).view(-1, *(1,) * ndim)
        return (member, *own, *rest) if of_members else (*own, *rest)

    return places


def _is_number(part: Any) -> bool:
    if isinstance(part, (Operand, torch.Tensor)):
        return dtype_name(part) in ("int64", "int32")
    return type(part) is int


def set_each(call: Call) -> Batched | None:
    """``values[index] = value`` on a copy."""
    values, index, value = call.args
    parts = index if type(index) is tuple else (index,)
    if not isinstance(values, Operand):
        return None
    own = None if all(_is_plain(part) for part in parts) else _own_places(parts)
    if own is None and not all(_is_plain(part) for part in parts):
        return None
    ndim = _ndim_of_item(values, parts)
    if not isinstance(value, (Operand, torch.Tensor, int, float)):
        return None
    if isinstance(value, (Operand, torch.Tensor)) and value.ndim > ndim:
        return None
    full = (slice(None), *parts)

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        copy = blocks[values.number].clone()
        where = full if own is None else own(blocks)
        item = aligned(blocks[value.number], ndim) if isinstance(value, Operand) else value
        copy[where] = item.to(copy.dtype) if isinstance(item, torch.Tensor) else item
        return copy

    return run


def _ndim_of_item(values: Operand, parts: tuple[Any, ...]) -> int:
    with torch.device("meta"):
        places = tuple(
            [
                part
                if not isinstance(part, (Operand, torch.Tensor))
                else torch.zeros(_shape(part), dtype=torch.int64)
                if _shape(part)
                else 0
                for part in parts
            ]
        )
        return torch.empty(values.type.shape)[places].ndim


def _shape(part: Operand | torch.Tensor) -> tuple[int, ...]:
    return part.type.shape if isinstance(part, Operand) else tuple(part.shape)


@register(DENSE, forms("select narrow"))
def select(call: Call) -> Batched | None:
    dim = argument(call, 1, "dim")
    settings = (*call.args[1:], *call.kwargs.values())
    if only_operand(call) is None or not all(type(setting) is int for setting in settings):
        return None
    return applied(changed(call, 1, "dim", shifted(dim)))


@register(DENSE, forms("gather scatter scatter_add scatter_reduce"))
def gather(call: Call) -> Batched | None:
    """Values, index and source have the same dimensions."""
    dim = argument(call, 1, "dim")
    if (
        type(dim) is not int
        or len(call.operands) != len(call.tensors())
        or any(not type.shape for type in call.operands)
    ):
        return None
    return changed(without(call, "sparse_grad"), 1, "dim", shifted(dim)).apply


@register(DENSE, forms("index_select"))
def index_select(call: Call) -> Batched | None:
    """By an index of its own for each member, or one for all; of values of its own, or rows of one table for all."""
    values, dim, index = argument(call, 0, "input"), argument(call, 1, "dim"), argument(call, 2, "index")
    if type(dim) is not int or not values.ndim:
        return None
    if not isinstance(index, Operand):
        return changed(call, 1, "dim", shifted(dim)).apply
    if not isinstance(values, Operand):
        rows = call.outputs[0].shape
        if dim not in (0, -values.ndim):
            return None
        return lambda indices: values.index_select(0, indices.reshape(-1)).view(len(indices), *rows)
    place = shifted(dim)

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        block, indices = blocks[values.number], blocks[index.number]
        return block.gather(place, _for_all_rows(indices, block, place))

    return run


@register(DENSE, forms("index_add"))
def index_add(call: Call) -> Batched | None:
    values, dim, index = argument(call, 0, "input"), argument(call, 1, "dim"), argument(call, 2, "index")
    source, factor = argument(call, 3, "source"), argument(call, 4, "alpha", 1)
    if type(dim) is not int or len(call.operands) != 3 or not values.ndim or not source.ndim:
        return None
    place = shifted(dim)

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        block, indices, added = blocks[values.number], blocks[index.number], blocks[source.number]
        places = _for_all_rows(indices, added, place)
        return block.scatter_add(place, places, added if factor == 1 else added * factor)  # type: ignore[no-any-return]

    return run


def _for_all_rows(indices: torch.Tensor, block: torch.Tensor, dim: int) -> torch.Tensor:
    """Each member's index along one dimension, the same for all places of the others. Unlike indexing, `gather` refuses
    negative ones, as does the function that it stands for."""
    dim %= block.ndim
    shape = [len(block), *(1,) * (block.ndim - 1)]
    shape[dim] = indices.numel() // max(len(indices), 1)
    sizes = list(block.shape)
    sizes[dim] = shape[dim]
    return indices.reshape(shape).expand(sizes).to(torch.int64)


_TABLE_OF: dict[Any, tuple[int, str]] = {
    **dict.fromkeys(forms("index_select gather cross_entropy nll_loss"), (0, "input")),
    torch.nn.functional.embedding: (1, "weight"),
    torch.embedding: (0, "weight"),
    torch.Tensor.__getitem__: (0, "self"),
    take: (0, "values"),
}


def table_size(call: Call) -> int | None:
    """How many places there are that an index among the arguments may name, of functions that take one."""
    place = _TABLE_OF.get(call.function)
    table = argument(call, *place) if place is not None else None
    if not isinstance(table, (Operand, torch.Tensor)) or not table.ndim:
        return None
    if call.function in _ALONG_A_DIMENSION:
        dim = argument(call, 1, "dim")
    else:
        dim = min(1, table.ndim - 1) if call.function in _CLASS_LOSSES else 0
    return _shape(table)[dim] if type(dim) is int else None


_ALONG_A_DIMENSION = frozenset(forms("index_select gather"))
_CLASS_LOSSES = frozenset(forms("cross_entropy nll_loss"))
