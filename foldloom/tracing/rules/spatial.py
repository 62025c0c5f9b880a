"""Functions of sequences, images and volumes with channels: the members are the batch that these functions know."""

from __future__ import annotations

from torch.nn import functional

from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import DENSE, Batched, argument, forms, only_operand, register, with_members_flattened


def _names(stems: str) -> list[str]:
    return [
        f"{stem}{number}d{ending}" for stem in stems.split() for number in (1, 2, 3) for ending in ("", "_with_indices")
    ]


@register(DENSE, forms(_names("conv conv_transpose max_pool avg_pool adaptive_avg_pool adaptive_max_pool")))
def of_channels(call: Call) -> Batched | None:
    """With or without a batch of its own; weights are the same for all."""
    input = argument(call, 0, "input")
    if not isinstance(input, Operand) or len(call.operands) != 1:
        return None
    name = call.function.__name__
    spatial = next(number for number in (1, 2, 3) if f"{number}d" in name)
    if input.ndim == spatial + 1:
        return call.apply
    return with_members_flattened(call, input.type.shape[0]) if input.ndim == spatial + 2 else None


@register(DENSE, [*forms("group_norm"), functional.interpolate])
def of_batches(call: Call) -> Batched | None:
    """Every example has a batch of its own."""
    input = argument(call, 0, "input")
    if not isinstance(input, Operand) or len(call.operands) != 1 or input.ndim < 2:
        return None
    return with_members_flattened(call, input.type.shape[0])


@register(DENSE, [functional.batch_norm])
def batch_norm(call: Call) -> Batched | None:
    """In training every example has statistics of its own."""
    return of_batches(call) if not argument(call, 5, "training", False) else None


@register(DENSE, forms("pixel_shuffle pixel_unshuffle"))
def of_images(call: Call) -> Batched | None:
    operand = only_operand(call)
    return call.apply if operand is not None and operand.ndim >= 3 else None
