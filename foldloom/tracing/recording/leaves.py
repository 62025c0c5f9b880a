"""Tensors that a program makes of values: leaves, by `requires_grad_`, parameters and buffers; and arrays that share their memory.

A leaf is a tensor in which gradients arrive, so it must be there: its numbers are demanded. From then on it is as if it had been given to the
example, and whoever asks for its gradient asks the tensor.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from foldloom.execution.kernels import type_of
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.mutation.views import Borrowed, leave_base, root_of
from foldloom.tracing.scope import ActiveRecorder, recording_paused
from foldloom.tracing.values.lazy_tensor import DETACHED, Given, LazyTensor
from foldloom.tracing.weights import Derived


class RecorderOfLeaves(ActiveRecorder, Protocol):
    """A recorder with the part that knows given tensors."""

    @property
    def inputs(self) -> Inputs: ...


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
    return handle


def own_tensor(recorder: RecorderOfLeaves, handle: LazyTensor) -> torch.Tensor:
    """The numbers of a value, in memory that no other example has. Whatever shares memory with the value can no longer be changed in place:
    the change would have to reach this tensor."""
    given = recorder.tensor_given_as(handle)
    if given is not None:
        return given
    if type(handle._recorder) is Derived:
        return handle._value  # type: ignore[no-any-return]
    (value,) = recorder.demand((recorder.own(handle),), DETACHED)
    root = root_of(handle)
    if root._recorder is recorder and not hasattr(root, "_source"):
        root._source = (Borrowed(recorder), None)
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
    is_view = hasattr(handle, "_source") or type(handle._recorder) is Derived
    given = recorder.tensor_given_as(handle)
    tensor = own_tensor(recorder, handle)
    if given is None and not is_view:
        stand_for(recorder, handle, tensor)
    with recording_paused():
        if given is None and is_view:
            array = tensor.detach().clone().numpy()
            recorder.inputs.note_copy(array)
            return array
        recorder.inputs.note_array(tensor)
        return tensor.detach().numpy()
