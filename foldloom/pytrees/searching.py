"""Everything that values hold, for who looks for something and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_ATOMS = (str, bytes, int, float)


def contents(values: Iterable[Any], *, attributes: bool = True, most: int | None = None) -> Iterator[Any]:
    """The values and what can be reached from them through containers, each object once; with ``attributes`` through those of objects, too.
    After so many objects as ``most`` the search ends.

    >>> sorted(contents([[{"a": (1,)}, {2}]], attributes=False), key=str)
    [(1,), [{'a': (1,)}, {2}], {'a': (1,)}, {2}]
    """
    seen: dict[int, Any] = {}  # held as long as the search goes on, so that no other object gets its number
    left = [*values]
    while left and (most is None or len(seen) < most):
        value = left.pop()
        if id(value) in seen or isinstance(value, _ATOMS):
            continue
        seen[id(value)] = value
        yield value
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, (list, tuple, set)):
            left += value
        elif attributes and not isinstance(value, type) and type(value).__module__ != "builtins":
            left += getattr(value, "__dict__", {}).values()
