"""Lowering by interpretation: a block that describes itself runs with the same interpreter here and in an exported file.

A kind of block that defines `describe` and has an interpreter in `foldloom.runtime.program` therefore needs no `lowered` of its own.
Where the runtime unpacks JSON, this passes Python values, tensors and cells on as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.lowering.lowering import Lowerable, Lowering, Run
from foldloom.blocks.types import BlockType, TensorType
from foldloom.runtime.program.registry import CallableCell, Interpreting, RecorderRun, interpreter_of
from foldloom.tracing.cells.core import Cell


class Describable(Protocol):
    def describe(self, to: Describing) -> Described: ...


def interpreted(block: Describable, lower: Lowering) -> Run:
    """The block as a function, made by the interpreter of its kind."""
    references = _References(lower)
    described = {**block.describe(references), "says": type(block).__name__}
    run = interpreter_of(described["kind"])(described, _Interpreting(lower, references.parts))
    return partial(run, None)


class _References(Describing):
    """Describes a block for this process: nothing becomes JSON, and parts are numbered as they come."""

    def __init__(self, lower: Lowering) -> None:
        self._lower = lower
        self.parts: list[Lowerable] = []

    def block(self, part: Lowerable) -> int:
        self.parts.append(part)
        return len(self.parts) - 1

    def cell(self, block: Any) -> Any:
        return self._lower.cells[block]

    def value(self, value: Any) -> Any:
        return value

    def dtype(self, declared: str) -> str:
        return self._lower.dtype(declared)

    def constant(self, value: Any, type: TensorType) -> Any:
        return self._lower.constant(value, type)

    def zeros(self, type: BlockType) -> Any:
        return self._lower.zeros(type)


class _Interpreting(Interpreting):
    """There is no recorder of the runtime here: functions get None in its place and ignore it."""

    def __init__(self, lower: Lowering, parts: Sequence[Lowerable]) -> None:
        self._lower = lower
        self._parts = parts

    def block(self, number: int) -> RecorderRun:
        run = self._lower(self._parts[number])
        return lambda _, value: run(value)

    def cell(self, name: Any) -> CallableCell:
        return _LoweredCell(name)

    def value(self, described: Any) -> Any:
        return described

    def constant(self, described: Any, says: str) -> RecorderRun:
        return lambda recorder, _: described


class _LoweredCell:
    """A cell with the interface that interpreters call."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def called(self, _: Any, args: Sequence[Any]) -> Any:
        return self._cell(*args)

    def called_with(self, _: Any, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        return self._cell(*args, **settings)
