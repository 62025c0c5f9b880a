"""Changes in place, and views that must notice them.

Values never change. A change in place makes a new value, for which the handle stands from then on; if the handle is a view, what it is a
view of changes with it, and so does every other view of that which is still in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from foldloom.errors import ArgumentError
from foldloom.lazy.calls import name_of
from foldloom.lazy.handlers import functional_of, with_item, write_view
from foldloom.lazy.tensor import LazyTensor

if TYPE_CHECKING:
    from foldloom.lazy.recorder import Recorder


def call_in_place(recorder: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0] if args else kwargs.get("input")
    if type(target) is not LazyTensor or _was_given(recorder, target):
        raise _not_ours(recorder, function.__name__)
    result = recorder.call_function(functional_of(function), args, kwargs)
    if result._type is not target._type and result.shape == target.shape:
        if not torch.can_cast(result.dtype, target.dtype):
            raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {target.dtype}")
        result = result.to(target.dtype)
    replace(recorder, target, result)
    return target


def _not_ours(recorder: Recorder, name: str) -> ArgumentError:
    return ArgumentError(
        f"a tensor that was made outside is changed in place (`{name}`), by which a value that is not computed yet would leave "
        "the batch. Change a copy (`x = x.clone()`), make the tensor inside the function given to fl.batch (`torch.zeros`), or "
        f"write `x = x + 1` instead of `x += 1`\n  {recorder.where()}"
    )


def _was_given(recorder: Recorder, target: LazyTensor) -> bool:
    """Whether a change in place would have to reach a tensor of the user's."""
    return target._recorder is recorder.given or (not target._type.ragged and target._value in recorder.users_own)


def set_item(recorder: Recorder, target: LazyTensor, index: Any, value: Any) -> None:
    """``target[index] = value``."""
    if type(target) is not LazyTensor:
        raise _not_ours(recorder, "[...] =")
    if (
        target._type.ragged
        and type(index) is int
        and type(value) is LazyTensor
        and value._type is target._type.row
        and value._recorder is recorder
    ):
        rows = list(target._value)
        rows[index] = value._value
        replace(recorder, target, LazyTensor(recorder, rows, target._type, max(target._depth, value._depth)))
        return
    replace(recorder, target, recorder.call_function(with_item, (target, index, value), None))


def replace(recorder: Recorder, target: LazyTensor, result: LazyTensor) -> None:
    """From now on the target stands for the result, and so does every view of it for a view of the result."""
    source = getattr(target, "_source", None)
    if source is not None:
        group, index = source
        if group is recorder.given:
            raise _not_ours(recorder, "in place")
        if result.shape != target.shape:
            raise RuntimeError(
                f"a view of shape {tuple(target.shape)} cannot be changed in place to {tuple(result.shape)}"
            )
        if type(group) is LazyTensor:
            target._value, target._depth = result._value, result._depth
            rows = list(group._value)
            rows[index] = list(result._value) if result._type.ragged else result._value
            replace(recorder, group, LazyTensor(recorder, rows, group._type, max(group._depth, result._depth)))
            return
        written = (group.base, result, name_of(group.function), index, group.args, group.kwargs)
        replace(recorder, group.base, recorder.call_function(write_view, written, None))
        return
    if _was_given(recorder, target):
        raise _not_ours(recorder, "in place")
    target._value, target._type, target._depth = result._value, result._type, result._depth
    _refresh_views(recorder, target)


def _refresh_views(recorder: Recorder, base: LazyTensor) -> None:
    """Let every view of a changed value that is still in use stand for the same part of what it has become."""
    kept = []
    for reference in tuple(getattr(base, "_views", ())):  # refreshing makes views, which are noted there
        group = reference()
        if group is None:
            continue
        kept.append(reference)
        alive = group.in_use()
        fresh = recorder.call_function(group.function, (base, *group.args), group.kwargs)
        for view, index in alive:
            one = fresh if index is None else fresh[index]
            view._value, view._type, view._depth = one._value, one._type, one._depth
            _refresh_views(recorder, view)
    base._views = kept
