"""Custom autograd functions, and hooks of modules, in computations that backward does not reach.

A batch is one graph of autograd's. What the loss does not depend on gets None there, where one by one it is not called at all. Torch
passes None on through its own operations; for a `torch.autograd.Function` it makes zeros of it, calls the backward, and zeros arrive in weights.
So within a batch a function is replaced by one that passes None on, and hooks on modules are not called where nothing arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function
from torch.nn.modules import module as modules
from torch.utils.hooks import BackwardHook

from foldloom.tracing.scope import scope


def passing_none(kind: type[Function]) -> type[Function]:
    """The same function, whose backward is not called if no gradient arrives. It is kept with the function, and goes with it."""
    known: type[Function] | None = vars(kind).get(_NAME)
    if known is None:
        is_set_up_apart = kind.setup_context is not Function.setup_context
        name = "vjp" if kind.vjp is not Function.vjp else "backward"
        methods = {
            "setup_context" if is_set_up_apart else "forward": _setting_up(kind) if is_set_up_apart else _forward(kind),
            name: _backward(getattr(kind, name)),
        }
        known = type(kind.__name__, (kind,), {name: staticmethod(method) for name, method in methods.items()})
        known.__qualname__, known.__module__ = kind.__qualname__, kind.__module__
        setattr(kind, _NAME, known)
    return known


_NAME = "passing_none_by_foldloom"


class _Notes:
    """What one call of a function leaves for its backward."""

    def __init__(self, ctx: Any) -> None:
        self.makes_zeros = True
        ctx.set_materialize_grads = self._set  # what the function calls to have None itself

    def _set(self, value: bool) -> None:
        self.makes_zeros = value

    def done(self, ctx: Any, result: Any) -> None:
        del ctx.set_materialize_grads
        ctx.set_materialize_grads(False)
        results = result if isinstance(result, tuple) else (result,)
        self.like = [
            (item.shape, item.dtype, item.device) if isinstance(item, torch.Tensor) else None for item in results
        ]
        ctx.notes_of_foldloom = self

    def filled(self, grads: Any) -> list[Any]:
        if not self.makes_zeros:
            return list(grads)
        return [
            torch.zeros(like[0], dtype=like[1], device=like[2]) if grad is None and like is not None else grad
            for grad, like in zip(grads, self.like, strict=True)
        ]


def _forward(kind: Any) -> Any:
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        notes = _Notes(ctx)
        result = kind.forward(ctx, *args, **kwargs)
        notes.done(ctx, result)
        return result

    return forward


def _setting_up(kind: Any) -> Any:
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        notes = _Notes(ctx)
        kind.setup_context(ctx, inputs, output)
        notes.done(ctx, output)

    return setup_context


def _backward(own: Any) -> Any:
    def backward(ctx: Any, *grads: Any) -> Any:
        if all(grad is None for grad in grads):
            return (None,) * len(ctx.needs_input_grad)
        return own(ctx, *ctx.notes_of_foldloom.filled(grads))

    return backward


class _Reached:
    """Stands for a node of autograd's graph: a hook that is registered on it is called only if a gradient arrives."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def register_hook(self, hook: Callable[[Any, Any], Any]) -> Any:
        def where_reached(into: Any, out: Any) -> Any:
            return None if all(grad is None for grad in out) else hook(into, out)

        return self._node.register_hook(where_reached)


class _BackwardHook(BackwardHook):
    """The hooks of one call of a module, on the functions around it."""

    def _apply_on_tensors(self, fn: Callable[[Any], None], args: Any) -> Any:
        if not scope.computes:
            return super()._apply_on_tensors(fn, args)
        return super()._apply_on_tensors(lambda node: fn(_Reached(node)), args)


def watch_hooks() -> None:
    """From the first recording on, calls of modules with hooks on their gradients pass by here."""
    modules.BackwardHook = _BackwardHook  # type: ignore[attr-defined]
