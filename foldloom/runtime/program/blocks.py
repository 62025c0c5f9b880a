"""The program of an exported file: its described blocks as one function of an example."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from foldloom.runtime.description import Description, unpacked_array
from foldloom.runtime.portable import unpacked
from foldloom.runtime.program.registry import RecorderRun, has_interpreter, interpreter_of
from foldloom.runtime.recorder import Cell, Recorder


class BlockProgram:
    """The described blocks as a function of a recorder and one example.

    ``modules`` are those whose functions, and interpreters of block kinds, the file may use.
    """

    def __init__(self, described: dict[str, Any], description: Description, modules: Sequence[str]) -> None:
        self._described: list[dict[str, Any]] = described["blocks"]
        self._description = description
        self._modules = modules
        self._runs: list[RecorderRun | None] = [None] * len(self._described)
        self._metrics: dict[str, bool] = described["metrics"]
        for number in range(len(self._described)):
            self.block(number)
        self._root = self.block(described["root"])
        self._finish = _finished(described["gives"])

    def __call__(self, recorder: Recorder, example: Any) -> Any:
        """The result, with a `Value` in place of every tensor. With metrics, a pair of the output and a dict of their rows."""
        recorder.metrics = {name: [] for name in self._metrics}
        output = self._finish(recorder, self._root(recorder, example))
        return (output, recorder.metrics) if self._metrics else output

    def block(self, number: int) -> RecorderRun:
        run = self._runs[number]
        if run is None:
            block = self._described[number]
            self._load_interpreters(block["kind"])
            run = self._runs[number] = interpreter_of(block["kind"])(block, self)
        return run

    def _load_interpreters(self, kind: str) -> None:
        """Import the allowed modules if one of them may register an unknown kind."""
        if not has_interpreter(kind):
            for module in self._modules:
                importlib.import_module(module)

    def cell(self, name: str) -> Cell:
        return Cell(name, self._description)

    def value(self, described: Any) -> Any:
        return unpacked(described, self._modules)

    def constant(self, described: Any, says: str) -> RecorderRun:
        value = _constants(described)
        return lambda recorder, _: _shared(recorder, value, says)


def _constants(described: Any) -> Any:
    """Arrays, in tuples, and empty sequences."""
    if described is None:
        return None
    if isinstance(described, list):
        return []
    return (
        tuple([_constants(part) for part in described["tuple"]]) if "tuple" in described else unpacked_array(described)
    )


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
    kind, parts = gives
    finishes = [_finished(part) for part in parts]
    if kind == "tuple":
        return lambda recorder, values: tuple(
            [finish(recorder, value) for finish, value in zip(finishes, values, strict=True)]
        )
    (finish,) = finishes
    return lambda recorder, values: [finish(recorder, value) for value in values]
