"""Objects that examples share and nobody can guard: lists, dicts, sets, objects that are no modules.

That somebody reads them cannot be seen. That somebody has changed them can, by comparing them with how they were.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from ctypes import c_uint64
from operator import is_
from typing import Any

import numpy as np

from foldloom.tracing.fibers.reachable import MOST_ITEMS

_TAG_AT = 24 if sys.version_info < (3, 12) and sys.implementation.name == "cpython" else 0
"""Where a dict has the number that Python changes whenever it changes the dict, in Python 3.11."""


class WatchedObjects:
    """Things as they are now, each under a label."""

    def __init__(self, objects: Iterable[tuple[str, Any]]) -> None:
        self._checks = [(label, _unchanged(thing)) for label, thing in objects]

    def __bool__(self) -> bool:
        return bool(self._checks)

    def first_changed(self) -> str | None:
        """The label of one that has changed since."""
        for label, unchanged in self._checks:
            if not unchanged():
                return label
        return None


def _unchanged(thing: Any) -> Callable[[], bool]:
    """A function that says whether the thing is still as it is now."""
    if isinstance(thing, dict):
        return _dict_unchanged(thing)
    if isinstance(thing, (list, deque)):
        return _list_unchanged(thing)
    if isinstance(thing, (set, bytearray)):
        copy = thing.copy() if len(thing) <= MOST_ITEMS else None
        length = len(thing)
        return lambda: len(thing) == length and (copy is None or copy == thing)
    if isinstance(thing, np.ndarray):
        content = thing.tobytes() if thing.nbytes <= 8 * MOST_ITEMS and not thing.dtype.hasobject else None
        return lambda: content is None or thing.tobytes() == content
    return _dict_unchanged(vars(thing))


def _list_unchanged(items: Any) -> Callable[[], bool]:
    length, copy = len(items), list(items) if len(items) <= MOST_ITEMS else None
    return lambda: len(items) == length and (copy is None or all(map(is_, items, copy)))


def _dict_unchanged(items: dict[Any, Any]) -> Callable[[], bool]:
    length, copy = len(items), dict(items) if len(items) <= MOST_ITEMS else None

    def is_same() -> bool:
        if copy is None:
            return len(items) == length and not _TAG_AT
        return len(items) == length and all(map(is_, items, copy)) and all(map(is_, items.values(), copy.values()))

    if not _TAG_AT:
        return is_same
    tag = c_uint64.from_address(id(items) + _TAG_AT)
    before = tag.value
    return lambda: tag.value == before or is_same()
