"""Functions that change the shape and leave the numbers alone."""

from __future__ import annotations

from typing import Any

import torch

from foldloom.lazy.calls import Call, Operand
from foldloom.lazy.rules.base import DENSE, Batched, argument, forms, only_operand, register, shifted


@register(DENSE, forms("view reshape flatten unflatten squeeze unsqueeze view_as reshape_as ravel"))
def same_numbers(call: Call) -> Batched | None:
    """Whatever the arguments were, the numbers keep their order and the result has a known shape."""
    if not isinstance(call.args[0] if call.args else None, Operand) or len(call.operands) != 1:
        return None
    if any(isinstance(arg, torch.dtype) for arg in call.args[1:]) or "dtype" in call.kwargs:
        return None
    shape = call.outputs[0].shape
    return lambda block: block.reshape(block.shape[0], *shape)


@register(DENSE, forms("contiguous"))
def contiguous(call: Call) -> Batched | None:
    return (lambda block: block.contiguous()) if only_operand(call) and not call.kwargs else None


@register(DENSE, forms("expand expand_as broadcast_to"))
def expand(call: Call) -> Batched | None:
    operand = only_operand(call)
    if operand is None:
        return None
    shape = call.outputs[0].shape
    ones = (1,) * (len(shape) - operand.ndim)
    return lambda block: block.reshape(block.shape[0], *ones, *block.shape[1:]).expand(-1, *shape)


@register(DENSE, forms("t transpose swapaxes swapdims"))
def transpose(call: Call) -> Batched | None:
    operand = only_operand(call)
    if operand is None or call.kwargs or operand.ndim < 2:
        return None
    first, second = call.args[1:] or (0, 1)
    return lambda block: block.transpose(shifted(first), shifted(second))


@register(DENSE, forms("permute"))
def permute(call: Call) -> Batched | None:
    operand = only_operand(call)
    dims = call.args[1:]
    if len(dims) == 1 and isinstance(dims[0], (tuple, list)):
        dims = tuple(dims[0])
    if operand is None or call.kwargs or len(dims) != operand.ndim:
        return None
    order = [shifted(dim) for dim in dims]
    return lambda block: block.permute(0, *order)


@register(DENSE, forms("chunk split tensor_split split_with_sizes"))
def split(call: Call) -> Batched | None:
    operand = only_operand(call)
    if operand is None or operand.ndim == 0 or len(call.args) not in (2, 3):
        return None
    dim = argument(call, 2, "dim", 0)
    if set(call.kwargs) - {"dim"} or type(dim) is not int:
        return None
    function, how = call.function, call.args[1]
    return lambda block: function(block, how, shifted(dim))


@register(DENSE, forms("cat concat concatenate stack hstack"))
def join(call: Call) -> Batched | None:
    if not call.args or not isinstance(call.args[0], (tuple, list)):
        return None
    items = call.args[0]
    dim = argument(call, 1, "dim", 0)
    if type(dim) is not int or set(call.kwargs) - {"dim"}:
        return None
    if not all(isinstance(item, (Operand, torch.Tensor)) for item in items):
        return None
    if len({item.type.dtype if isinstance(item, Operand) else str(item.dtype)[6:] for item in items}) > 1:
        return None
    name = call.function.__name__
    if name != "stack" and len({item.ndim for item in items}) > 1:  # cat takes an empty vector for any shape
        return None
    if name == "hstack":
        dim = 0 if items[0].ndim == 1 else 1
        if items[0].ndim == 0:
            return None
    join_blocks = torch.stack if name == "stack" else torch.cat
    where = shifted(dim)
    if not any(isinstance(item, torch.Tensor) for item in items):
        numbers = [item.number for item in items]
        if numbers == list(range(len(numbers))):
            return lambda *blocks: join_blocks(blocks, where)
        return lambda *blocks: join_blocks([blocks[number] for number in numbers], where)

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        members = len(blocks[0])
        return join_blocks([_block_of(item, blocks, members) for item in items], where)

    return run


def _block_of(item: Any, blocks: tuple[torch.Tensor, ...], members: int) -> torch.Tensor:
    if isinstance(item, Operand):
        return blocks[item.number]
    expanded: torch.Tensor = item.unsqueeze(0).expand(members, *item.shape)
    return expanded


@register(DENSE, forms("flip"))
def flip(call: Call) -> Batched | None:
    dims = call.args[1:]
    if only_operand(call) is None or call.kwargs or not dims:
        return None
    flat = tuple(dims[0]) if isinstance(dims[0], (tuple, list)) else dims
    return lambda block: block.flip([shifted(dim) for dim in flat])
