"""Decorators that put the fast path in C in front of a Python function: it records calls of known signatures.

Where `_fast_path.c` was not compiled, or `FOLDLOOM_NO_C=1` is set, Python records all calls, which takes longer.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from foldloom.graph import Ints

Otherwise = TypeVar("Otherwise", bound=Callable[..., Any])

try:
    if os.environ.get("FOLDLOOM_NO_C") == "1":
        raise ImportError("FOLDLOOM_NO_C is set")
    from foldloom.tracing import _fast_path
except ImportError:
    _fast_path = None  # type: ignore[assignment]

is_compiled = _fast_path is not None
automatic: Any = _fast_path
"""Guards, traces and the hook of automatic cells; None without C."""


def cell(otherwise: Otherwise) -> Otherwise:
    """For the method of a recorder that records a cell."""
    return _fast_path.cell(otherwise) if is_compiled else otherwise


def module(otherwise: Otherwise) -> Otherwise:
    """For the method of a recorder that records a module."""
    return _fast_path.module(otherwise) if is_compiled else otherwise


def reported(otherwise: Otherwise) -> Otherwise:
    """For the method of a mode that torch reports calls to."""
    return _fast_path.reported(otherwise) if is_compiled else otherwise


def _named(made: Any, otherwise: Otherwise) -> Otherwise:
    made.__name__, made.__qualname__ = otherwise.__name__, f"Tensor.{otherwise.__name__}"
    return made  # type: ignore[no-any-return]


def method(function: Any, otherwise: Otherwise) -> Otherwise:
    """For a method of handles, which records a function."""
    return _named(_fast_path.method(function, otherwise), otherwise) if is_compiled else otherwise


def operator(function: Any, otherwise: Otherwise) -> Otherwise:
    """For one of two arguments, which have no names."""
    return _named(_fast_path.operator(function, otherwise), otherwise) if is_compiled else otherwise


def reflected(function: Any, otherwise: Otherwise) -> Otherwise:
    """For one that takes them the other way round."""
    return _named(_fast_path.reflected(function, otherwise), otherwise) if is_compiled else otherwise


def numbers(column: list[int]) -> Ints:
    """A column of whole numbers as an array."""
    # A list whose appends are watched is not one that C may look into.
    if is_compiled and type(column) is list:
        return np.frombuffer(_fast_path.numbers(column), np.int64)
    return np.array(column, np.int64)


def examples_of_nodes(segments: Sequence[tuple[int, int]], nodes: int) -> tuple[Ints, int, bool]:
    """The example of each node, by examples and the first node of each; the last example that has any; and whether no example comes after a
    later one, or twice."""
    if is_compiled:
        column, largest, in_turn = _fast_path.examples_of_nodes(segments, nodes)
        return np.frombuffer(column, np.int64), largest, in_turn
    sizes = [
        end - start for (_, start), end in zip(segments, [*[start for _, start in segments[1:]], nodes], strict=True)
    ]
    filled = [example for (example, _), size in zip(segments, sizes, strict=True) if size]
    of_node = np.repeat(np.array([example for example, _ in segments], np.int64), sizes)
    return of_node, max(filled, default=0), all(a < b for a, b in pairwise(filled))


def may_follow(graph: Any, forms: array[int], value: int) -> bool:
    """Whether a value may follow from what was given, by the forms of ops: see `flushing.reading`."""
    return not is_compiled or _fast_path.follows(graph, forms, value)


def _answers_are(functions: tuple[Callable[[], Any], ...], answers: tuple[Any, ...]) -> bool:
    return tuple([function() for function in functions]) == answers


answers_are = _fast_path.answers_are if is_compiled else _answers_are
"""Whether functions without arguments answer all of these."""


def holds_bytes(address: int, content: bytes) -> bool:
    """Whether the memory at an address holds these bytes."""
    if is_compiled:
        return _fast_path.holds_bytes(address, content)
    return ctypes.string_at(address, len(content)) == content


def handles(
    kind: type, freed: type, type_of_value: type, make: Callable[[str], Any], otherwise: Otherwise
) -> Otherwise:
    """For the function that makes a handle, of this type, by filling in an empty one that another function makes. While torch frees a
    handle, it is of the second type."""
    if is_compiled:
        _fast_path.bind_handles(kind, freed, type_of_value, make)
        return _fast_path.handle  # type: ignore[return-value]

    def handle(*given: Any) -> Any:
        made = otherwise(*given)
        # No Python runs when a handle ends: what it raised, Ctrl-C say, would be lost.
        _handles[id(made)] = weakref.ref(made, partial(_handles.pop, id(made)))
        return made

    return handle  # type: ignore[return-value]


_handles: dict[int, weakref.ref[Any]] = {}
"""Where C is off, all handles that there are, by identity. To ask the garbage collector for them takes longer the more objects there are,
and while it looks, no other thread runs."""


def handles_of(recorder: Any) -> list[Any]:
    """All handles of a recorder that somebody holds."""
    if is_compiled:
        return _fast_path.handles_of(recorder)
    found = []
    for reference in list(_handles.values()):
        handle = reference()
        owner: Any = None if handle is None else getattr(handle, "_recorder", None)
        if owner is recorder or (getattr(type(owner), "stands_for_recorder", False) and owner.recorder is recorder):
            found.append(handle)
    return found


def handles_since(recorder: Any, value: int) -> list[Any]:
    """All handles of values of a recorder from this one on that somebody holds. Only what is captured asks, which needs C."""
    return _fast_path.handles_since(recorder, value)


def forget_handle(handle: Any) -> None:
    """Empty the slots of a handle that stands for nothing any more."""
    if is_compiled:
        _fast_path.forget_handle(handle)
        return
    _handles.pop(id(handle), None)
    for name in type(handle).__slots__:
        if hasattr(handle, name):
            delattr(handle, name)


def bind(**meant: Any) -> None:
    """Say what types and functions are meant."""
    if is_compiled:
        _fast_path.bind(**meant)
