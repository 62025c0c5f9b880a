"""Attention, whose members are one more dimension in front of the heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from foldloom.graph.ragged import Ragged
from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import DENSE, RAGGED, Batched, aligned, argument, forms, register


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


@register(RAGGED, [functional.multi_head_attention_forward])
def multi_head_attention_of_rows(call: Call) -> Batched | None:
    """Of sequences of any lengths: those of like lengths are padded, and nobody attends to what is padded."""
    parts = [argument(call, position, name) for position, name in enumerate(("query", "key", "value"))]
    if not all(isinstance(part, Operand) and part.type.ragged and part.ndim == 2 for part in parts):
        return None
    if {part.number for part in parts} != set(range(len(call.operands))):
        return None
    others = ((14, "key_padding_mask"), (16, "attn_mask"), (21, "static_k"), (22, "static_v"), (24, "is_causal"))
    # What a sequence attends to is a matrix of its length squared, which has no ragged form; and padding would draw numbers for dropout.
    draws = argument(call, 10, "dropout_p", 0.0) > 0 and argument(call, 13, "training", True)
    if any(argument(call, *other) not in (None, False) for other in others) or draws or len(call.args) > 14:
        return None
    if argument(call, 15, "need_weights", True):
        return None

    def run(*blocks: Ragged) -> tuple[Ragged, None]:
        def attend(ignored: torch.Tensor, *padded: torch.Tensor) -> torch.Tensor:
            args, kwargs = call.filled(padded)
            found: torch.Tensor = call.function(*args, **{**kwargs, "key_padding_mask": ignored})[0]
            return found

        return over_padded(blocks, attend), None

    return run


def over_padded(blocks: Sequence[Ragged], attend: Callable[..., torch.Tensor]) -> Ragged:
    """What ``attend`` returns for padded sequences, without what it returns for padding. It is given what to ignore, and blocks of
    ``[length, sequence, feature]``."""
    lengths = blocks[0].lengths
    places: list[torch.Tensor] = []
    found: list[torch.Tensor] = []
    for members in groups_of_like_length(lengths.tolist()):
        rows, is_row = rows_of(lengths, members)
        padded = [
            block.values.new_zeros(*is_row.shape, block.values.shape[1])
            .masked_scatter(is_row[..., None], block.values.index_select(0, rows))
            .transpose(0, 1)
            for block in blocks
        ]
        found.append(attend(~is_row, *padded).transpose(0, 1)[is_row])
        places.append(rows)
    if not found:
        return blocks[0]
    return Ragged(torch.cat(found).index_select(0, torch.cat(places).argsort()), lengths)


def groups_of_like_length(lengths: list[int]) -> list[list[int]]:
    """Members such that none of a group is more than twice as long as another. Those of length 0 are in none."""
    groups: list[list[int]] = []
    for member in sorted([n for n, length in enumerate(lengths) if length], key=lengths.__getitem__):
        if not groups or lengths[member] > 2 * lengths[groups[-1][0]]:
            groups.append([])
        groups[-1].append(member)
    return groups


def rows_of(lengths: torch.Tensor, members: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of some members, one after the other; and where they stand in a padded block, which is true there."""
    chosen = torch.tensor(members)
    own = lengths.index_select(0, chosen)
    starts = (lengths.cumsum(0) - lengths).index_select(0, chosen)
    places = torch.arange(int(own.max()))
    is_row = places < own[:, None]
    return (starts[:, None] + places)[is_row], is_row
