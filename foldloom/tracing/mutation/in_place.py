"""Functionalization of in-place changes.

Values of the graph never change. An in-place change records a new value, and the handle stands for it from then on. If the handle is a
view, its base gets a new value too, and so does every other view of that base that is still in use.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import type_of
from foldloom.tracing.functions.calls import name_of
from foldloom.tracing.mutation.functional import (
    CHANGE_SHAPE,
    functional_of,
    with_element,
    with_gradient_of,
    with_item,
    write_view,
)
from foldloom.tracing.mutation.outside import change_outside, is_outside
from foldloom.tracing.mutation.spoiled import Kept, views_below
from foldloom.tracing.mutation.trial import check_change, try_change
from foldloom.tracing.mutation.views import Views, note_change, note_views, note_written, part_copies
from foldloom.tracing.scope import ActiveRecorder
from foldloom.tracing.values.lazy_tensor import Given, LazyTensor, new_handle


def call_in_place(recorder: ActiveRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target = args[0] if args else kwargs.get("input")
    if is_outside(recorder, target):
        result = change_outside(recorder, function, args, kwargs, [target])
        return target if isinstance(result, torch.Tensor) else result
    assert type(target) is LazyTensor
    check_change(recorder, function, target, args, kwargs)
    twin = functional_of(function)
    if twin in CHANGE_SHAPE:
        if target._type.ragged:
            _assign(recorder, target, recorder.dense(target))
        return _change_shape(recorder, target, twin, args[1:], kwargs)
    result = recorder.call_function(twin, args, kwargs)
    if type(result) is not LazyTensor:  # of a weight, by a function that draws
        result = recorder.lift(result, ragged=False)
    made = result
    if result._type is not target._type and result.shape == target.shape:
        if not torch.can_cast(result.dtype, target.dtype):
            raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {target.dtype}")
        result = result.to(target.dtype)
    if result.shape != target.shape:
        try_change(recorder, function, args, kwargs)
    replace(recorder, target, result, made)
    return target


def call_with_out(recorder: ActiveRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.add(x, y, out=z)``: what is returned without `out`, put in its place."""
    out = kwargs["out"]
    targets = out if isinstance(out, (list, tuple)) else (out,)
    if any(is_outside(recorder, target) for target in targets):
        change_outside(recorder, function, args, kwargs, targets)
        return out
    try_change(recorder, function, args, kwargs)
    made = recorder.call_function(function, args, {name: value for name, value in kwargs.items() if name != "out"})
    for target, result in zip(targets, made if isinstance(made, (list, tuple)) else (made,), strict=True):
        replace(recorder, target, result if result.dtype is target.dtype else result.to(target.dtype))
    return out


def set_item(recorder: ActiveRecorder, target: LazyTensor, index: Any, value: Any) -> None:
    """``target[index] = value``."""
    if is_outside(recorder, target):
        change_outside(recorder, torch.Tensor.__setitem__, (target, index, value), {}, [target])
        return
    check_change(recorder, torch.Tensor.__setitem__, target, (target, index, value), {})
    if (
        target._type.ragged
        and type(index) is int
        and type(value) is LazyTensor
        and value._type is target._type.row
        and value._recorder is recorder
        and torch.is_grad_enabled()
    ):
        note_change(recorder, target, value)
        kept = Kept(recorder, target)
        _write_row(recorder, target, index, value)
        kept.spoil()
        return
    if type(index) is int and target._type.shape:
        length = len(target)
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {length}")
        changed = recorder.call_function(with_element, (target, recorder.number(index % length), value), None)
    else:
        changed = recorder.call_function(with_item, (target, index, value), None)
    replace(recorder, target, changed)


