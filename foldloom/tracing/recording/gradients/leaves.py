"""Tensors that a program makes of values: leaves, by `requires_grad_`, parameters and buffers; arrays that share their memory; and the
values themselves, when a batch is over.

A leaf is a tensor in which gradients arrive, so it must be there: its numbers are demanded. From then on it is as if it had been given to the
example, and whoever asks for its gradient asks the tensor.
"""

from __future__ import annotations

import gc
from typing import Any, Protocol

import torch

from foldloom.errors import FoldloomError
from foldloom.execution.kernels import type_of
from foldloom.execution.observer import observing
from foldloom.tracing import fast_path
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.mutation.in_place import cut_views
from foldloom.tracing.mutation.views import ArrayCopy, Borrowed, as_inference, is_of_inference, leave_base, root_of
from foldloom.tracing.scope import ActiveRecorder, recording_paused
from foldloom.tracing.values.lazy_tensor import DETACHED, TENSOR, Given, LazyTensor, become_tensor
from foldloom.tracing.weights import Derived


class RecorderOfLeaves(ActiveRecorder, Protocol):
    """A recorder with the part that knows given tensors."""

    @property
    def inputs(self) -> Inputs: ...
    @property
    def flushes(self) -> Flushes: ...


def requires_grad_(recorder: RecorderOfLeaves, args: Any, kwargs: dict[str, Any]) -> Any:
    handle = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if type(handle) is not LazyTensor:
        return NotImplemented
    given = recorder.tensor_given_as(handle)
    if given is not None:
        before = given.requires_grad
        with recording_paused():
            given.requires_grad_(wanted)
        if given.requires_grad != before:
            stand_for(recorder, handle, given)
        return handle
    if handle.requires_grad == wanted:
        return handle
    if not wanted:
        raise RuntimeError(
            "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph that doesn't "
            "require differentiation use var_no_grad = var.detach()."
        )
    if not handle._type.differentiable:
        raise RuntimeError("only Tensors of floating point and complex dtype can require gradients")
    tensor = own_tensor(recorder, handle)
    with recording_paused():
        leaf = tensor.detach().requires_grad_()
    leave_base(handle)
    stand_for(recorder, handle, leaf)
    cut_views(recorder, handle)
    return handle


def own_tensor(recorder: RecorderOfLeaves, handle: LazyTensor) -> torch.Tensor:
    """The numbers of a value, in memory that no other example has. Whatever shares memory with the value can no longer be changed in place:
    the change would have to reach this tensor."""
    given = recorder.tensor_given_as(handle)
    if given is not None:
        return given
    if type(handle._recorder) is Derived:
        return handle._value  # type: ignore[no-any-return]
    numbers = _numbers_of(recorder, handle)
    root = root_of(handle)
    if root._recorder is recorder and (not hasattr(root, "_source") or type(root._source[0]) is Borrowed):
        root._source = (Borrowed(recorder), None)
    return numbers


def _numbers_of(recorder: RecorderOfLeaves, handle: LazyTensor) -> torch.Tensor:
    (value,) = recorder.demand((recorder.own(handle),), DETACHED)
    with recording_paused():
        return value.clone()  # type: ignore[no-any-return]


def stand_for(recorder: RecorderOfLeaves, handle: LazyTensor, tensor: torch.Tensor) -> None:
    """From now on the handle stands for this tensor, as if it had been given."""
    if hasattr(handle, "_source"):
        del handle._source
    recorder.inputs.has_given = True
    handle._recorder, handle._value, handle._type, handle._depth = Given(recorder), tensor, type_of(tensor), 0


def array_of(recorder: RecorderOfLeaves, handle: LazyTensor) -> Any:
    """A value as an array. A value that is no view becomes a tensor of its example's own, which shares its memory with the array; the array
    of a view is a copy, and whoever writes to it hears of it."""
    given = recorder.tensor_given_as(handle)
    if given is None and (hasattr(handle, "_source") or type(handle._recorder) is Derived):
        return _array_of_view(recorder, handle)
    tensor = own_tensor(recorder, handle)
    if given is None:
        stand_for(recorder, handle, tensor)
    with recording_paused():
        recorder.inputs.note_array(tensor)
        return tensor.detach().numpy()


def _array_of_view(recorder: RecorderOfLeaves, handle: LazyTensor) -> Any:
    numbers = _numbers_of(recorder, handle)
    with recording_paused():
        copy = ArrayCopy(numbers.detach())
    recorder.inputs.note_copy(copy)
    root = root_of(handle)
    if root._recorder is recorder:
        source = getattr(root, "_source", (None, None))[0]
        if source is None:
            root._source = (Borrowed(recorder, [copy]), None)
        elif type(source) is Borrowed and source.arrays is not None:
            source.arrays.append(copy)
    return copy.hand_out()


# ---- When a batch is over.


def let_go(recorder: RecorderOfLeaves) -> None:
    """Values that somebody still holds, on an object or in a closure, become the tensors that they stand for: the same objects, of torch's
    own type. Everything that was recorded has been computed, and nothing is recorded any more."""
    if not fast_path.handles_of(recorder):
        return
    if gc.isenabled():
        # Which Python would do soon: what was made in the batch is young, and much of it may refer to itself.
        gc.collect(0)
    held = [(handle, recorder.tensor_given_as(handle)) for handle in fast_path.handles_of(recorder)]
    own = [handle for handle, given in held if given is None and handle._recorder is recorder]
    computed = [handle for handle in own if not recorder.flushes.has_error(handle)]
    computed.sort(key=_first_value)  # they were found as they lie in memory
    observer, observing.observer = observing.observer, None  # nobody has asked for anything
    try:
        tensors = recorder.demand(computed, TENSOR) if computed else []
    except FoldloomError:  # one of them could not be computed, and says so when it is used
        return
    finally:
        observing.observer = observer
    is_inference = [is_of_inference(recorder, handle) for handle in computed]
    with recording_paused():
        for handle, given in held:
            if given is not None:
                become_tensor(handle, _same(given))
            elif type(handle._recorder) is Derived:
                become_tensor(handle, handle._value.clone())
        for handle, tensor, of_inference in zip(computed, tensors, is_inference, strict=True):
            become_tensor(handle, as_inference(tensor) if of_inference else _same(tensor))


def _first_value(handle: LazyTensor) -> int:
    first: int = (*handle._value, -1)[0] if handle._type.ragged else handle._value
    return first


def _same(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor that is the same: the one that it is of may have been handed out."""
    return tensor.view_as(tensor) if tensor.requires_grad else tensor.detach()
