"""Functionalization: for each function that works in place, one that returns the new value instead."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

from foldloom.tracing.functions.calls import Call, function_named
from foldloom.tracing.rules.base import DENSE, RAGGED, Batched, forms, register
from foldloom.tracing.rules.indexing import set_each
from foldloom.tracing.rules.ragged import rowwise
from foldloom.tracing.rules.raising import BY_VALUE

CHANGE_SHAPE = frozenset(forms("t transpose swapaxes swapdims squeeze unsqueeze detach"))
"""Functions whose in-place forms (`x.t_()`) change the shape and strides of a tensor, and none of its numbers."""

IN_PLACE_OPERATORS = {
    torch.Tensor.__iadd__: operator.add, torch.Tensor.__isub__: operator.sub, torch.Tensor.__imul__: operator.mul,
    torch.Tensor.__itruediv__: operator.truediv, torch.Tensor.__ifloordiv__: operator.floordiv,
    torch.Tensor.__imod__: operator.mod, torch.Tensor.__iand__: torch.bitwise_and, torch.Tensor.__ior__: torch.bitwise_or,
    torch.Tensor.__ixor__: operator.xor, torch.Tensor.__ilshift__: operator.lshift,
    torch.Tensor.__irshift__: operator.rshift, torch.Tensor.__ipow__: operator.pow,
}  # fmt: skip

_OTHER_MEANING = frozenset(
    ("bernoulli", "fill", "random", "normal", "uniform", "exponential", "geometric", "resize", "resize_as")
)
"""Functions that do something else than the in-place methods of the same names."""

_OTHER_CHANGES = frozenset((torch.Tensor.__setitem__, torch.Tensor.data.__set__))  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)  # asked of every function that torch reports
def changes_in_place(function: Any) -> bool:
    """Whether a function changes its first argument."""
    name: str = getattr(function, "__name__", "")
    is_method = name.endswith("_") and not name.endswith("__")
    return is_method or function in IN_PLACE_OPERATORS or function in _OTHER_CHANGES


_STATISTICS: dict[Any, tuple[int, bool]] = {
    functional.batch_norm: (1, False),
    functional.instance_norm: (1, True),
    torch.batch_norm: (3, False),
    torch.instance_norm: (3, True),
}
"""Where the running statistics are, and whether the flag that says so, the sixth argument, is set by default."""


def changed_beside_the_first(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that a function changes though it does not say so: running statistics, a table whose rows have a largest norm."""

    def argument(place: int, name: str, default: Any = None) -> Any:
        return args[place] if len(args) > place else kwargs.get(name, default)

    if function in (functional.embedding, functional.embedding_bag):
        return [] if argument(3, "max_norm") is None else [argument(1, "weight")]
    if function not in _STATISTICS:
        return []
    first, default = _STATISTICS[function]
    if not argument(5, "training" if "training" in kwargs else "use_input_stats", default):
        return []
    found = [argument(first, "running_mean"), argument(first + 1, "running_var")]
    return [tensor for tensor in found if tensor is not None]


_functional: dict[Any, Callable[..., Any]] = dict(IN_PLACE_OPERATORS)


def functional_of(function: Any) -> Callable[..., Any]:
    """The function that returns what an in-place function would change its argument to."""
    known = _functional.get(function)
    if known is None:
        name = function.__name__[:-1]
        for owner in (torch.Tensor, torch, torch.nn.functional):
            twin = getattr(owner, name, None)
            if callable(twin) and name not in _OTHER_MEANING:
                known = twin
                break
        else:
            known = _on_a_copy(function)
        _functional[function] = known
    return known


def _on_a_copy(function: Any) -> Callable[..., Any]:
    def changed(target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return function(target.clone(), *args, **kwargs)

    changed.__name__ = function.__name__.removesuffix("_")
    changed.__qualname__ = f"changed_by_{function.__name__}"
    return changed


def with_item(target: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    """What `target` is after ``target[index] = value``."""
    copy = target.clone()
    copy[index] = value
    return copy


def with_element(target: torch.Tensor, index: torch.Tensor, value: Any) -> torch.Tensor:
    """The same for an integer index, which is data: each member of a step may change another element."""
    is_tensor = isinstance(value, torch.Tensor)
    element = value.to(target.dtype) if is_tensor else torch.full((), value, dtype=target.dtype, device=target.device)
    while element.ndim >= target.ndim and element.shape[0] == 1:  # as assigning allows
        element = element.squeeze(0)
    return target.index_put((index,), element)


DENSE[with_item] = DENSE[with_element] = set_each
BY_VALUE.update((with_item, with_element))


def write_view(
    base: torch.Tensor, value: torch.Tensor, function: str, index: int | None, args: Any, kwargs: Any
) -> torch.Tensor:
    """What `base` is after one of its views has been set to `value`."""
    if index is not None:  # one of several, which autograd does not let be changed
        places = torch.arange(base.numel(), device=base.device).view(base.shape)
        chosen = function_named(function)(places, *args, **kwargs)[index]
        changed = value.to(base.dtype).expand(chosen.shape).reshape(-1)
        return base.reshape(-1).index_put((chosen.reshape(-1),), changed).view(base.shape)
    copy = base.clone()
    function_named(function)(copy, *args, **kwargs).copy_(value)
    return copy


def with_gradient_of(target: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """The numbers of `result` with the gradient of `target`: `target` was changed in place within `torch.no_grad()`."""
    return _OtherNumbers.apply(target, result)  # type: ignore[no-any-return]


class _OtherNumbers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, target: torch.Tensor, result: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return grads[0], None


@register(DENSE, [with_gradient_of])
def _other_numbers(call: Call) -> Batched:
    return call.apply


@register(RAGGED, [with_gradient_of])
def _other_rows(call: Call) -> Batched | None:
    return rowwise(call) if all(type.ragged for type in call.operands) else None
