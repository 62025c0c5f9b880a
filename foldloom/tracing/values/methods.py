"""The methods of handles: all of torch.Tensor's, each of which records the function that it is."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from foldloom.torch_private import methods_of_the_object
from foldloom.tracing import fast_path

_TAKEN = (torch.Tensor, numbers.Number, np.ndarray, np.generic)
"""What an operator of a tensor can take as the other operand."""


def _takes(other: Any) -> bool:
    return isinstance(other, _TAKEN) or hasattr(type(other), "__torch_function__")


def _operator(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def binary(self: Any, other: Any) -> Any:
        if not _takes(other):
            return NotImplemented  # as torch's own: the other operand may know what to do
        return self._recorder.call_function(function, (self, other), None)

    binary.__name__ = name
    return fast_path.operator(function, binary)


def _reflected(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def binary(self: Any, other: Any) -> Any:
        if not _takes(other):
            return NotImplemented
        return self._recorder.call_function(function, (other, self), None)

    binary.__name__ = name
    return fast_path.reflected(function, binary)


def _method(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.call_function(function, (self, *args), kwargs)

    method.__name__ = name
    return fast_path.method(function, method)


_BINARY = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "matmul": torch.matmul,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": operator.xor, "lshift": operator.lshift, "rshift": operator.rshift,
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY: dict[str, Callable[..., Any]] = {
    "neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert,
}  # fmt: skip
_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))


def give_methods(kind: type) -> None:
    """All of torch.Tensor's methods that a class of handles does not define, without naming them."""
    for name, function in _BINARY.items():
        setattr(kind, f"__{name}__", _operator(function, f"__{name}__"))
        setattr(kind, f"__r{name}__", _reflected(function, f"__r{name}__"))
        in_place = getattr(torch.Tensor, f"__i{name}__", function)
        setattr(kind, f"__i{name}__", _operator(in_place, f"__i{name}__"))
    for name in _COMPARISONS:
        setattr(kind, f"__{name}__", _operator(getattr(operator, name), f"__{name}__"))
    for name, unary in _UNARY.items():
        setattr(kind, f"__{name}__", _method(unary, f"__{name}__"))
    setattr(kind, "__getitem__", _method(torch.Tensor.__getitem__, "__getitem__"))  # noqa: B010
    for name in dir(torch.Tensor):
        if name in kind.__dict__ or name.startswith("__") or name in methods_of_the_object:
            continue
        attribute = getattr(torch.Tensor, name)
        if name in _PROPERTIES:
            setattr(kind, name, property(_method(attribute.__get__, name)))
        elif callable(attribute) and not isinstance(attribute, type):
            setattr(kind, name, _method(attribute, name))
