"""Hooks on the gradients of values: `register_hook`, `retain_grad`."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from foldloom.errors import ArgumentError
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.scope import ActiveRecorder
from foldloom.tracing.values.lazy_tensor import LazyTensor
from foldloom.tracing.weights import Derived


class RecorderOfHooks(ActiveRecorder, Protocol):
    """A recorder with the parts that hooks need."""

    @property
    def graph(self) -> GraphBuilder: ...
    @property
    def flushes(self) -> Flushes: ...


def register_hook(recorder: RecorderOfHooks, args: Any, kwargs: dict[str, Any]) -> Any:
    handle = args[0]
    hook = args[1] if len(args) > 1 else kwargs["hook"]
    if type(handle) is not LazyTensor:
        return NotImplemented
    given = recorder.tensor_given_as(handle)
    if given is not None:
        return given.register_hook(hook)
    if not handle.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    _stand_alone(recorder, handle)
    return recorder.flushes.gradients.add_hook(values_of(handle), handle._type.ragged, hook)


def retain_grad(recorder: RecorderOfHooks, args: Any, kwargs: dict[str, Any]) -> Any:
    handle = args[0]
    if type(handle) is not LazyTensor:
        return NotImplemented
    given = recorder.tensor_given_as(handle)
    if given is not None:
        return given.retain_grad()
    if not handle.requires_grad:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    _stand_alone(recorder, handle)
    recorder.flushes.gradients.retain_grad(values_of(handle), handle._type.ragged)
    return None


def register_post_accumulate_grad_hook(recorder: RecorderOfHooks, args: Any, kwargs: dict[str, Any]) -> Any:
    if type(args[0]) is not LazyTensor:
        return NotImplemented
    given = recorder.tensor_given_as(args[0])
    if given is None:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    return given.register_post_accumulate_grad_hook(*args[1:], **kwargs)


def values_of(handle: LazyTensor) -> tuple[int, ...]:
    return tuple(handle._value) if handle._type.ragged else (handle._value,)


def _stand_alone(recorder: RecorderOfHooks, handle: LazyTensor) -> None:
    """See to it that the values of a handle stand for its tensor alone. Rows that are views or make up a stack have the numbers of what they
    were taken from, and a derived weight is the same for all examples: there, a copy gets the hook, and is used from then on."""
    is_derived = type(handle._recorder) is Derived
    is_row = type(getattr(handle, "_source", (None,))[0]) is LazyTensor
    is_stack = handle._type.ragged and type(handle._value) is not range
    if not (is_derived or is_row or is_stack):
        return
    if not is_derived and recorder.graph.is_read(values_of(handle)):
        raise ArgumentError(
            "a hook is registered on rows of a value, or on a stack of values, that has been used already; what was computed before would "
            f"not be seen by the hook. Register it before they are used\n  {recorder.where()}"
        )
    copied: LazyTensor = recorder.call_function(torch.clone, (recorder.own(handle),), None)
    handle._recorder = copied._recorder
    handle._value, handle._type, handle._depth = copied._value, copied._type, copied._depth
