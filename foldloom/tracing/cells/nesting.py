"""Nested arguments and results of cells: tuples, lists, dicts and named tuples of tensors, as a hashable description.

A description is ``None`` for a tensor, and ``(kind, keys, descriptions)`` for a container, so that two calls of equal nesting
have equal descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Nesting = Any


def flatten(value: Any, leaves: list[Any]) -> Nesting:
    """Append the leaves of a nested value, and describe its nesting."""
    kind = type(value)
    if kind is tuple or kind is list or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (kind, len(value), tuple([flatten(item, leaves) for item in value]))
    if kind is dict:
        return (kind, tuple(value), tuple([flatten(item, leaves) for item in value.values()]))
    leaves.append(value)
    return None


def unflatten(nesting: Nesting, leaves: Iterator[Any]) -> Any:
    if nesting is None:
        return next(leaves)
    kind, keys, nestings = nesting
    items = [unflatten(item, leaves) for item in nestings]
    if kind is dict:
        return dict(zip(keys, items, strict=True))
    if kind is tuple or kind is list:
        return kind(items)
    return kind(*items)
