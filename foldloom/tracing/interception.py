"""What torch is told while an example is being recorded.

Calls on values find their way by themselves. Two kinds of call would not be noticed: functions of weights and given tensors alone
(looking up a word's vector), which a torch-function mode sees; and torch's own modules, which count as one operation each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from foldloom.tracing import fast_path
from foldloom.tracing.lazy_tensor import LazyTensor
from foldloom.tracing.rules import has_rule
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.scope import recording_paused, scope

if TYPE_CHECKING:
    from foldloom.tracing.recorder import Recorder

_NUMBERS = (int, float, bool)
_PLAIN_NUMBERS = frozenset(_NUMBERS)
_CONSTANTS = frozenset((torch.zeros, torch.ones, torch.full, torch.empty, torch.eye))
_RANDOM = frozenset((torch.rand, torch.randn, torch.randint, torch.normal, torch.randperm))


class RecordingMode(TorchFunctionMode):
    """Records functions that take weights, and makes constants that may be changed in place."""

    def __init__(self, recorder: Recorder) -> None:
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
            return recorder.lift(func(*args, **(kwargs or {})), ragged=False)
        if has_rule(func) and _takes_weights(recorder, args, kwargs):
            return recorder.call_function(func, args, kwargs)
        return func(*args, **(kwargs or {}))


def _takes_weights(recorder: Recorder, args: Any, kwargs: dict[str, Any] | None) -> bool:
    for arg in args if not kwargs else (*args, *kwargs.values()):
        if isinstance(arg, nn.Parameter) or recorder.is_derived(arg):
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


def _read(recorder: Recorder, func: Callable[..., Any], data: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A tensor of values: one of them as it is or copied, several in a list as numbers, which they are waited for."""
    if type(data) is not LazyTensor:
        numbers = _as_numbers(data)
        with recording_paused():
            return func(numbers, *args, **kwargs)
    wishes = {name: wish for name, wish in kwargs.items() if wish is not None and name in ("dtype", "device")}
    copied: Any = data.detach().clone() if func is torch.tensor or kwargs.get("copy") else data  # type: ignore[attr-defined]
    return copied.to(*args, **wishes) if args or wishes else copied


def _as_numbers(data: Any) -> Any:
    if type(data) is LazyTensor:
        return data.tolist()
    return [_as_numbers(item) for item in data] if isinstance(data, (list, tuple)) else data


_WITH_MASKS = (
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder,
    nn.TransformerDecoder, nn.Transformer,
)  # fmt: skip
"""Modules that ask of a mask whether it is a tensor."""


def _with_masks_computed(recorder: Recorder, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name, masks that are values as tensors."""
    by_name = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return {
        name: recorder.value_of(recorder.own(value)) if "mask" in name and type(value) is LazyTensor else value
        for name, value in by_name.items()
    }


def _call_or_record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    recorder = scope.recorder
    if recorder is not None:
        if type(module) in MODULES or recorder.names_cells:
            result = recorder.call_module(module, args, kwargs)
            if result is not NotImplemented:
                return result
        if module._backward_hooks or module._backward_pre_hooks:
            return recorder.call_with_values(module._call_impl, args, kwargs)
        if isinstance(module, _WITH_MASKS):
            args, kwargs = (), _with_masks_computed(recorder, module, args, kwargs)
    if module._compiled_call_impl is not None:
        return module._compiled_call_impl(*args, **kwargs)
    # Straight to what nn.Module.__call__ calls: models recurse, and every frame counts towards the recursion limit.
    return module._call_impl(*args, **kwargs)


def watch_modules() -> None:
    """From the first recording on, calls of modules pass by here. Where nothing is recorded it makes no difference.

    It is never undone, because changing a method of all modules makes Python forget what it knows of every one of them, which
    takes longer than recording a small tree.
    """
    if nn.Module.__call__ is not _call_or_record:
        nn.Module.__call__ = _call_or_record  # type: ignore[method-assign]
