"""The registry of block kinds: for each kind one interpreter, which turns the description of a block into a function.

A kind of block is a class in `foldloom.blocks` that describes itself, and an interpreter here. Interpreters need no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from foldloom.errors import ExportedFileError

RecorderRun = Callable[[Any, Any], Any]
"""A block as a function of the recorder and one value.

A tensor is a `Value`, or a number or array that was given; a tuple is a tuple, a sequence a list, nothing None.
"""


class CallableCell(Protocol):
    """A cell, called with the values of one example."""

    def called(self, recorder: Any, args: Sequence[Any], /) -> Any:
        """A call with flat arguments and no settings."""

    def called_with(self, recorder: Any, args: tuple[Any, ...], settings: dict[str, Any], /) -> Any:
        """A call with nested arguments and settings."""


class Interpreting(Protocol):
    """What an interpreter needs to resolve the references in a description. The counterpart of `blocks.describing.Describing`."""

    def block(self, number: int) -> RecorderRun:
        """The function of another block."""

    def cell(self, name: str) -> CallableCell:
        """A cell by its name."""

    def value(self, described: Any) -> Any:
        """A Python value or function."""

    def constant(self, described: Any, says: str) -> RecorderRun:
        """A function that returns a constant, whatever its input. ``says`` names the block in error messages."""


Interpreter = Callable[[dict[str, Any], Interpreting], RecorderRun]

_INTERPRETERS: dict[str, Interpreter] = {}


def interpreter(kind: str) -> Callable[[Interpreter], Interpreter]:
    """Register the interpreter of a kind of block.

    It gets the description of a block, with an expression for error messages under ``says``, and returns its function.
    """

    def register(interpret: Interpreter) -> Interpreter:
        _INTERPRETERS[kind] = interpret
        return interpret

    return register


def has_interpreter(kind: str) -> bool:
    return kind in _INTERPRETERS


def interpreter_of(kind: str) -> Interpreter:
    if kind not in _INTERPRETERS:
        raise ExportedFileError(
            f"the program of this file has a block of kind {kind!r}, which is not known here. If a module of yours registers its "
            "interpreter, allow it: `Model(path, modules=[module])`, or `foldloom predict --allow module`"
        )
    return _INTERPRETERS[kind]
