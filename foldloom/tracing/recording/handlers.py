"""Functions that are not recorded as one operation: each has a handler, which the recorder calls instead.

Stacking a list, joining lists and taking rows of a ragged value only rearrange value numbers: they compute nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from foldloom.errors import ArgumentError
from foldloom.graph import ANY, Type
from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.mutation.functional import functional_of
from foldloom.tracing.mutation.in_place import replace
from foldloom.tracing.mutation.outside import change_outside, is_outside
from foldloom.tracing.mutation.views import (
    RowOfWeight,
    Views,
    is_strided,
    layout_of,
    note_views,
    row_handle,
    shares_memory,
)
from foldloom.tracing.recording.draws import DRAWING
from foldloom.tracing.recording.gradients.derivatives import backward, grad
from foldloom.tracing.recording.gradients.hooks import register_hook, register_post_accumulate_grad_hook, retain_grad
from foldloom.tracing.recording.gradients.leaves import requires_grad_
from foldloom.tracing.rules.base import forms
from foldloom.tracing.rules.fallback import BY_MEMORY, with_gradient_of_its_own
from foldloom.tracing.rules.indexing import take
from foldloom.tracing.scope import ActiveRecorder, recording_paused, unwatched
from foldloom.tracing.values.lazy_tensor import TENSOR, LazyTensor, new_handle
from foldloom.tracing.weights import Derived

Handler = Callable[[Any, Any, dict[str, Any]], Any]
"""Takes the recorder and the arguments of a call. NotImplemented: record the call as any other."""


TYPE_OF_STACK: dict[Type, Type] = {}
"""By the type of a row: the type of a stack of such rows."""


def _ragged(recorder: ActiveRecorder, rows: Sequence[LazyTensor], type: Type) -> LazyTensor:
    """A stack of rows of one type."""
    recorder.check_may_rearrange()
    depth = max([row._depth for row in rows], default=0)
    stacked = TYPE_OF_STACK.setdefault(type, Type((ANY, *type.shape), type.dtype))
    return new_handle(recorder, [row._value for row in rows], stacked, depth)


def _as_value(recorder: ActiveRecorder, handle: LazyTensor, ragged: bool) -> LazyTensor:
    """A derived weight as a value, like those that it stands beside."""
    return recorder.own(handle, ragged=ragged) if type(handle._recorder) is Derived else handle


def _stack(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    items = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if dim != 0 or kwargs.keys() - {"dim", "tensors"} or not isinstance(items, (list, tuple)) or not items:
        return NotImplemented
    first = next((item for item in items if type(item) is LazyTensor), None)
    if first is None or first._type.ragged:
        return NotImplemented
    row = first._type
    if not any(type(item) is LazyTensor and item._recorder is recorder for item in items):
        return NotImplemented
    rows: list[Any] = [
        _as_value(recorder, item, False)
        if type(item) is LazyTensor
        else recorder.lift(item, ragged=False)
        if isinstance(item, torch.Tensor) and not isinstance(item, torch.nn.Parameter)
        else None
        for item in items
    ]
    if any(item is None or item._type is not row or item._recorder is not recorder for item in rows):
        return NotImplemented
    return NotImplemented if any(map(recorder.cuts, rows)) else _ragged(recorder, rows, row)


def _cat(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    """Joining ragged values is joining their rows."""
    items = args[0] if args else kwargs.get("tensors")
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if kwargs.keys() - {"dim", "tensors"} or not isinstance(items, (list, tuple)) or type(dim) is not int:
        return NotImplemented
    ragged = [item for item in items if type(item) is LazyTensor and item._type.ragged]
    if not ragged or dim % ragged[0].ndim or any(isinstance(item, torch.nn.Parameter) for item in items):
        return NotImplemented
    if any(map(recorder.cuts, ragged)):
        return NotImplemented
    row = ragged[0]._type.row
    rows: list[LazyTensor] = []
    for item in items:
        handle = _as_value(recorder, item, True) if type(item) is LazyTensor else recorder.lift(item, ragged=True)
        if (
            handle._recorder is not recorder
            or handle.shape[1:] != torch.Size(row.shape)
            or handle._type.dtype != row.dtype
        ):
            return NotImplemented
        rows += recorder.rows_of(handle)
    return _ragged(recorder, rows, row)


def _getitem(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    values, index = args
    if type(values) is not LazyTensor:
        return _taken_from_weight(recorder, values, index if type(index) is tuple else (index,))
    if values._recorder is not recorder:
        return NotImplemented
    kind = type(index)
    if kind is slice and values._type.ragged:
        bounds = [bound for bound in (index.start, index.stop, index.step) if bound is not None]
        if all(type(bound) is int for bound in bounds) and (index.step is None or index.step > 0):
            # No row may be left to tell whether it requires grad, which nobody asks of a recording that is kept.
            if not range(len(values))[index] and not recorder.guards.runs_later:
                return recorder.call_function(torch.Tensor.__getitem__, (recorder.dense(values), index), None)
            return _cut(recorder, values, index) if recorder.cuts(values) else row_handle(recorder, values, index)
        return NotImplemented
    if kind is int:
        if not values._type.shape:
            return NotImplemented
        length = len(values)
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {length}")
        if values._type.ragged:
            return _cut(recorder, values, index) if recorder.cuts(values) else row_handle(recorder, values, index)
        if index in (0, -1):
            return NotImplemented
        return _taken(recorder, values, index, recorder.number(index % length))
    if kind is LazyTensor and index._type.shape == () and index._type.dtype == "int64":
        return _taken(recorder, values, index, index)
    return NotImplemented


def _cut(recorder: ActiveRecorder, values: LazyTensor, index: int | slice) -> LazyTensor:
    """A row of a ragged value, or some of them, without their histories."""
    rows: LazyTensor = recorder.call_function(torch.Tensor.__getitem__, (recorder.dense(values), index), None)
    note_views(torch.Tensor.__getitem__, (values, index), {}, rows, values)
    return rows


def _taken(recorder: ActiveRecorder, values: LazyTensor, index: Any, place: LazyTensor) -> LazyTensor:
    """One element, which is a view. Each member of a step may take another."""
    row: LazyTensor = recorder.call_function(take, (recorder.dense(values), place), None)
    note_views(torch.Tensor.__getitem__, (values, index), {}, row, values)
    return row


def _taken_from_weight(recorder: ActiveRecorder, weight: torch.Tensor, places: tuple[Any, ...]) -> Any:
    """``weight[x[0], x[1]]`` of given numbers: places are data, so they can be looked up for all members together. So are Python's numbers,
    where a program asks for several places of one weight; of a few, each is a weight of its own."""
    shape = weight.shape[: len(places)]
    are_data = [
        type(place) is LazyTensor and (place._type.shape, place._type.dtype) == ((), "int64") for place in places
    ]
    are_places = all(is_data or type(place) is int for is_data, place in zip(are_data, places, strict=True))
    if not are_places or len(shape) < len(places) or 0 in shape or not is_strided(weight):
        return NotImplemented
    vary = not any(are_data)
    if vary and not recorder.numbers.note((take, id(weight), len(places)), places):
        return NotImplemented
    given: list[Any] = [place if type(place) is int else recorder.read_given(place) for place in places]
    if any(place is None for place in given):
        return NotImplemented
    for place, size in zip(map(int, given), shape, strict=True):
        if not -size <= place < size:
            raise IndexError(f"index {place} is out of bounds for dimension 0 with size {size}")
    found: Any = weight
    for place, size in zip(places, shape, strict=True):
        if vary:
            found = recorder.call_function(take, (found, recorder.number(place % size)), None)
        else:
            function = torch.Tensor.__getitem__ if type(place) is int else take
            found = recorder.call_function(function, (found, place), None)
    if vary:
        with recording_paused():
            view = weight[places]
        recorder.stand_for(found, view)
        return found
    with recording_paused():
        # It stands for a view of the weight, which an in-place change must reach.
        found._source = (RowOfWeight(recorder, weight, places), weight.detach()[(0,) * len(places)])
    return found


def _unbind(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    values = args[0]
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    if type(values) is not LazyTensor or not values._type.ragged or dim not in (0, -values.ndim):
        return NotImplemented
    return tuple(recorder.rows_of(values))


def _flip(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    values, dims = args[0], args[1:] or (kwargs.get("dims"),)
    flat = tuple(dims[0]) if isinstance(dims[0], (tuple, list)) else dims
    if type(values) is not LazyTensor or not values._type.ragged or flat not in ((0,), (-values.ndim,)):
        return NotImplemented
    if recorder.cuts(values):
        return NotImplemented
    recorder.check_may_rearrange()
    return new_handle(recorder, values._value[::-1], values._type, values._depth)


def _same_as(function: Any) -> Handler:
    """For a function that is called by another name."""
    return lambda recorder, args, kwargs: recorder.call_function(function, args, kwargs)


def _by_memory(function: Any) -> Handler:
    """For functions whose result depends on strides. Those of a given tensor are known, and what is computed is contiguous; but the
    strides of a view follow from its base, which is not computed yet."""

    def handle(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        values = args[0] if args else kwargs.get("input")
        if type(values) is not LazyTensor:
            return NotImplemented
        if getattr(values, "_source", None) is not None:
            raise ArgumentError(
                f"`{function.__name__}` of a view, whose place in memory is not known before it is computed. Write it for the tensor "
                f"that this is a view of, or take a copy first (`x.clone()`)\n  {recorder.where()}"
            )
        if not recorder.is_given(values):
            return NotImplemented
        leaves: list[Any] = []
        nesting = flatten((tuple(args), kwargs), leaves)
        tensors = [
            recorder.demand((recorder.own(leaf),), TENSOR)[0] if type(leaf) is LazyTensor else leaf for leaf in leaves
        ]
        given_args, given_kwargs = unflatten(nesting, iter(tensors))
        with recording_paused():
            result = with_gradient_of_its_own(function(*given_args, **given_kwargs))
        return recorder.lift(result, ragged=False)

    return handle


_CASTS = {
    "double": torch.float64, "float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16,
    "long": torch.int64, "int": torch.int32, "short": torch.int16, "bool": torch.bool,
}  # fmt: skip


def _cast(dtype: torch.dtype) -> Handler:
    """A value that has the dtype already is returned as it is, not a copy of it."""

    def handle(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        same = len(args) == 1 and not kwargs and type(args[0]) is LazyTensor and args[0].dtype is dtype
        return args[0] if same else NotImplemented

    return handle


def _contiguous(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    """What is contiguous already is returned as it is."""
    if type(args[0]) is not LazyTensor or len(args) > 1 or kwargs:
        return NotImplemented
    return args[0] if shares_memory(torch.Tensor.contiguous, args[0], (), {}) else NotImplemented


def _by_layout(function: Any) -> Handler:
    """For questions about the strides of a value."""

    def handle(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        if type(args[0]) is not LazyTensor:
            return NotImplemented
        shape, strides, offset = layout_of(args[0])
        with recording_paused():
            return function(torch.empty(0, device="meta").as_strided(shape, strides, offset), *args[1:], **kwargs)

    return handle


def _itself(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    return args[0] if type(args[0]) is LazyTensor and args[0].dtype is not torch.bool else NotImplemented


def _method(name: str) -> Handler:
    """For methods that `LazyTensor` defines."""

    def handle(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        return getattr(args[0], name)(*args[1:], **kwargs) if type(args[0]) is LazyTensor else NotImplemented

    return handle


def _new_tensor(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor of numbers, of the value's dtype if no other is wished for: it is there at once."""
    leaves: list[Any] = []
    flatten((tuple(args[1:]), kwargs), leaves)
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves) or kwargs.get("requires_grad"):
        return NotImplemented
    with unwatched():
        made = torch.empty(0, dtype=args[0].dtype, device=args[0].device).new_tensor(*args[1:], **kwargs)
    return recorder.lift(made, ragged=False)


