"""A torch-function mode that records functions of weights and given tensors alone, such as looking up a word's vector.

Functions of handles need no mode: torch calls `LazyTensor.__torch_function__`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from foldloom.tracing import fast_path
from foldloom.tracing.mutation.flags import switch_flag, switches_flag
from foldloom.tracing.mutation.functional import changes_in_place
from foldloom.tracing.mutation.outside import change_outside
from foldloom.tracing.rules import has_rule
from foldloom.tracing.scope import ActiveRecorder, note_for_undo, recording_paused, scope
from foldloom.tracing.values.lazy_tensor import LazyTensor

_NUMBERS = (int, float, bool)
_PLAIN_NUMBERS = frozenset(_NUMBERS)
_CONSTANTS = frozenset((torch.zeros, torch.ones, torch.full, torch.empty, torch.eye))
_RANDOM = frozenset((torch.rand, torch.randn, torch.randint, torch.normal, torch.randperm))


class RecordingMode(TorchFunctionMode):
    """Records functions that take weights, and makes constants that may be changed in place."""

    def __init__(self, recorder: ActiveRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    @fast_path.reported
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if LazyTensor in types:
            return self._recorder.call_function(func, args, kwargs)
        recorder = scope.recorder
        if recorder is None:
            return func(*args, **(kwargs or {}))
        if func is torch.tensor and not kwargs and type(args[0]) in _NUMBERS:
            return recorder.number(args[0])
        if func in _READERS and args and _holds_values(args[0]):
            return _read(recorder, func, args[0], args[1:], kwargs or {})
        if func in _CONSTANTS and not (kwargs and kwargs.get("requires_grad")):
            return recorder.constant(func, args, kwargs or {})
        if func in _RANDOM and not (kwargs and kwargs.get("requires_grad")):
            drawn = func(*args, **(kwargs or {}))
            if drawn.shape or recorder.guards.runs_later:
                return recorder.lift(drawn, ragged=False)
            return recorder.give(drawn)  # one number is mostly for Python, which has it at once
        if has_rule(func) and _takes_weights(recorder, args, kwargs):
            return recorder.call_function(func, args, kwargs)
        if switches_flag(func):
            return switch_flag(recorder, func, args, kwargs or {})
        changed = _changed(func, args, kwargs or {})
        if not changed:
            return func(*args, **(kwargs or {}))
        if recorder.guards.runs_later:
            recorder.guards.note_change(changed)
            note_for_undo(changed)
            return func(*args, **(kwargs or {}))
        return change_outside(recorder, func, args, kwargs or {}, changed)


def _changed(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call changes in place."""
    found: Any = ()
    if changes_in_place(func):
        found = args[0] if args else kwargs.get("input")
    elif kwargs.get("out") is not None:
        found = kwargs["out"]
    return [
        item for item in (found if isinstance(found, (list, tuple)) else (found,)) if isinstance(item, torch.Tensor)
    ]


def _takes_weights(recorder: ActiveRecorder, args: Any, kwargs: dict[str, Any] | None) -> bool:
    for arg in args if not kwargs else (*args, *kwargs.values()):
        kind = type(arg)
        if kind in _PLAIN_NUMBERS:
            continue
        # What is a plain tensor is no parameter, and asking whether it is takes longer than all else here.
        if recorder.is_derived(arg) or (kind is not torch.Tensor and isinstance(arg, nn.Parameter)):
            return True
        if isinstance(arg, (list, tuple)) and _takes_weights(recorder, arg, None):
            return True
    return False


_READERS = frozenset((torch.tensor, torch.as_tensor, torch.asarray))


def _holds_values(data: Any) -> bool:
    if not isinstance(data, (list, tuple)):
        return type(data) is LazyTensor
    kinds = set(map(type, data))
    return LazyTensor in kinds or (not kinds <= _PLAIN_NUMBERS and any(map(_holds_values, data)))


def _read(recorder: ActiveRecorder, func: Callable[..., Any], data: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.tensor` of values: one value as it is or copied; a list of values as numbers, which are demanded."""
    if type(data) is not LazyTensor:
        numbers = _as_numbers(data)
        with recording_paused():
            return func(numbers, *args, **kwargs)
    if func is torch.tensor:
        warnings.warn(
            "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
            "sourceTensor.detach().clone().requires_grad_(True), rather than torch.tensor(sourceTensor).",
            UserWarning,
            stacklevel=3,
        )
    wishes = {name: wish for name, wish in kwargs.items() if wish is not None and name in ("dtype", "device")}
    copied: Any = data.detach().clone() if func is torch.tensor or kwargs.get("copy") else data  # type: ignore[attr-defined]
    return copied.to(*args, **wishes) if args or wishes else copied


def _as_numbers(data: Any) -> Any:
    if type(data) is LazyTensor:
        return data.tolist()
    return [_as_numbers(item) for item in data] if isinstance(data, (list, tuple)) else data
