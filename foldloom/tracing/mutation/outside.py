"""Changes of tensors of the user's: made at once and to the tensors themselves, with values that are computed.

Values of the graph never change (`in_place.py`). What the user made is seen by others: so torch changes it, and raises what it raises.
Everything that was recorded with it runs before, and handles of it, and of its views, are read anew afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foldloom.errors import RecordingError
from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.mutation.functional import changes_in_place
from foldloom.tracing.mutation.views import Borrowed, RowOfWeight, Unbound, Views, root_of
from foldloom.tracing.scope import ActiveRecorder, note_for_undo, recording_paused
from foldloom.tracing.values.lazy_tensor import TENSOR, Given, LazyTensor


class OutsideError(RecordingError):
    """No TypeError, unlike an `ArgumentError`: torch takes those of an in-place operator for "try another way", and `x += y` would
    quietly become `x = x + y`."""


def is_outside(recorder: ActiveRecorder, target: Any) -> bool:
    """Whether a change in place would have to reach a tensor of the user's."""
    if type(target) is not LazyTensor:
        return isinstance(target, torch.Tensor)
    root = root_of(target)
    source = getattr(root, "_source", (None, None))[0]
    if type(source) is Borrowed and source.is_free:
        del root._source
        source = None
    return isinstance(source, Given) or recorder.is_given(root) or recorder.tensor_given_as(root) is not None


def change_outside(
    recorder: ActiveRecorder, function: Any, args: Sequence[Any], kwargs: dict[str, Any], changed: Sequence[Any]
) -> Any:
    """Call a function that changes some of its arguments, among them tensors of the user's. What it returns are tensors."""
    if recorder.guards.runs_later:
        raise not_ours(recorder, function)
    leaves: list[Any] = []
    nesting = flatten((tuple(args), kwargs), leaves)
    if changes_in_place(function):
        _refuse_leaf(recorder, function, changed[0])
    memory: list[torch.Tensor] = []
    for target in changed:
        tensor = _users_tensor(recorder, target)
        if tensor is None:
            raise not_ours(recorder, function)
        memory.append(tensor)
    recorder.outside.wait_for_turn(memory)
    tensors = tensors_of(recorder, leaves)
    recorder.outside.run_readers(memory)
    given_args, given_kwargs = unflatten(nesting, iter(tensors))
    note_for_undo(memory)
    try:
        with recording_paused():
            return function(*given_args, **given_kwargs)
    finally:
        recorder.outside.note_changed(recorder, memory)


_NO_ARITHMETIC = frozenset(
    (torch.Tensor.data.__set__, torch.Tensor.detach_, torch.Tensor.set_, torch.Tensor.resize_, torch.Tensor.resize_as_)  # type: ignore[attr-defined]
)
"""Changes that torch allows of a leaf that requires grad, or refuses in other words."""


def _refuse_leaf(recorder: ActiveRecorder, function: Any, target: Any) -> None:
    """Whoever else sees a leaf that requires grad: torch does not let it be changed, nor a view of it."""
    if not torch.is_grad_enabled() or function in _NO_ARITHMETIC or not target.requires_grad:
        return
    root = _users_tensor(recorder, target)
    if root is not None and (root if root._base is None else root._base).is_leaf:
        (tensor,) = tensors_of(recorder, [target])
        with recording_paused():
            tensor.mul_(1)  # it raises


def tensors_of(recorder: ActiveRecorder, leaves: Sequence[Any]) -> list[Any]:
    """Handles as tensors: those of the user's themselves, and views of them; what is computed, with its history."""
    inside = [leaf for leaf in leaves if type(leaf) is LazyTensor and _users_tensor(recorder, leaf) is None]
    computed = iter(recorder.demand([recorder.own(leaf) for leaf in inside], TENSOR) if inside else ())
    found: list[Any] = []
    for leaf in leaves:
        if type(leaf) is not LazyTensor:
            found.append(leaf)
        elif _users_tensor(recorder, leaf) is not None:
            found.append(_real(recorder, leaf))
        else:
            tensor = next(computed)
            found.append(tensor.detach() if tensor.requires_grad and not leaf.requires_grad else tensor)
    return found


def _real(recorder: ActiveRecorder, handle: LazyTensor) -> torch.Tensor:
    """The tensor of the user's that a handle stands for, or the view of one that it is."""
    source, place = getattr(handle, "_source", (None, None))
    if isinstance(source, RowOfWeight):
        places = tensors_of(recorder, source.places)
        with recording_paused():
            return source.weight[tuple(places)]
    if type(source) is LazyTensor:
        rows = _real(recorder, source)
        with recording_paused():
            return rows.unbind()[place] if isinstance(place, Unbound) else rows[place]
    if isinstance(source, Views):
        leaves: list[Any] = []
        nesting = flatten((source.args, source.kwargs), leaves)
        args, kwargs = unflatten(nesting, iter(tensors_of(recorder, leaves)))
        with recording_paused(), torch.set_grad_enabled(source.grad_enabled and recorder.has_gradients):
            views = source.function(*args, **kwargs)
        return views if place is None else views[place]  # type: ignore[no-any-return]
    given = recorder.tensor_given_as(handle)
    assert given is not None, "only views and given tensors are outside"
    return given


def _users_tensor(recorder: ActiveRecorder, target: Any) -> torch.Tensor | None:
    """A tensor of the user's that a target is, or is a view of; None if it is computed."""
    if type(target) is not LazyTensor:
        return target  # type: ignore[no-any-return]
    root = root_of(target)
    source = getattr(root, "_source", (None, None))[0]
    return source.weight if isinstance(source, RowOfWeight) else recorder.tensor_given_as(root)


def not_ours(recorder: ActiveRecorder, function: Any) -> OutsideError:
    name = getattr(function, "__name__", "in place")
    return OutsideError(
        f"a tensor that was made outside is changed in place (`{name}`), by which a value that is not computed yet would leave "
        "the batch. Change a copy (`x = x.clone()`), make the tensor inside the function given to fl.batch (`torch.zeros`), or "
        f"write `x = x + 1` instead of `x += 1`\n  {recorder.where()}"
    )
