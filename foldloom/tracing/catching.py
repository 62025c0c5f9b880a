"""Whether the user's code stands in a `try`, so that it may catch what a call raises.

A call is recorded and runs later; what it raises would come too late for an ``except`` around it. So a call that may raise is
waited for where one of the frames between it and `fl.batch` would catch. Python keeps, with the code of each function, a table of which
instructions are covered by which handlers; entering a ``try`` leaves no other trace. Handlers of ``with`` and of ``finally`` pass on what is
raised and do not count, but for `contextlib.suppress` and its kin, which are known by their names.

It is asked for every call of a cell. `_frames.c` walks over functions without handlers in a few nanoseconds each; Python looks at the rest.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import sysconfig
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.scope import is_machinery

T = TypeVar("T")

_STANDARD = sysconfig.get_path("stdlib") + os.sep

_SUPPRESSING = frozenset(("suppress", "raises", "assertRaises", "assertRaisesRegex"))
_EVALUATING = ("LOAD_", "BUILD_", "PRECALL", "CALL", "PUSH_NULL", "KW_NAMES", "BINARY_", "COPY", "NOP", "EXTENDED_ARG")
"""How names begin of instructions that may stand between the beginning of an ``except`` and its test."""


class Limit(NamedTuple):
    """Where a batch begins, if not at the bottom of a fiber: handlers that the frame had then are outside of it."""

    frame: FrameType
    outside: frozenset[int]

    @staticmethod
    def here() -> Limit:
        """Where the user's code is."""
        frame = sys._getframe(1)
        while frame.f_back is not None and _passes_on(frame.f_code.co_filename):
            frame = frame.f_back
        return Limit(frame, _handlers(frame.f_code, frame.f_lasti))


def is_caught(limit: Limit | None = None) -> bool:
    """Whether the user's code that is being run would catch an exception before it leaves the batch."""
    if not may_be_caught():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code is _BOTTOM:
            return False
        if code is _passing_on.__code__:
            return True
        is_last = limit is not None and frame is limit.frame
        if code.co_exceptiontable and has_handlers(code):
            found = _handlers(code, frame.f_lasti)
            if found and not (is_last and limit is not None and found <= limit.outside):
                return True
        if is_last:
            return False
        frame = frame.f_back
    return False


def passing_on(task: Callable[[], T]) -> Callable[[], T]:
    """The task as one whose errors are caught: it begins a stack of its own, away from who catches them."""
    return functools.partial(_passing_on, task)


def _passing_on(task: Callable[[], T]) -> T:
    try:
        return task()
    except Exception:
        raise


_BOTTOM = Fibers.work.__code__


def has_handlers(code: CodeType) -> bool:
    """Whether a function is the user's and may catch anything at all."""
    if code is _passing_on.__code__:
        return True
    return not _passes_on(code.co_filename) and bool(_catching(code))


def _passes_on(file: str) -> bool:
    """Whether a file is of a library whose handlers raise again what they catch: an event loop, say."""
    return is_machinery(file) or (file.startswith(_STANDARD) and "site-packages" not in file)


@functools.lru_cache(maxsize=4096)
def _handlers(code: CodeType, instruction: int) -> frozenset[int]:
    """The handlers that catch what this instruction raises, from the innermost outwards."""
    found: set[int] = set()
    seen: set[int] = set()
    entries, catching = _table(code), _catching(code)
    place: int | None = instruction
    while place is not None and place not in seen:
        seen.add(place)
        # A handler that does not catch leads to the one around it, by which its own instructions are covered.
        place = next((target for start, end, target in entries if start <= place < end), None)
        if place in catching:
            found.add(place)
    return frozenset(found)


def _table(code: CodeType) -> list[tuple[int, int, int]]:
    parse: Any = getattr(dis, "_parse_exception_table")  # noqa: B009 (it has no public name)
    return [(entry.start, entry.end, entry.target) for entry in parse(code)]


@functools.lru_cache(maxsize=1024)
def _catching(code: CodeType) -> frozenset[int]:
    """Where the handlers of a function begin that may catch."""
    if not code.co_exceptiontable:
        return frozenset()
    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname != "CACHE"]
    position = {instruction.offset: number for number, instruction in enumerate(instructions)}
    first: dict[int, int] = {}  # what a handler covers may have gaps, for handlers within
    for start, _, target in _table(code):
        first[target] = min(start, first.get(target, start))
    return frozenset(
        target
        for target, start in first.items()
        if target in position and _catches(instructions, position[target], position.get(start, 0))
    )


def _catches(instructions: list[dis.Instruction], handler: int, covered: int) -> bool:
    if instructions[handler].opname != "PUSH_EXC_INFO":
        return False
    following = instructions[handler + 1 :]
    if not following or following[0].opname == "WITH_EXCEPT_START":
        return _suppresses(instructions[:covered])
    if following[0].opname == "POP_TOP":  # `except:`
        return True
    for instruction in following:
        if instruction.opname in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH"):
            return True
        if not instruction.opname.startswith(_EVALUATING):
            return False  # the body of a `finally`
    return False


def _suppresses(before: list[dis.Instruction]) -> bool:
    """Whether the manager of a `with`, made by the instructions before it, swallows exceptions."""
    while before and before[-1].opname not in ("BEFORE_WITH", "BEFORE_ASYNC_WITH"):
        before = before[:-1]
    for instruction in reversed(before[:-1]):
        if not instruction.opname.startswith(_EVALUATING):
            return False
        if instruction.argval in _SUPPRESSING:
            return True
    return False


def _always() -> bool:
    return True


def _gate() -> Callable[[], bool]:
    """A fast look at the stack: false if no function on it has handlers of the user's."""
    if os.environ.get("FOLDLOOM_NO_C") == "1":
        return _always
    try:
        from foldloom.tracing import _frames
    except ImportError:
        return _always
    _frames.bind(has_handlers, _BOTTOM)
    gate: Callable[[], bool] = _frames.may_be_caught
    return gate


may_be_caught = _gate()
