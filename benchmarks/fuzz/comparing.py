"""Whether two values are the same in everything that a program can see, and if not, what is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch

# How far batched kernels may round differently. Whole numbers and truths have no such excuse.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


@dataclass(frozen=True)
class Difference:
    """``category`` names a sort of difference, the same for all programs; ``detail`` says where it is and what is there."""

    category: str
    detail: str
    size: float = math.inf
    """Of a difference between floats: how large it is, relative to the largest of them."""


def differences(expected: Any, actual: Any, where: str) -> Iterator[Difference]:
    """Types first, then all that they hold."""
    parts = parts_of(expected)
    if not same_type(type(expected), type(actual)):
        yield Difference(f"type {_named(actual)} for {_named(expected)}", f"{where} is {_named(actual)}")
    elif isinstance(expected, torch.Tensor):
        yield from _between_tensors(expected, actual, where)
    elif parts is not None:
        yield from _between_containers(expected, actual, where)
    elif not _equal(expected, actual):
        yield Difference("value", f"{where} is {actual!r}, alone {expected!r}")


def same_type(one: type, other: type) -> bool:
    """Types that a program defines are made anew in each run: they go by their names."""
    return one is other or (one.__module__ == other.__module__ == "program" and one.__qualname__ == other.__qualname__)


def _equal(expected: Any, actual: Any) -> bool:
    """Of two leaves of one type. What has no equality of its own is judged by its type alone."""
    if isinstance(expected, float):
        nan = expected != expected and actual != actual
        return nan or math.isclose(expected, actual, rel_tol=1e-7, abs_tol=1e-9)
    if isinstance(expected, np.ndarray):
        alike = expected.dtype == actual.dtype and expected.shape == actual.shape
        return alike and np.allclose(expected, actual, rtol=1e-7, atol=1e-9, equal_nan=True)
    return bool(expected == actual) or "__eq__" not in _attributes(type(expected))


def _attributes(kind: type) -> set[str]:
    """What a type has of its own and of its bases, but for what everything has."""
    return {name for base in kind.__mro__[:-1] for name in vars(base)}


def parts_of(value: Any) -> dict[Any, Any] | None:
    """What a container holds, by the name under which it is found there; of all else None."""
    if isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        return dict(enumerate(value))
    if isinstance(value, dict):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return None


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    for part in (parts_of(value) or {}).values():
        yield from tensors_of(part)


def _between_containers(expected: Any, actual: Any, where: str) -> Iterator[Difference]:
    wanted, found = parts_of(expected) or {}, parts_of(actual) or {}
    if list(wanted) != list(found):
        yield Difference("length", f"{where} holds {list(found)}, alone {list(wanted)}")
        return
    if getattr(expected, "default_factory", None) is not getattr(actual, "default_factory", None):
        yield Difference("type", f"{where} lost its default_factory")
    for key, value in wanted.items():
        yield from differences(value, found[key], f"{where}[{key!r}]")


def _between_tensors(expected: torch.Tensor, actual: torch.Tensor, where: str) -> Iterator[Difference]:
    for name in ("dtype", "shape", "layout", "requires_grad", "is_leaf"):
        wanted, found = _asked(expected, name), _asked(actual, name)
        if wanted != found:
            category = f"{name} {found} for {wanted}" if isinstance(wanted, bool) else name
            yield Difference(category, f"{where} has {name} {found}, alone {wanted}")
    if expected.is_inference() != actual.is_inference():
        yield Difference("is_inference", f"{where} has is_inference {actual.is_inference()}")
    if expected.shape == actual.shape and expected.dtype == actual.dtype:
        yield from _between_numbers(expected.detach().to_dense(), actual.detach().to_dense(), where)


def _asked(tensor: torch.Tensor, name: str) -> Any:
    """Of a view whose base was changed in place torch does not even say whether it is a leaf."""
    try:
        return getattr(tensor, name)
    except RuntimeError as error:
        return str(error)


def _between_numbers(expected: torch.Tensor, actual: torch.Tensor, where: str) -> Iterator[Difference]:
    detail = f"{where} is {_short(actual)}, alone {_short(expected)}"
    tolerance = TOLERANCES.get(expected.dtype)
    if tolerance is None:
        if not torch.equal(expected, actual):
            yield Difference("value", detail)
    elif not torch.equal(expected.isnan(), actual.isnan()):
        yield Difference("NaN", detail)
    elif not torch.allclose(expected, actual, rtol=tolerance, atol=tolerance, equal_nan=True):
        size = (expected - actual).abs().nan_to_num().max() / (1 + expected.abs().nan_to_num().max())
        yield Difference("value", detail, float(size))


def differences_of_gradients(expected: Any, actual: Any, where: str) -> Iterator[Difference]:
    """None, zero and NaN are three things."""
    if expected is None and actual is not None:
        zeros = "zeros" if not actual.to_dense().any() else "numbers"
        yield Difference(f"gradient {zeros} for None", f"{where} is {_short(actual)}, alone None")
    elif expected is not None and actual is None:
        yield Difference("gradient None for numbers", f"{where} is None, alone {_short(expected)}")
    elif expected is not None:
        for difference in differences(expected, actual, where):
            yield replace(difference, category=f"gradient {difference.category}")


def identities(values: list[torch.Tensor]) -> list[int]:
    """For each tensor the first place at which the same object stands: whether a result is an input, a weight, or given twice."""
    first: dict[int, int] = {}
    return [first.setdefault(id(value), place) for place, value in enumerate(values)]


def _short(tensor: torch.Tensor) -> str:
    text = " ".join(str(tensor.detach().to_dense().tolist()).split())
    return text if len(text) < 80 else text[:77] + "..."


def _named(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
