"""Losses: one number for each member, however many it is taken over."""

from __future__ import annotations

from typing import Any

import torch

from foldloom.lazy.calls import Call, Operand
from foldloom.lazy.rules.base import DENSE, Batched, argument, forms, register

ELEMENTWISE = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss"
)


@register(DENSE, forms(ELEMENTWISE))
def elementwise_loss(call: Call) -> Batched | None:
    reduction = call.kwargs.get("reduction", "mean")
    shapes = {type.shape for type in call.operands}
    if not _is_plain(call) or len(call.operands) != len(call.tensors()) or len(shapes) != 1:
        return None
    settings = {**call.kwargs, "reduction": "none"}
    return lambda *blocks: _reduced(call.function(*blocks, **settings), reduction)


def _reduced(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return losses
    flat = losses.flatten(1) if losses.ndim > 1 else losses.unsqueeze(1)
    return flat.mean(1) if reduction == "mean" else flat.sum(1)


@register(DENSE, forms("cross_entropy nll_loss"))
def class_loss(call: Call) -> Batched | None:
    """Of one row of scores or of several, against classes given by number."""
    input, target = argument(call, 0, "input"), argument(call, 1, "target")
    if not _is_plain(call) or not isinstance(input, Operand) or not isinstance(target, Operand):
        return None
    if call.kwargs.get("weight") is not None or input.ndim not in (1, 2) or target.ndim != input.ndim - 1:
        return None
    if target.type.dtype != "int64" or call.kwargs.get("label_smoothing"):
        return None
    rows = rowwise_class_loss(call)
    reduction = call.kwargs.get("reduction", "mean")
    ignored = call.kwargs.get("ignore_index", -100)

    def run(*blocks: torch.Tensor) -> Any:
        scores, classes = blocks[input.number], blocks[target.number]
        losses = rows(scores.reshape(-1, scores.shape[-1]), classes.reshape(-1)).view(classes.shape)
        if reduction == "none":
            return losses
        total = losses.flatten(1).sum(1) if losses.ndim > 1 else losses
        if reduction == "sum":
            return total
        counted = classes.view(len(classes), -1).ne(ignored).sum(1)
        return total / counted

    return run


def rowwise_class_loss(call: Call) -> Batched:
    settings = {**call.kwargs, "reduction": "none"}
    settings.pop("input", None)
    settings.pop("target", None)
    return lambda scores, classes: call.function(scores, classes, **settings)


def _is_plain(call: Call) -> bool:
    """Nothing but input and target by position, and no setting from before there was `reduction`."""
    return len(call.args) <= 2 and not {"size_average", "reduce"} & {
        name for name, value in call.kwargs.items() if value is not None
    }
