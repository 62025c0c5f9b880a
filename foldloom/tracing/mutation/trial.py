"""Changes in place that torch refuses: of some views, and where what is read overlaps what is written.

Functionalization would let them pass, because values of the graph never change. Where there is a suspicion, the change is tried on
small tensors that are views of each other in the same way, and torch raises what it raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.mutation.views import Unbound, Views, part_copies, root_of
from foldloom.tracing.scope import ActiveRecorder, recording_paused
from foldloom.tracing.values.lazy_tensor import LazyTensor


def check_change(
    recorder: ActiveRecorder, function: Any, target: LazyTensor, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Raise what torch raises for a change in place of a value, whatever the numbers in it are."""
    part_copies(target)
    leaves: list[Any] = []
    flatten((tuple(args), kwargs), leaves)
    handles = [leaf for leaf in leaves if type(leaf) is LazyTensor and leaf is not target]
    root = root_of(target)
    if any(root_of(handle) is root for handle in handles) or (
        root is not target and _is_kept_from_changes(target) and torch.is_grad_enabled() and _any_requires_grad(leaves)
    ):
        try_change(recorder, function, args, kwargs)


def _any_requires_grad(leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)


def _is_kept_from_changes(view: LazyTensor) -> bool:
    """Whether autograd does not follow changes of a view: one of several results, or one made without gradients."""
    while True:
        source, place = getattr(view, "_source", (None, None))
        if type(source) is LazyTensor:
            if isinstance(place, Unbound):
                return True
            view = source
        elif isinstance(source, Views):
            if place is not None or not source.grad_enabled:
                return True
            view = source.base
        else:
            return False


def try_change(recorder: ActiveRecorder, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Make the change to tensors of the same shapes that share memory in the same way."""
    leaves: list[Any] = []
    nesting = flatten((tuple(args), kwargs), leaves)
    models: dict[int, torch.Tensor] = {}
    with recording_paused(), torch.random.fork_rng(devices=()):
        try:
            tried = [model_of(leaf, models) if type(leaf) is LazyTensor else leaf for leaf in leaves]
        except Exception:
            return  # a view that depends on numbers
        tried_args, tried_kwargs = unflatten(nesting, iter(tried))
        with suppress(IndexError, ZeroDivisionError):  # these depend on numbers too
            function(*tried_args, **tried_kwargs)


def model_of(handle: LazyTensor, models: dict[int, torch.Tensor]) -> torch.Tensor:
    """A small tensor that stands for a value; views of one that has a model are views of the model."""
    known = models.get(id(handle))
    if known is None:
        known = models[id(handle)] = _made(handle, models)
    return known


def _made(handle: LazyTensor, models: dict[int, torch.Tensor]) -> torch.Tensor:
    source, place = getattr(handle, "_source", (None, None))
    if type(source) is LazyTensor:
        rows = model_of(source, models)
        return rows.unbind()[place] if isinstance(place, Unbound) else rows[place]
    if isinstance(source, Views):
        leaves: list[Any] = []
        nesting = flatten((source.args, source.kwargs), leaves)
        leaves = [model_of(leaf, models) if type(leaf) is LazyTensor else leaf for leaf in leaves]
        args, kwargs = unflatten(nesting, iter(leaves))
        with torch.set_grad_enabled(source.grad_enabled):
            views = source.function(*args, **kwargs)
        return views if place is None else views[place]  # type: ignore[no-any-return]
    made = torch.zeros(handle.shape, dtype=handle.dtype)
    if not handle.requires_grad:
        return made
    with torch.enable_grad():
        return made.requires_grad_() if handle.is_leaf else made.requires_grad_().clone()
