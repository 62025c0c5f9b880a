"""The program of an exported file: its described blocks as one function of an example."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown
from foldloom.runtime.description import Description, unpacked_array
from foldloom.runtime.portable import unpacked
from foldloom.runtime.program.registry import RecorderRun, check_fields, has_interpreter, interpreter_of
from foldloom.runtime.recorder import Cell, Recorder

MOST_LEVELS = 100
"""How deep blocks may be nested in each other, recursion apart."""

_FRAMES = 3
"""The most calls of Python that one block makes on the way to a part of it."""


class BlockProgram:
    """The described blocks as a function of a recorder and one example. All of them are made before any runs.

    ``modules`` are those whose functions, and interpreters of block kinds, the file may use.
    """

    def __init__(self, described: dict[str, Any], description: Description, modules: Sequence[str]) -> None:
        self._described: list[dict[str, Any]] = described["blocks"]
        self._description = description
        self._cells = {op.cell for op in description.ops}
        self._modules = modules
        self._runs: list[RecorderRun | None] = [None] * len(self._described)
        self._heights = [0] * len(self._described)
        self._open: list[int] = []
        self._metrics: dict[str, bool] = described["metrics"]
        for number in range(len(self._described)):
            self.block(number)
        self._root = self.block(described["root"])
        self._finish = _finished(described["gives"])
        self._frames_of_a_level = _FRAMES * max(self._heights, default=1)

    def __call__(self, recorder: Recorder, example: Any) -> Any:
        """The result, with a `Value` in place of every tensor. With metrics, a pair of the output and a dict of their rows."""
        recorder.metrics = {name: [] for name in self._metrics}
        recorder.frames_of_a_level = self._frames_of_a_level
        output = self._finish(recorder, self._root(recorder, example))
        return (output, recorder.metrics) if self._metrics else output

    def block(self, number: int) -> RecorderRun:
        if number >= len(self._runs):
            raise ExportedFileError(f"its program asks for block {number}, but there are {len(self._runs)}")
        run = self._runs[number]
        if run is None:
            if number in self._open or len(self._open) >= MOST_LEVELS:
                raise ExportedFileError(
                    f"block {number} of its program contains itself, or is nested more than {MOST_LEVELS} deep"
                )
            self._open.append(number)
            run = self._runs[number] = self._made(number)
            self._open.pop()
        if self._open:
            parent = self._open[-1]
            self._heights[parent] = max(self._heights[parent], 1 + self._heights[number])
        return run

    def _made(self, number: int) -> RecorderRun:
        block = self._described[number]
        kind, says = block.get("kind"), block.get("says")
        if not isinstance(kind, str) or not isinstance(says, str):
            raise ExportedFileError(f"block {number} of its program has no kind: {shown(block)}")
        self._load_interpreters(kind)
        interpret = interpreter_of(kind)
        check_fields(number, block)
        # It stands in messages, which have one line.
        run = interpret({**block, "says": " ".join(says.split())[:200]}, self)
        return run if self._heights[number] == 0 and kind != "reference" else _counted(run)

    def _load_interpreters(self, kind: str) -> None:
        """Import the allowed modules if one of them may register an unknown kind."""
        if not has_interpreter(kind):
            for module in self._modules:
                importlib.import_module(module)

    def cell(self, name: str) -> Cell:
        if name not in self._cells:
            raise ExportedFileError(f"its program calls {shown(name)}, but the file has no such cell")
        return Cell(name, self._description)

    def value(self, described: Any) -> Any:
        return unpacked(described, self._modules)

    def constant(self, described: Any, says: str) -> RecorderRun:
        value = _constants(described)
        return lambda recorder, _: _shared(recorder, value, says)


def _counted(run: RecorderRun) -> RecorderRun:
    """A block that has parts. Whatever runs without end, or twice as often with every level, runs such blocks."""

    def count(recorder: Recorder, value: Any) -> Any:
        meter = recorder.meter
        meter.left -= 1
        if meter.left < 0:
            meter.spend(0)
        return run(recorder, value)

    return count


def _constants(described: Any) -> Any:
    """Arrays, in tuples, and empty sequences."""
    if described is None:
        return None
    if isinstance(described, list):
        return []
    if isinstance(described, dict) and "tuple" in described and isinstance(described["tuple"], list):
        return tuple([_constants(part) for part in described["tuple"]])
    return unpacked_array(described)


def _shared(recorder: Recorder, value: Any, says: str) -> Any:
    if isinstance(value, np.ndarray):
        return recorder.shared_value(value, says)
    if isinstance(value, tuple):
        return tuple([_shared(recorder, part, says) for part in value])
    return value


def _finished(gives: Any) -> RecorderRun:
    """Turns numbers and constants that no cell took into values, in an output of this nesting."""
    if gives == "tensor":
        return lambda recorder, value: recorder.value_of(value, "the output")
    if gives == "nothing":
        return lambda recorder, value: None
    is_nesting = isinstance(gives, (list, tuple)) and len(gives) == 2 and isinstance(gives[1], (list, tuple))
    if not is_nesting or gives[0] not in ("tuple", "list") or (gives[0] == "list" and len(gives[1]) != 1):
        raise ExportedFileError(f"its program gives {shown(gives)}, which is no nesting of tensors")
    kind, parts = gives
    finishes = [_finished(part) for part in parts]
    if kind == "tuple":
        return _counted(
            lambda recorder, values: tuple(
                [finish(recorder, value) for finish, value in zip(finishes, values, strict=True)]
            )
        )
    (finish,) = finishes
    return _counted(lambda recorder, values: [finish(recorder, value) for value in values])
