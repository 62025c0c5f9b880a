"""What Python makes of a value of one element: a number, a truth, an index. Each refuses others with the words of torch.

A value that is not computed yet is demanded: `flushing/flush.py: Flushes.demand`.
"""

from __future__ import annotations

import operator
from typing import Any


def as_int(value: Any) -> int:
    return int(_real(value, "int64_t"))


def as_float(value: Any) -> float:
    return float(_real(value, "double"))


def as_complex(value: Any) -> complex:
    return complex(_element(value))


def as_truth(value: Any) -> bool:
    count = value.numel() if value.ndim else 1
    if count != 1:
        raise RuntimeError(
            f"Boolean value of Tensor with {'more than one value' if count else 'no values'} is ambiguous"
        )
    return bool(value._recorder.number_of(value))


def as_index(value: Any) -> int:
    if value.numel() != 1 or value.is_floating_point() or value.is_complex():
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return operator.index(value.item())


def _element(value: Any) -> Any:
    if value.numel() != 1:
        raise ValueError("only one element tensors can be converted to Python scalars")
    return value.item()


def _real(value: Any, kind: str) -> Any:
    number = _element(value)
    if not isinstance(number, complex):
        return number
    if number.imag:
        raise RuntimeError(f"value cannot be converted to type {kind} without overflow")
    return number.real
