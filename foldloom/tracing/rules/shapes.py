"""Functions that change the shape and leave the numbers alone."""

from __future__ import annotations

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
    is_list,
    only_operand,
    register,
    shifted,
    with_members_flattened,
)


@register(DENSE, forms("view reshape flatten unflatten squeeze unsqueeze view_as reshape_as ravel"))
def same_numbers(call: Call) -> Batched | None:
    """Whatever the arguments were, the numbers keep their order and the result has a known shape."""
    values = argument(call, 0, "input")
    if not isinstance(values, Operand) or values.type.dtype != call.outputs[0].dtype:
        return None
    if any(isinstance(arg, torch.dtype) for arg in call.args[1:]) or "dtype" in call.kwargs:
        return None
    number, shape = values.number, call.outputs[0].shape
    if len(call.operands) == 1:
        return lambda block: block.reshape(block.shape[0], *shape)
    return lambda *blocks: blocks[number].reshape(blocks[number].shape[0], *shape)


@register(DENSE, forms("contiguous"))
def contiguous(call: Call) -> Batched | None:
    return (lambda block: block.contiguous()) if only_operand(call) else None


@register(DENSE, forms("expand expand_as broadcast_to"))
def expand(call: Call) -> Batched | None:
    values = argument(call, 0, "input")
    if not isinstance(values, Operand):
        return None
    shape = call.outputs[0].shape
    return lambda *blocks: aligned(blocks[values.number], len(shape)).expand(-1, *shape)


@register(DENSE, forms("t transpose swapaxes swapdims"))
def transpose(call: Call) -> Batched | None:
    operand = only_operand(call)
    if operand is None or call.kwargs or operand.ndim < 2:
        return None
    first, second = call.args[1:] or (0, 1)
    return lambda block: block.transpose(shifted(first), shifted(second))


_TRANSPOSED, _MATRIX_TRANSPOSED = (getattr(torch.Tensor, name).__get__ for name in ("T", "mT"))


@register(DENSE, [_TRANSPOSED, _MATRIX_TRANSPOSED])
def transposed_property(call: Call) -> Batched | None:
    ndim, is_matrix_of_each = len(call.operands[0].shape), call.function == _MATRIX_TRANSPOSED
    return (lambda block: block.mT) if ndim == 2 or (ndim > 2 and is_matrix_of_each) else None


@register(DENSE, forms("permute"))
def permute(call: Call) -> Batched | None:
    operand = only_operand(call)
    dims = _dims(call)
    if operand is None or dims is None or len(dims) != operand.ndim:
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
    if not call.args or not is_list(call.args[0]):
        return None
    items = call.args[0]
    dim = argument(call, 1, "dim", 0)
    if type(dim) is not int or set(call.kwargs) - {"dim"}:
        return None
    if not all(isinstance(item, (Operand, torch.Tensor)) for item in items):
        return None
    if len({dtype_name(item) for item in items}) > 1:
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


def _dims(call: Call) -> tuple[int, ...] | None:
    """Dimensions given one by one, as a list, or by name."""
    dims = call.args[1:] or (call.kwargs.get("dims"),)
    flat = tuple(dims[0]) if len(dims) == 1 and is_list(dims[0]) else dims
    return flat if all(type(dim) is int for dim in flat) else None


@register(DENSE, forms("flip"))
def flip(call: Call) -> Batched | None:
    operand, dims = only_operand(call), _dims(call)
    if operand is None or operand.ndim == 0 or dims is None:
        return None
    return lambda block: block.flip([shifted(dim) for dim in dims])


@register(DENSE, forms("roll"))
def roll(call: Call) -> Batched | None:
    """Without dimensions, all numbers of an example move in a row."""
    operand, shifts, dims = only_operand(call), argument(call, 1, "shifts"), argument(call, 2, "dims")
    if operand is None or any(isinstance(arg, Operand) for arg in (shifts, dims)):
        return None
    if operand.ndim == 0:
        return lambda block: block.clone()
    if dims is None or dims in ((), []):
        (shift,) = shifts if is_list(shifts) else (shifts,)
        return lambda block: block.flatten(1).roll(shift, 1).view(block.shape)
    where = [shifted(dim) for dim in (dims if is_list(dims) else (dims,))]
    return lambda block: block.roll(shifts, where)


@register(DENSE, forms("tril triu"))
def triangle(call: Call) -> Batched | None:
    operand = only_operand(call)
    return applied(call) if operand is not None and operand.ndim >= 2 else None


@register(DENSE, forms("movedim moveaxis"))
def move_dimensions(call: Call) -> Batched | None:
    operand = only_operand(call)
    if operand is None or call.kwargs or len(call.args) != 3 or operand.ndim == 0:
        return None
    source, target = ([shifted(dim) for dim in (dims if is_list(dims) else (dims,))] for dims in call.args[1:])
    return lambda block: block.movedim(source, target)


@register(DENSE, forms("repeat tile"))
def repeat(call: Call) -> Batched | None:
    operand = only_operand(call)
    counts = call.args[1:]
    if len(counts) == 1 and is_list(counts[0]):
        counts = tuple(counts[0])
    if operand is None or call.kwargs or not all(type(count) is int for count in counts):
        return None
    full = (1,) * (operand.ndim - len(counts)) + counts
    return lambda block: aligned(block, len(full)).repeat(1, *full)


@register(DENSE, forms("select_scatter slice_scatter diagonal_scatter"))
def scatter_view(call: Call) -> Batched | None:
    """A value with one of its views replaced."""
    names = ("dim1", "dim2") if call.function.__name__ == "diagonal_scatter" else ("dim",)
    positions = (3, 4) if len(names) == 2 else (2,)
    if len(call.operands) != 2 or len(call.tensors()) != 2:
        return None
    batched = call
    for position, name, default in zip(positions, names, (0, 1), strict=False):
        dim = argument(call, position, name, default)
        if type(dim) is not int:
            return None
        batched = changed(batched, position, name, shifted(dim))
    return batched.apply


@register(DENSE, forms("pad"))
def pad(call: Call) -> Batched | None:
    """With a constant any last dimensions; otherwise those after the channels, with or without a batch before them."""
    operand, sizes = only_operand(call), argument(call, 1, "pad")
    if operand is None or not is_list(sizes):
        return None
    if argument(call, 2, "mode", "constant") == "constant":
        return applied(call)
    before = operand.ndim - len(sizes) // 2
    if before == 1:
        return applied(call)
    return with_members_flattened(call, operand.type.shape[0]) if before == 2 else None
