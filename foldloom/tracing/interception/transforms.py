"""What runs at once inside a program: transforms of `torch.func`, scripted and traced code. None of it can be recorded.

Transforms unpack tensors in C++, and code of TorchScript is not Python. Both are given the values of their arguments. Whatever they
call back into Python runs at once, too; a value that it closes over is demanded when it is met.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.autograd.variable import VariableMeta
from torch.jit import ScriptFunction

from foldloom.pytrees import flatten
from foldloom.torch_private import EVAL_FRAME, TRANSFORMS, ScriptMethod
from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import LazyTensor, computed

_TRANSFORMS: dict[str, tuple[Any, ...]] = {
    **TRANSFORMS,
    **dict.fromkeys(("jacobian", "hessian", "vjp", "jvp", "hvp", "vhp"), (torch.autograd.functional,)),
}
"""What the transforms call, by that name in these modules."""


def _at_once(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        recorder = scope.recorder
        if recorder is not None:
            result = recorder.call_with_values(function, args, kwargs)
            # Such as the second of what `vjp` returns.
            return (
                tuple([_at_once(r) if type(r) is FunctionType else r for r in result])
                if type(result) is tuple
                else result
            )
        leaves: list[Any] = []
        flatten((args, kwargs), leaves)
        return computed(function, args, kwargs) if LazyTensor in map(type, leaves) else function(*args, **kwargs)

    return run


def _variable(kind: type, *args: Any, **kwargs: Any) -> Any:
    """``Variable(x)``: as in torch, a tensor without history."""
    if not args or type(args[0]) is not LazyTensor:
        return type.__call__(kind, *args, **kwargs)
    requires_grad = args[1] if len(args) > 1 else kwargs.get("requires_grad", False)
    detached: Any = args[0].detach()  # type: ignore[attr-defined]
    return detached.requires_grad_() if requires_grad else detached


def watch_transforms() -> None:
    """From the first recording on, calls of these pass by here. Where nothing is recorded it makes no difference."""
    if VariableMeta.__dict__.get("__call__") is _variable:
        return
    VariableMeta.__call__ = _variable  # type: ignore[method-assign, assignment]
    for name, modules in _TRANSFORMS.items():
        watched = _at_once(getattr(modules[0], name))
        for module in modules:
            setattr(module, name, watched)
    for kind in (ScriptFunction, ScriptMethod):
        setattr(kind, "__call__", _at_once(kind.__call__))  # noqa: B010


def original_of(module: torch.nn.Module) -> torch.nn.Module:
    """A module as it was before `torch.compile`: what it calls is recorded, and compiled code cannot be."""
    eval_frame = sys.modules.get(EVAL_FRAME)
    while eval_frame is not None and isinstance(module, eval_frame.OptimizedModule):
        module = module._orig_mod
    return module
