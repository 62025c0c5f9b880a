"""The registry of block kinds: for each kind one interpreter, which turns the description of a block into a function.

A kind of block is a class in `foldloom.blocks` that describes itself, and an interpreter here. Interpreters need no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown
from foldloom.runtime.schema import Name, Number

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
_SCHEMAS: dict[str, type[msgspec.Struct]] = {}

# ---- What fields of a description hold.

Part = Number
"""Another block, by its number."""
OptionalPart = Number | None
Parts = list[Number]
Packed = Any
"""A value or function, for `Interpreting.value`, which checks it."""
Constant = Any
"""For `Interpreting.constant`, which checks it."""
CellName = Name

_Says = Annotated[str, msgspec.Meta(max_length=10_000)]


def interpreter(kind: str, fields: Mapping[str, Any] | None = None) -> Callable[[Interpreter], Interpreter]:
    """Register the interpreter of a kind of block.

    It gets the description of a block, with an expression for error messages under ``says``, and returns its function. ``fields`` has the
    type of each field; a file in which one of them is missing, strange or of another type is refused. Without it nothing is checked,
    and the interpreter must take what it finds.
    """

    def register(interpret: Interpreter) -> Interpreter:
        _INTERPRETERS[kind] = interpret
        _SCHEMAS.pop(kind, None)
        if fields is not None:
            every = {"kind": str, "says": _Says, **fields}
            _SCHEMAS[kind] = msgspec.defstruct(kind, list(every.items()), forbid_unknown_fields=True)
        return interpret

    return register


def has_interpreter(kind: str) -> bool:
    return kind in _INTERPRETERS


def interpreter_of(kind: str) -> Interpreter:
    if kind not in _INTERPRETERS:
        raise ExportedFileError(
            f"the program of this file has a block of kind {shown(kind)}, which is not known here. If a module of yours registers its "
            "interpreter, allow it: `Model(path, modules=[module])`, or `foldloom predict --allow module`"
        )
    return _INTERPRETERS[kind]


def check_fields(number: int, block: Mapping[str, Any]) -> None:
    """Refuse a block whose fields are not those of its kind."""
    schema = _SCHEMAS.get(block["kind"])
    if schema is None:
        return
    try:
        msgspec.convert(block, schema)
    except msgspec.ValidationError as error:
        raise ExportedFileError(
            f"block {number} of its program, {shown(block['kind'])}, has a description that no export writes: {error}"
        ) from error
