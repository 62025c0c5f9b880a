"""Rules for ragged operands: the rows of all members stand one after the other in one block.

A function that treats every row by itself is applied to all rows as it is: ``values`` looks just like one long example. What
goes over the rows of one example (a sum, a softmax) goes over segments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from foldloom.graph import Type
from foldloom.graph.ragged import Ragged
from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules import elementwise, losses
from foldloom.tracing.rules.base import RAGGED, Batched, argument, forms, register


def rowwise(call: Call) -> Batched:
    """The function itself on all rows."""

    def run(*blocks: Any) -> Any:
        lengths = next(block.lengths for block in blocks if isinstance(block, Ragged))
        result = call.apply(*[block.values if isinstance(block, Ragged) else block for block in blocks])
        if isinstance(result, torch.Tensor):
            return Ragged(result, lengths)
        return tuple([Ragged(item, lengths) for item in result])

    return run


@register(RAGGED, elementwise.FUNCTIONS)
def elementwise_rows(call: Call) -> Batched | None:
    """Other operands are repeated for every row of their member."""
    tensors = call.tensors()
    if call.function is torch.where and len(call.args) + len(call.kwargs) == 1:
        return None  # the places where something is true: how many, depends on values
    if len({tensor.type.dtype if isinstance(tensor, Operand) else str(tensor.dtype)[6:] for tensor in tensors}) > 1:
        return None
    ragged_ndim = {tensor.ndim for tensor in tensors if isinstance(tensor, Operand) and tensor.type.ragged}
    if len(ragged_ndim) > 1:
        return None
    ndim = ragged_ndim.pop()
    dense = [tensor for tensor in tensors if not (isinstance(tensor, Operand) and tensor.type.ragged)]
    if any(tensor.ndim >= ndim for tensor in dense):
        return None
    if not dense:
        return rowwise(call)

    def run(*blocks: Any) -> Ragged:
        first = next(block for block in blocks if isinstance(block, Ragged))
        rows = first.example_of_row
        values = [block.values if isinstance(block, Ragged) else _for_each_row(block, rows, ndim) for block in blocks]
        return Ragged(call.apply(*values), first.lengths)

    return run


def _for_each_row(block: torch.Tensor, rows: torch.Tensor, ndim: int) -> torch.Tensor:
    repeated = block.index_select(0, rows)
    return repeated.reshape(len(repeated), *(1,) * (ndim - block.ndim), *block.shape[1:])


@register(RAGGED, forms("linear"))
def linear_rows(call: Call) -> Batched | None:
    return rowwise(call) if len(call.operands) == 1 and call.operands[0].shape[1:] else None


@register(RAGGED, [*forms("embedding layer_norm rms_norm")])
def table_rows(call: Call) -> Batched | None:
    is_norm = "norm" in call.function.__name__
    by_torch = call.function is torch.embedding
    if not is_norm and argument(call, 3 if by_torch else 5, "scale_grad_by_freq", False):
        return None  # words are counted in one example
    return rowwise(call) if len(call.operands) == 1 and (not is_norm or _normalizes_rows(call)) else None


def _normalizes_rows(call: Call) -> bool:
    shape = argument(call, 1, "normalized_shape")
    return shape is not None and len(shape) < len(call.operands[0].shape)


@register(RAGGED, [*forms("matmul mm mv dot"), operator.matmul])
def matmul_rows(call: Call) -> Batched | None:
    if len(call.args) != 2 or call.kwargs:
        return None
    left, right = call.args
    if isinstance(left, Operand) and left.type.ragged and left.ndim == 2:
        if isinstance(right, torch.Tensor):
            return rowwise(call) if right.ndim <= 2 else None
        if not right.type.ragged and right.ndim == 1:
            return _dot_each_row
        return None
    if isinstance(right, Operand) and right.type.ragged and isinstance(left, Operand) and left.type.ragged:
        if left.ndim == 1 and right.ndim == 2:
            return lambda weights, rows: segment_sum(Ragged(weights.values.unsqueeze(1) * rows.values, rows.lengths))
        if left.ndim == right.ndim == 1:
            return lambda one, other: segment_sum(Ragged(one.values * other.values, one.lengths))
    return None


def _dot_each_row(rows: Ragged, vector: torch.Tensor) -> Ragged:
    products = rows.values * vector.index_select(0, rows.example_of_row)
    return Ragged(products.sum(-1), rows.lengths)


def segment_sum(ragged: Ragged) -> torch.Tensor:
    """The sum over the rows of each member."""
    total = ragged.values.new_zeros(len(ragged), *ragged.values.shape[1:])
    return total.index_add(0, ragged.example_of_row, ragged.values)


def segment_mean(ragged: Ragged) -> torch.Tensor:
    total = segment_sum(ragged)
    counts = ragged.lengths.to(total).view(-1, *(1,) * (total.ndim - 1))
    return total / counts


def _shares_of_extreme(ragged: Ragged, largest: bool) -> torch.Tensor:
    """The largest (or smallest) number over the rows of each member; its gradient is shared among equals."""
    index = ragged.example_of_row
    flat = ragged.values
    rows = index.view(-1, *(1,) * (flat.ndim - 1)).expand_as(flat)
    shape = (len(ragged), *flat.shape[1:])
    start = torch.full(shape, -torch.inf if largest else torch.inf, dtype=flat.dtype, device=flat.device)
    with torch.no_grad():
        best = start.scatter_reduce(0, rows, flat, "amax" if largest else "amin")
        is_best = (flat == best.index_select(0, index)).to(flat.dtype)
        share = is_best / segment_sum(Ragged(is_best, ragged.lengths)).index_select(0, index)
    # The value itself, with a gradient that goes to the shares: infinities and all, nothing is computed twice.
    return _WithShares.apply(best, flat, share, index)  # type: ignore[no-any-return]


class _WithShares(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, best: torch.Tensor, flat: torch.Tensor, share: torch.Tensor, index: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(share, index)
        return best.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        (grad,), (share, index) = grads, ctx.saved_tensors
        return None, None if grad is None else grad.index_select(0, index) * share, None, None


_SEGMENT: dict[str, Callable[[Ragged], torch.Tensor]] = {
    "sum": segment_sum,
    "mean": segment_mean,
    "amax": lambda ragged: _shares_of_extreme(ragged, True),
    "amin": lambda ragged: _shares_of_extreme(ragged, False),
}
_WHOLE = {"max": "amax", "min": "amin"}


@register(RAGGED, forms("sum mean amax amin max min"))
def reduction_rows(call: Call) -> Batched | None:
    if len(call.tensors()) != 1 or not isinstance(call.args[0], Operand):
        return None
    name = call.function.__name__
    ndim = call.args[0].ndim
    dim = argument(call, 1, "dim")
    if set(call.kwargs) - {"dim"} or call.args[2:] or not call.operands[0].differentiable:
        return None
    if isinstance(dim, (tuple, list)):
        dim = dim[0] if len(dim) == 1 else None if sorted(one % ndim for one in dim) == list(range(ndim)) else "several"
    if dim is None:
        whole = _WHOLE.get(name, name)
        row_dims = tuple(range(1, ndim))
        # A mean of means of rows of one size is the mean.
        over_rows = getattr(torch, whole)
        return lambda ragged: _SEGMENT[whole](
            Ragged(over_rows(ragged.values, dim=row_dims), ragged.lengths) if row_dims else ragged
        )
    if type(dim) is not int:
        return None
    if dim % ndim:
        return rowwise(call)
    return _SEGMENT.get(name)


@register(RAGGED, forms("argmax argmin"))
def arg_extreme_rows(call: Call) -> Batched | None:
    dim = argument(call, 1, "dim")
    ndim = call.operands[0].shape and len(call.operands[0].shape)
    if dim is not None and dim % ndim:
        return rowwise(call)
    if ndim != 1 or call.args[2:] or set(call.kwargs) - {"dim"}:
        return None
    function = call.function

    def run(ragged: Ragged) -> torch.Tensor:
        return torch.stack([function(rows) for rows in ragged]) if len(ragged) < 2 else _padded_arg(ragged, function)

    return run


def _padded_arg(ragged: Ragged, function: Callable[..., torch.Tensor]) -> torch.Tensor:
    worst = -torch.inf if "max" in function.__name__ else torch.inf
    if not ragged.values.is_floating_point():
        info = torch.iinfo(ragged.values.dtype)
        worst = info.min if "max" in function.__name__ else info.max
    sequences = list(ragged)
    padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=worst)
    return function(padded, 1)


@register(RAGGED, forms("softmax log_softmax"))
def softmax_rows(call: Call) -> Batched | None:
    dim = argument(call, 1, "dim")
    if len(call.tensors()) != 1 or type(dim) is not int or call.kwargs.get("dtype") is not None:
        return None
    if dim % len(call.operands[0].shape):
        return rowwise(call)
    return _segment_log_softmax if call.function.__name__ == "log_softmax" else _segment_softmax


def _shifted(ragged: Ragged) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All numbers, less the largest of their member's; which member each is of; and those largest, if they are finite."""
    index = ragged.example_of_row
    rows = index.view(-1, *(1,) * (ragged.values.ndim - 1)).expand_as(ragged.values)
    lowest = torch.full((len(ragged), *ragged.values.shape[1:]), -torch.inf, dtype=ragged.values.dtype)
    largest = lowest.to(ragged.values.device).scatter_reduce(0, rows, ragged.values.detach(), "amax")
    largest = largest.masked_fill(largest.isinf(), 0)
    return ragged.values - largest.index_select(0, index), index, largest