def set_data(recorder: ActiveRecorder, target: LazyTensor, value: Any) -> None:
    """``target.data = value``: other numbers, the gradient as it was. Both are the same memory from then on."""
    handle = value if type(value) is LazyTensor else recorder.lift(value, ragged=False)
    for either in (target, handle):
        if (
            is_outside(recorder, either)
            or hasattr(either, "_source")
            or any(f() is not None for f in getattr(either, "_views", ()))
        ):
            raise ArgumentError(
                "`x.data = ...` where one of the two shares memory with other tensors. Write `x = x.detach().clone()` before, or change "
                f"the numbers: `x.data.copy_(...)`\n  {recorder.where()}"
            )
    with torch.no_grad():
        result = _with_gradient_of(recorder, target, recorder.call_function(torch.clone, (handle,), None))
    target._value, target._type, target._depth = result._value, result._type, result._depth
    # A change in place of one would have to reach the other: it is refused.
    target._source = handle._source = (Given(recorder), None)


def replace(recorder: ActiveRecorder, target: LazyTensor, result: LazyTensor, made: LazyTensor | None = None) -> None:
    """From now on the target stands for the result, and every view of the target for the same view of the result. ``made`` is what the
    function that works in place computed, if it is not the result."""
    made = result if made is None else made
    part_copies(target)
    note_change(recorder, target, made)
    kept = Kept(recorder, target)
    derived = recorder.derived_under(target)
    result_of_derived = made._value
    _replace(recorder, target, result)
    kept.spoil()
    note_written(recorder, target, made)
    if derived is not None:
        recorder.note_change_of_derived(derived, result_of_derived)


def _replace(recorder: ActiveRecorder, target: LazyTensor, result: LazyTensor) -> None:
    group, index = getattr(target, "_source", (None, None))
    if group is not None and result.shape != target.shape:
        raise RuntimeError(f"a view of shape {tuple(target.shape)} cannot be changed in place to {tuple(result.shape)}")
    if group is None:
        _assign(recorder, target, _with_gradient_of(recorder, target, result))
    elif type(group) is LazyTensor:
        _write_row(recorder, group, index, _with_gradient_of(recorder, target, result))
    elif group.is_alias:
        _write_alias(recorder, target, group, result)
    else:
        _write_view(recorder, group, index, result)


def read_anew(recorder: ActiveRecorder, handle: LazyTensor, tensor: torch.Tensor) -> None:
    """A tensor of the user's has been changed: its handle stands for what it is now, and so do the views of it."""
    kept = Kept(recorder, handle)
    handle._recorder, handle._value, handle._type, handle._depth = Given(recorder), tensor, type_of(tensor), 0
    if hasattr(handle, "_source"):
        del handle._source
    _refresh_views(recorder, handle)
    kept.spoil()


def cut_views(recorder: ActiveRecorder, base: LazyTensor) -> None:
    """A value has become a leaf: the views that there are of it require grad as it does, and no gradient gets from them to it."""
    for view in views_below(base):
        if type(view._source[0]) is Views:
            view._source[0].grad_enabled = False
    with torch.no_grad():
        _refresh_views(recorder, base)


def _assign(recorder: ActiveRecorder, target: LazyTensor, result: LazyTensor) -> None:
    target._recorder = result._recorder  # a derived weight becomes a value
    target._value, target._type, target._depth = result._value, result._type, result._depth
    _refresh_views(recorder, target)


def _write_row(recorder: ActiveRecorder, values: LazyTensor, index: Any, result: LazyTensor) -> None:
    """Set one row of a ragged value, or a slice of its rows: only value numbers change."""
    rows = list(values._value)
    if isinstance(index, int):
        rows[index] = result._value
    else:
        with torch.set_grad_enabled(
            recorder.has_gradients
        ):  # what a change without gradients keeps of the past is known already
            rows[index] = [row._value for row in recorder.rows_of(result)]
    depth = max(values._depth, result._depth)
    changed = new_handle(recorder, rows, values._type, depth)
    if hasattr(values, "_source"):
        _replace(recorder, values, changed)
    else:
        _assign(recorder, values, changed)


