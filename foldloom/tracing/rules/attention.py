"""Attention, whose members are one more dimension in front of the heads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import DENSE, Batched, aligned, argument, forms, register


@register(DENSE, forms("scaled_dot_product_attention"))
def scaled_dot_product_attention(call: Call) -> Batched | None:
    parts = [argument(call, position, name) for position, name in enumerate(("query", "key", "value"))]
    if not all(isinstance(part, Operand) for part in parts) or len({part.ndim for part in parts}) > 1:
        return None
    ndim = parts[0].ndim
    mask = argument(call, 3, "attn_mask")
    if ndim < 2 or (mask is not None and mask.ndim > ndim):
        return None
    if not isinstance(mask, Operand) or mask.ndim == ndim:
        return call.apply

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        replaced = list(blocks)
        replaced[mask.number] = aligned(blocks[mask.number], ndim)
        result: torch.Tensor = call.apply(*replaced)
        return result

    return run


@register(DENSE, [functional.multi_head_attention_forward])
def multi_head_attention(call: Call) -> Batched | None:
    """Of one sequence each: the members are the batch, which this function wants second."""
    parts = [argument(call, position, name) for position, name in enumerate(("query", "key", "value"))]
    heads, ignored, mask = (
        argument(call, 4, "num_heads"),
        *(argument(call, position, name) for position, name in ((14, "key_padding_mask"), (16, "attn_mask"))),
    )
    own = [*parts, *(part for part in (ignored, mask) if isinstance(part, Operand))]
    if not all(isinstance(part, Operand) and part.ndim == 2 for part in parts) or len(own) != len(call.operands):
        return None
    if isinstance(ignored, torch.Tensor) or (mask is not None and mask.ndim != 2):
        return None
    sequences = {part.number for part in parts}
    number_of_mask = mask.number if isinstance(mask, Operand) else None

    def placed(number: int, block: torch.Tensor) -> torch.Tensor:
        if number == number_of_mask:
            return block.repeat_interleave(heads, 0)
        return block.transpose(0, 1) if number in sequences else block

    def run(*blocks: torch.Tensor) -> Any:
        output, weights = call.apply(*[placed(number, block) for number, block in enumerate(blocks)])
        return output.transpose(0, 1), weights

    return run
