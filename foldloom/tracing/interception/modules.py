"""Calls of modules: torch's own, and those that the user named as cells, are one operation each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn
from torch.jit import ScriptModule

from foldloom.torch_private import SpectralNorm, global_module_hooks
from foldloom.tracing.fibers.module_hooks import watch_attributes
from foldloom.tracing.interception.transforms import original_of
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.scope import ActiveRecorder, recording_paused, scope
from foldloom.tracing.values.lazy_tensor import TENSOR, LazyTensor

_WITH_MASKS = (
    nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder,
    nn.TransformerDecoder, nn.Transformer,
)  # fmt: skip
"""Modules that check whether a mask is a tensor."""


_CHANGING_BUFFERS = (SpectralNorm,)
"""Modules that compute a weight, and change what the next call computes it from."""


@functools.cache
def _names_of_arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _with_masks_computed(
    recorder: ActiveRecorder, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with masks that are values as tensors."""

    def computed(name: str, value: Any) -> Any:
        is_mask = "mask" in name and type(value) is LazyTensor
        return recorder.demand((recorder.own(value),), TENSOR)[0] if is_mask else value

    names = _names_of_arguments(getattr(module.forward, "__func__", module.forward))[
        isinstance(module.forward, MethodType) :
    ]
    by_position = tuple([computed(name, arg) for name, arg in zip(names, args, strict=False)])
    return (*by_position, *args[len(names) :]), {name: computed(name, value) for name, value in kwargs.items()}


def call_or_record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """`nn.Module.__call__`, where calls may be recorded. `_automatic.c` stands in front of it."""
    recorder = scope.recorder
    if recorder is not None:
        if (type(module) in MODULES or recorder.names_cells) and not any(global_module_hooks):
            result = recorder.call_module(module, args, kwargs)
            if result is not NotImplemented:
                return result
        if isinstance(module, _CHANGING_BUFFERS) and not any(type(arg) is LazyTensor for arg in args):
            with recording_paused():  # a weight of this call's own; the next call finds other buffers
                return module._call_impl(*args, **kwargs)
        if original_of(module) is not module:
            return original_of(module)(*args, **kwargs)
        if isinstance(module, ScriptModule) or module._backward_hooks or module._backward_pre_hooks:
            return recorder.call_with_values(module._call_impl, args, kwargs)
        if isinstance(module, _WITH_MASKS):
            args, kwargs = _with_masks_computed(recorder, module, args, kwargs)
    if module._compiled_call_impl is not None and recorder is None:
        return module._compiled_call_impl(*args, **kwargs)
    # Straight to what nn.Module.__call__ calls: models recurse, and every frame counts towards the recursion limit.
    return module._call_impl(*args, **kwargs)


def watch_modules() -> None:
    """Replace `nn.Module.__call__`, from the first recording on. Where nothing is recorded it makes no difference.

    It is never undone, because changing a method of `nn.Module` clears Python's method caches of all its subclasses, which takes longer
    than recording a small tree.
    """
    if nn.Module.__call__ is not call_or_record:
        nn.Module.__call__ = call_or_record  # type: ignore[method-assign]
        watch_attributes()
