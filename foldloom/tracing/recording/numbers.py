"""Python numbers that differ from call to call, as values.

A number beside a value is a setting: `x * 0.1` and `x * 0.2` are two operations, which never share a step. In a solver that chooses its step
size for each example nearly every number is another one. So, where one function has met several numbers beside values of one type, numbers
become operands: each is a value of its example, and all the calls are one operation. That is exact, because torch makes a tensor of the type
of the other operand of such a number too, for the functions and types named here.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from foldloom.graph import Type
from foldloom.tracing.rules.base import forms
from foldloom.tracing.values.lazy_tensor import LazyTensor

MOST_SETTINGS = 3
"""So many different numbers are settings."""

_COMMUTING = frozenset(
    (*forms("add mul sub subtract multiply eq ne"), operator.add, operator.mul, operator.sub, operator.eq, operator.ne)
)
_NUMBER_LAST = frozenset(
    (
        *forms("div divide true_divide gt ge lt le greater greater_equal less less_equal"),
        *(operator.truediv, operator.gt, operator.ge, operator.lt, operator.le),
    )
)
"""A number that is divided by a value is multiplied by a reciprocal, which is another rounding."""

Kinds = tuple[Any, Any, Any]
"""A function of two operands, with the type of the value and the kind of the number."""


def kinds_of(function: Any, args: Sequence[Any], default: str) -> Kinds | None:
    """A call of a value and a number that can be an operand too; None for all others. ``default`` is the default dtype's name."""
    if len(args) != 2 or (function not in _COMMUTING and function not in _NUMBER_LAST):
        return None
    first, last = args
    if type(first) is LazyTensor and type(last) in (int, float):
        return (function, first._type, type(last)) if _are_one_dtype(first._type, type(last), default) else None
    if type(last) is LazyTensor and type(first) in (int, float) and function in _COMMUTING:
        return (function, type(first), last._type) if _are_one_dtype(last._type, type(first), default) else None
    return None


def _are_one_dtype(value: Type, number: type, default: str) -> bool:
    """Whether a tensor made of the number gives the value another dtype, or loses digits that the number has."""
    return value.dtype == default if number is float else value.dtype in ("float32", "float64")


class VaryingNumbers:
    """What is known of the numbers that one program uses. It is kept from batch to batch."""

    def __init__(self) -> None:
        self._seen: dict[Kinds, set[Hashable]] = {}
        self._varying: set[Kinds] = set()

    def note(self, kinds: Kinds, number: Hashable) -> bool:
        """Note a number, or several that go together; whether such numbers are operands."""
        if kinds in self._varying:
            return True
        seen = self._seen.setdefault(kinds, set())
        seen.add(number)
        if len(seen) > MOST_SETTINGS:
            self._varying.add(kinds)
            del self._seen[kinds]
            return True
        return False


def default_dtype() -> str:
    return str(torch.get_default_dtype()).removeprefix("torch.")
