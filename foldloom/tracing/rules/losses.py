"""Losses: one number for each member, however many it is taken over."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from foldloom.graph.ragged import Ragged
from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import DENSE, Batched, argument, register
from foldloom.tracing.rules.elementwise import promote_alike

ELEMENTWISE = (
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss"
)
_OTHER_ELEMENTWISE = "kl_div poisson_nll_loss hinge_embedding_loss margin_ranking_loss"
_OF_ROWS = """
    cosine_embedding_loss triplet_margin_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss
"""
_WEIGHTED_MEAN = ("mse_loss", "l1_loss", "huber_loss")
"""Those whose mean is divided by the sum of the weights, if there are any."""


_STATISTICS = ("running_mean", "running_var")

NOT_DIFFERENTIABLE: dict[Any, tuple[tuple[int, str], ...]] = {
    functional.binary_cross_entropy: ((2, "weight"),),
    functional.cross_entropy: ((2, "weight"),),
    functional.nll_loss: ((2, "weight"),),
    functional.multi_margin_loss: ((4, "weight"),),
    functional.soft_margin_loss: ((1, "target"),),
    **dict.fromkeys((functional.batch_norm, functional.instance_norm), tuple(enumerate(_STATISTICS, 1))),
    **dict.fromkeys((torch.batch_norm, torch.instance_norm), tuple(enumerate(_STATISTICS, 3))),
}
"""Arguments that may not ask for a gradient. Of values in a block one may, and then all of them do."""


def without_gradients(call: Call, form: Batched) -> Batched:
    """The same, with the blocks of those arguments detached."""
    found = [argument(call, *place) for place in NOT_DIFFERENTIABLE.get(call.function, ())]
    numbers = {operand.number for operand in found if isinstance(operand, Operand)}
    if not numbers:
        return form
    return lambda *blocks: form(*[_detached(block) if n in numbers else block for n, block in enumerate(blocks)])


def _detached(block: torch.Tensor | Ragged) -> torch.Tensor | Ragged:
    return Ragged(block.values.detach(), block.lengths) if isinstance(block, Ragged) else block.detach()


def _functionals(names: str) -> list[Any]:
    """Not torch's own functions of these names, whose reductions are numbers."""
    return [getattr(functional, name) for name in names.split()]


@register(DENSE, _functionals(f"{ELEMENTWISE} {_OTHER_ELEMENTWISE}"))
def elementwise_loss(call: Call) -> Batched | None:
    tensors = call.tensors()
    shapes = {tensor.type.shape if isinstance(tensor, Operand) else tuple(tensor.shape) for tensor in tensors}
    if not _is_plain(call) or len(shapes) != 1 or not promote_alike(tensors):
        return None
    if call.function.__name__ in _WEIGHTED_MEAN and call.kwargs.get("weight") is not None:
        return None
    reduction = call.kwargs.get("reduction", "mean")
    if len(call.operands) == len(tensors):
        each = _unreduced(call)
        return lambda *blocks: _reduced(each(*blocks), reduction)
    return lambda *blocks: _reduced(_unreduced(_with_weights_expanded(call, len(blocks[0])))(*blocks), reduction)


def _with_weights_expanded(call: Call, members: int) -> Call:
    """The call with a weight for each member in place of one for all: losses do not broadcast, or complain that they do."""

    def expanded(value: Any) -> Any:
        return value.expand(members, *value.shape) if isinstance(value, torch.Tensor) else value

    kwargs = {name: expanded(value) for name, value in call.kwargs.items()}
    return call._replace(args=tuple(map(expanded, call.args)), kwargs=kwargs)


@register(DENSE, _functionals(_OF_ROWS))
def loss_of_rows(call: Call) -> Batched | None:
    """Of one row or of several: every row has one number."""
    first, reduction = argument(call, 0, "input"), call.kwargs.get("reduction", "mean")
    own = [tensor for tensor in call.args if isinstance(tensor, Operand)]
    if not _is_plain(call) or not isinstance(first, Operand) or len(own) != len(call.operands) or len(own) < 2:
        return None
    shape = first.type.shape
    if first.ndim not in (1, 2) or any(operand.type.shape not in (shape, shape[:-1]) for operand in own):
        return None
    each = _unreduced(call)
    if first.ndim == 1:
        return each

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        losses = each(*[block.flatten(0, 1) for block in blocks])
        return _reduced(losses.unflatten(0, blocks[0].shape[:2]), reduction)

    return run


def _unreduced(call: Call) -> Batched:
    return call._replace(kwargs={**call.kwargs, "reduction": "none"}).apply


def _reduced(losses: torch.Tensor, reduction: str) -> torch.Tensor:
    if reduction == "none":
        return losses
    flat = losses.flatten(1) if losses.ndim > 1 else losses.unsqueeze(1)
    if reduction == "batchmean":
        return flat.sum(1) / losses.shape[1]
    return flat.mean(1) if reduction == "mean" else flat.sum(1)


@register(DENSE, _functionals("cross_entropy nll_loss"))
def class_loss(call: Call) -> Batched | None:
    """Of one row of scores or of several, against classes given by number or by how likely each is."""
    input, target, weight = argument(call, 0, "input"), argument(call, 1, "target"), call.kwargs.get("weight")
    if not _is_plain(call) or not isinstance(input, Operand) or not isinstance(target, Operand):
        return None
    if len(call.args) > 2 or len(call.operands) != 2 or input.ndim not in (1, 2):
        return None
    by_number = target.type.dtype == "int64" and target.ndim == input.ndim - 1
    if not by_number and target.type is not input.type:
        return None
    if weight is not None and (not by_number or call.kwargs.get("label_smoothing")):
        return None
    rows = rowwise_class_loss(call)
    reduction = call.kwargs.get("reduction", "mean")
    ignored = call.kwargs.get("ignore_index", -100)

    def run(*blocks: torch.Tensor) -> Any:
        scores, classes = blocks[input.number], blocks[target.number]
        if input.ndim == 2:
            losses = rows(scores.flatten(0, 1), classes.flatten(0, 1)).view(scores.shape[:2])
        else:
            losses = rows(scores, classes)
        if reduction == "none":
            return losses
        total = losses.sum(1) if losses.ndim > 1 else losses
        if reduction == "sum":
            return total
        if not by_number:
            return total / losses[0].numel()
        counts = classes.ne(ignored)
        if weight is not None:
            counts = weight[classes.where(counts, 0)] * counts
        return total / (counts.sum(1) if counts.ndim > 1 else counts)

    return run


def rowwise_class_loss(call: Call) -> Batched:
    settings = {**call.kwargs, "reduction": "none"}
    settings.pop("input", None)
    settings.pop("target", None)
    return lambda scores, classes: call.function(scores, classes, **settings)


def _is_plain(call: Call) -> bool:
    """Nothing but tensors by position, and no setting from before there was `reduction`."""
    by_position = all(isinstance(arg, (Operand, torch.Tensor)) for arg in call.args)
    return by_position and call.kwargs.get("size_average") is None and call.kwargs.get("reduce") is None