def _data_ptr(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    """A number that tells whether two values begin at one place in memory. Where that will be is not known yet."""
    if type(args[0]) is not LazyTensor:
        return NotImplemented
    root: Any = args[0]
    while isinstance(getattr(root, "_source", (None,))[0], (LazyTensor, Views)):
        source = root._source[0]
        root = source if type(source) is LazyTensor else source.base
    given = getattr(root, "_source", (None, root._recorder.tensor_given_as(root)))[1]
    start = id(root) if given is None else given.untyped_storage().data_ptr()
    return start + layout_of(args[0])[2] * args[0].itemsize


def _refused(name: str, instead: str) -> Handler:
    def handle(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        raise ArgumentError(f"`{name}` of a value that is not computed yet. {instead}\n  {recorder.where()}")

    return handle


def _on_values(function: Any) -> Handler:
    """For functions that call back into Python for each number, and change a value in place."""

    def handle(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
        if type(args[0]) is not LazyTensor:
            return NotImplemented
        if is_outside(recorder, args[0]):
            change_outside(recorder, function, args, kwargs, args[:1])
            return args[0]
        replace(recorder, args[0], recorder.call_with_values(functional_of(function), tuple(args), kwargs))
        return args[0]

    return handle


HANDLERS: dict[Any, Handler] = {
    torch.autograd.grad: grad,
    torch.autograd.backward: backward,
    torch.Tensor.backward: backward,
    torch.Tensor.register_hook: register_hook,
    torch.Tensor.retain_grad: retain_grad,
    torch.Tensor.register_post_accumulate_grad_hook: register_post_accumulate_grad_hook,
    torch.Tensor.requires_grad_: requires_grad_,
    torch.Tensor.data_ptr: _data_ptr,
    torch.Tensor.new_tensor: _new_tensor,
    torch.Tensor.share_memory_: _refused("share_memory_", "Its memory is that of all examples. Return the value, and share what fl.batch returns"),
    **{function: _on_values(function) for function in (torch.Tensor.apply_, torch.Tensor.map_, torch.Tensor.map2_)},
    **dict.fromkeys(forms("stack"), _stack),
    **{function: _by_memory(function) for function in BY_MEMORY},
    operator.and_: _same_as(torch.bitwise_and),  # their names look like those of methods that work in place
    operator.or_: _same_as(torch.bitwise_or),
    torch.Tensor.__getitem__: _getitem,
    **{
        getattr(torch.Tensor, name): _method(name)
        for name in (
            "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__len__", "__iter__",
            "__contains__", "size", "dim", "numel", "nelement", "is_floating_point", "is_complex", "__repr__",
            "__complex__", "__format__", "__array__",
        )
    },
    torch.Tensor.__setitem__: lambda recorder, args, kwargs: recorder.set_item(*args),
    **dict.fromkeys(forms("contiguous"), _contiguous),
    **{getattr(torch.Tensor, name): _by_layout(getattr(torch.Tensor, name)) for name in ("stride", "is_contiguous", "storage_offset")},
    **dict.fromkeys([*forms("positive"), operator.pos, torch.Tensor.__pos__], _itself),
    **DRAWING,
    **{getattr(torch.Tensor, name): _cast(dtype) for name, dtype in _CASTS.items()},
}  # fmt: skip

ROW_HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(forms("cat concat concatenate"), _cat),
    **dict.fromkeys(forms("unbind"), _unbind),
    **dict.fromkeys(forms("flip"), _flip),
}
"""Asked only where there are ragged values."""
