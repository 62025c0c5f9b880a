"""Parameters and buffers that a program makes of values: they must be there, so the values are demanded.

A parameter that is made inside belongs to its example. It is a weight like any other, with which other examples share no step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parameter import Buffer

from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import LazyTensor

_new_of: dict[type, Callable[..., Any]] = {}


def _making(kind: type) -> Callable[..., Any]:
    def new(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if type(data) is LazyTensor:
            data = data._tensor() if scope.recorder is None else scope.recorder.own_tensor(data)
        return _new_of[kind](cls, data, *args, **kwargs)

    return new


def watch_parameters() -> None:
    """From the first recording on, what is made a parameter or a buffer passes by here."""
    for kind in (nn.Parameter, Buffer):
        if kind not in _new_of:
            _new_of[kind] = kind.__new__
            kind.__new__ = staticmethod(_making(kind))  # type: ignore[method-assign]