def _segment_softmax(ragged: Ragged) -> Ragged:
    shifted, index, _ = _shifted(ragged)
    powers = shifted.exp()
    totals = segment_sum(Ragged(powers, ragged.lengths))
    return Ragged(powers / totals.index_select(0, index), ragged.lengths)


def _segment_log_softmax(ragged: Ragged) -> Ragged:
    shifted, index, _ = _shifted(ragged)
    totals = segment_sum(Ragged(shifted.exp(), ragged.lengths)).log()
    return Ragged(shifted - totals.index_select(0, index), ragged.lengths)


@register(RAGGED, forms("logsumexp"))
def logsumexp_rows(call: Call) -> Batched | None:
    dim = argument(call, 1, "dim")
    if isinstance(dim, (tuple, list)) and len(dim) == 1:
        (dim,) = dim
    if type(dim) is not int or call.args[2:] or set(call.kwargs) - {"dim"}:
        return None
    if dim % len(call.operands[0].shape):
        return rowwise(call)

    def run(ragged: Ragged) -> torch.Tensor:
        shifted, _, largest = _shifted(ragged)
        return segment_sum(Ragged(shifted.exp(), ragged.lengths)).log() + largest

    return run


_IGNORED = -100
"""The class that losses leave out."""


def _loss_among_rows(scores: Ragged, classes: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of one class of each member, which has as many as it has rows."""
    is_ignored = classes == _IGNORED
    outside = ~is_ignored & ((classes < 0) | (classes >= scores.lengths))
    if bool(outside.any()):
        raise IndexError(f"Target {int(classes[outside][0])} is out of bounds.")
    starts = scores.lengths.cumsum(0) - scores.lengths
    found = _segment_log_softmax(scores).values.index_select(0, starts + classes.masked_fill(is_ignored, 0))
    return (-found).masked_fill(is_ignored, torch.nan)  # the mean of none


@register(RAGGED, forms("cross_entropy nll_loss"))
def class_loss_rows(call: Call) -> Batched | None:
    input, target = argument(call, 0, "input"), argument(call, 1, "target")
    settings = {name: setting for name, setting in call.kwargs.items() if setting is not None}
    known = {"reduction", "ignore_index", "label_smoothing", "target", "input"}
    if len(call.args) > 2 or set(settings) - known or not (isinstance(input, Operand) and isinstance(target, Operand)):
        return None
    if input.type.ragged and input.ndim == 1 and target.type == Type((), "int64"):
        usual = {"reduction": "mean", "ignore_index": _IGNORED, "label_smoothing": 0.0}
        is_usual = len(call.args) == 2 and {**usual, **settings} == usual
        return _loss_among_rows if is_usual and call.function is functional.cross_entropy else None
    if input.ndim != 2:
        return None
    if not (input.type.ragged and target.type.ragged) or target.ndim != 1 or target.type.dtype != "int64":
        return None
    rows = losses.rowwise_class_loss(call)
    reduction = call.kwargs.get("reduction", "mean")
    ignored = call.kwargs.get("ignore_index", -100)
    if reduction == "mean" and call.kwargs.get("label_smoothing"):
        return None

    def run(*blocks: Ragged) -> Any:
        scores, classes = blocks[input.number], blocks[target.number]
        found = Ragged(rows(scores.values, classes.values), scores.lengths)
        if reduction == "none":
            return found
        total = segment_sum(found)
        if reduction == "sum":
            return total
        return total / segment_sum(Ragged(classes.values.ne(ignored).to(total.dtype), classes.lengths))

    return run


@register(RAGGED, forms(losses.ELEMENTWISE))
def elementwise_loss_rows(call: Call) -> Batched | None:
    if (
        len(call.args) != 2
        or set(call.kwargs) - {"reduction"}
        or len(set(call.operands)) != 1
        or len(call.operands) != 2
    ):
        return None
    reduction = call.kwargs.get("reduction", "mean")

    def run(input: Ragged, target: Ragged) -> Any:
        found = call.function(input.values, target.values, reduction="none")
        if reduction == "none":
            return Ragged(found, input.lengths)
        flat = found.flatten(1) if found.ndim > 1 else found.unsqueeze(1)
        rows = Ragged(flat.mean(1) if reduction == "mean" else flat.sum(1), input.lengths)
        return segment_mean(rows) if reduction == "mean" else segment_sum(rows)

    return run


@register(RAGGED, forms("unsqueeze squeeze"))
def add_dimension(call: Call) -> Batched | None:
    if call.kwargs or len(call.args) != 2 or type(call.args[1]) is not int:
        return None
    ndim = len(call.operands[0].shape) + (call.function.__name__ == "unsqueeze")
    return rowwise(call) if call.args[1] % ndim else None


@register(RAGGED, forms("cat concat concatenate"))
def join_columns(call: Call) -> Batched | None:
    items = call.args[0]
    dim = argument(call, 1, "dim", 0)
    if not all(isinstance(item, Operand) and item.type.ragged for item in items) or type(dim) is not int:
        return None
    return rowwise(call) if dim % len(call.operands[0].shape) else None


@register(RAGGED, forms("chunk split"))
def split_columns(call: Call) -> Batched | None:
    dim = argument(call, 2, "dim", 0)
    return rowwise(call) if type(dim) is int and dim % len(call.operands[0].shape) else None


@register(RAGGED, [torch.Tensor.__getitem__])
def getitem_columns(call: Call) -> Batched | None:
    _, index = call.args
    if not isinstance(index, tuple) or index[0] != slice(None) or len(index) < 2:
        return None
    return rowwise(call) if all(type(part) in (int, slice, type(None), type(...)) for part in index) else None


def together(rows: torch.Tensor) -> torch.Tensor:
    """The rows of a stack, as one value."""
    return rows


@register(RAGGED, [together])
def _together(call: Call) -> Batched:
    return lambda rows: Ragged(rows.values, rows.lengths)
