"""Functions with a backward of their own: a call of a `torch.autograd.Function` is one operation.

Its forward must not be recorded operation by operation, because then the gradients would be those of the operations. Members of a step
run through the `vmap` of the function, if it has one, and one by one otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from foldloom.errors import ArgumentError
from foldloom.pytrees import flatten
from foldloom.torch_private import are_transforms_active
from foldloom.tracing.interception.unreached import passing_none
from foldloom.tracing.scope import recording_paused, scope
from foldloom.tracing.values.lazy_tensor import LazyTensor, computed

_OURS = __name__.partition(".")[0] + "."
_apply: Callable[..., Any] = Function.__dict__["apply"].__func__


def _apply_or_record(kind: type[Function], *args: Any, **kwargs: Any) -> Any:
    recorder = scope.recorder
    if recorder is None:
        if LazyTensor in map(type, args):
            return computed(functools.partial(_apply, kind), args, kwargs)
        return _apply_in_batch(kind, *args, **kwargs) if scope.computes else _apply(kind, *args, **kwargs)
    leaves: list[Any] = []
    flatten((args, kwargs), leaves)
    if kind is CheckpointFunction:
        # It saves memory by computing twice; what it computes is its first argument's business.
        run, _, *given = args
        return run(*given)
    if LazyTensor in map(type, leaves):
        return recorder.call_function(function_of(kind), args, kwargs)
    with recording_paused():
        return _apply(kind, *args, **kwargs)


def _apply_in_batch(kind: type[Function], *args: Any, **kwargs: Any) -> Any:
    """Not where a transform takes the function apart. Functions of ours see to it themselves."""
    is_ours = kind.__module__.startswith(_OURS)
    return _apply(kind if is_ours or are_transforms_active() else passing_none(kind), *args, **kwargs)


@functools.cache
def function_of(kind: type[Function]) -> Callable[..., Any]:
    """What ``kind.apply`` computes, as a function that can be recorded."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor) and not arg.is_inference()]
        versions = [tensor._version for tensor in tensors]
        result = _apply_in_batch(kind, *args, **kwargs)
        if [tensor._version for tensor in tensors] != versions:
            raise ArgumentError(
                f"{kind.__name__} changes its argument in place (`ctx.mark_dirty`), which in a batch others may read. Let its forward "
                "return a new tensor"
            )
        return result

    apply.__module__ = kind.__module__
    apply.__name__ = f"{kind.__name__}.apply"
    apply.__qualname__ = f"{kind.__qualname__}.apply"
    return apply


def watch_functions() -> None:
    """From the first recording on, calls of autograd's functions pass by here."""
    if Function.__dict__["apply"].__func__ is not _apply_or_record:
        Function.apply = classmethod(_apply_or_record)  # type: ignore[method-assign, assignment]