def _write_view(recorder: ActiveRecorder, group: Views, index: int | None, result: LazyTensor) -> None:
    if not group.is_of_first:
        raise ArgumentError(
            f"what `{group.function.__name__}` returned is changed in place, which would have to change its arguments too. Change a copy "
            f"(`x = x.clone()`)\n  {recorder.where()}"
        )
    written = (group.base, result, name_of(group.function), index, group.args[1:], group.kwargs)
    _replace(recorder, group.base, recorder.call_function(write_view, written, None))


def _write_alias(recorder: ActiveRecorder, target: LazyTensor, group: Views, result: LazyTensor) -> None:
    """What `detach` returned is changed in place: it shares memory with its base, and has a history of its own."""
    _assign(recorder, target, result)
    _replace(recorder, group.base, _with_history_of(recorder, group.base, result))


def _with_history_of(recorder: ActiveRecorder, target: LazyTensor, numbers: LazyTensor) -> LazyTensor:
    """Other numbers with the history of a value, of which autograd sees no change."""
    if not target.requires_grad:
        detached: LazyTensor = recorder.call_function(torch.Tensor.detach, (numbers,), None)
        return detached
    with torch.enable_grad():
        joined: LazyTensor = recorder.call_function(with_gradient_of, (target, numbers), None)
    return joined


def _with_gradient_of(recorder: ActiveRecorder, target: LazyTensor, result: LazyTensor) -> LazyTensor:
    """An in-place change within `torch.no_grad()` changes the numbers, and leaves the gradient as it was."""
    if torch.is_grad_enabled() or not recorder.has_gradients or not target._type.differentiable:
        return result
    return result if target.shape != result.shape else _with_history_of(recorder, target, result)


def _refresh_views(recorder: ActiveRecorder, base: LazyTensor) -> None:
    """Record every view of a changed value that is still in use anew."""
    before, base._views = getattr(base, "_views", ()), []
    for reference in before:
        found = reference()
        if type(found) is LazyTensor:
            _refresh_row(recorder, base, found)
        elif found is not None:
            base._views.append(reference)
            with torch.set_grad_enabled(found.grad_enabled and recorder.has_gradients):
                fresh = recorder.call_function(found.function, found.args, found.kwargs)
            for view, index in found.in_use():
                of_view = fresh if index is None else fresh[index]
                if found.is_alias and view.requires_grad:
                    of_view = _with_history_of(recorder, view, of_view)
                _assign(recorder, view, of_view)


def _refresh_row(recorder: ActiveRecorder, values: LazyTensor, row: LazyTensor) -> None:
    index = row._source[1]
    if values._type.ragged:
        kind = values._type.row if isinstance(index, int) else values._type
        fresh = new_handle(recorder, values._value[index], kind, values._depth)
        values._views.append(weakref.ref(row))
    else:
        fresh = recorder.call_function(torch.Tensor.__getitem__, (values, index), None)
        note_views(torch.Tensor.__getitem__, (values, index), {}, row, values)
    _assign(recorder, row, fresh)


def _change_shape(
    recorder: ActiveRecorder, target: LazyTensor, function: Any, args: Any, kwargs: dict[str, Any]
) -> Any:
    """``x.t_()`` and the like: other handles see the same memory as before, and the target becomes another view of it."""
    note_change(recorder, target, target)
    memory = new_handle(target._recorder, target._value, target._type, target._depth)
    for reference in getattr(target, "_views", ()):
        views = reference()
        if type(views) is LazyTensor:
            views._source = (memory, views._source[1])
        elif views is not None:
            views.move(memory)
    memory._views, target._views = getattr(target, "_views", []), []
    source = getattr(target, "_source", None)
    if source is not None:
        memory._source = source
        if type(source[0]) is LazyTensor:
            source[0]._views.append(weakref.ref(memory))
        else:
            source[0].exchange(target, memory)
    result = recorder.call_function(function, (memory, *args), kwargs)
    target._recorder = result._recorder
    target._value, target._type, target._depth = result._value, result._type, result._depth
    group, index = result._source
    group.exchange(result, target)
    target._source = (group, index)
    return target
