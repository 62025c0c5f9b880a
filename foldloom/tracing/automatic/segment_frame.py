"""Follows a part of a function: from a place between two statements, with the variables as they are there."""

from __future__ import annotations

import dis
from typing import Any, NamedTuple

from foldloom.tracing.automatic.frames import NULL, Follows, Frame
from foldloom.tracing.automatic.tracked import INNER, C, NotRepeatable, Tracked
from foldloom.tracing.scope import scope


class Point(NamedTuple):
    """Where control came by, before the instruction at a place."""

    place: int
    stack: tuple[Tracked, ...]
    calls: int
    """Instructions so far that recorded anything."""
    nodes: int
    """What they recorded."""

    @property
    def null(self) -> int | None:
        """Which one on the stack is no value."""
        return next((number for number, tracked in enumerate(self.stack) if tracked is NULL), None)

    @property
    def may_end(self) -> bool:
        """Whether what is on the stack can be put there by a shortcut."""
        values = [tracked.value for tracked in self.stack if tracked is not NULL]
        return len(values) >= len(self.stack) - 1 and not any(type(value) in INNER for value in values)


class SegmentFrame(Frame):
    """A function of which a part is followed. ``values`` are those of its variables, by number."""

    def __init__(
        self, interpreter: Follows, function: Tracked, values: dict[int, Any], varying: frozenset[int]
    ) -> None:
        super().__init__(interpreter, function.value.__code__, {}, function, None)
        self._values = values
        self._varying = varying
        self._calls = 0
        self.points: list[Point] = []
        self.stored: dict[str, tuple[int, int]] = {}
        """Variables that were written: their number, and after how many points it was last."""
        self.read: dict[int, Tracked] = {}
        """Variables that were read, by number."""

    def explore(self, start: int) -> str:
        """Goes on as far as it can: why no farther."""
        try:
            self._go(start, None)
        except NotRepeatable as error:
            return str(error)
        except Exception as error:  # what it raises, it raises again when Python runs it
            return f"it raises {type(error).__name__}"
        raise AssertionError("a segment has an end")

    def follow(self, start: int, end: int) -> Point:
        """Goes to a place."""
        self._go(start, end)
        return self.points[-1]

    def _go(self, start: int, end: int | None) -> None:
        self._next = start
        graph = self._tracker.recorder.graph
        around = scope.line
        first = recorded = len(graph.op_of_node)
        try:
            while True:
                if len(graph.op_of_node) != recorded:
                    recorded = len(graph.op_of_node)
                    self._calls += 1
                self.points.append(Point(self._next, tuple(self._stack), self._calls, recorded - first))
                if self._next == end:
                    return
                self._step()
        finally:
            scope.line = around

    def value_of(self, name: str) -> Tracked | None:
        """What was written to a variable; None if it was deleted."""
        return self._variables.get(name)

    # ---- Instructions.

    def on_return_value(self, _: dis.Instruction) -> None:
        raise NotRepeatable("it returns")

    def on_load_fast(self, instruction: dis.Instruction) -> None:
        self._load(instruction)
        super().on_load_fast(instruction)

    def on_store_fast(self, instruction: dis.Instruction) -> None:
        super().on_store_fast(instruction)
        self.stored[instruction.argval] = (instruction.arg or 0, len(self.points))

    def on_delete_fast(self, instruction: dis.Instruction) -> None:
        self.on_load_fast(instruction)  # which must have a value
        self._pop()
        super().on_delete_fast(instruction)
        self.stored[instruction.argval] = (instruction.arg or 0, len(self.points))

    def on_load_deref(self, instruction: dis.Instruction) -> None:
        if instruction.argval in self._code.co_freevars:
            super().on_load_deref(instruction)
        else:
            self._push(self._read_variable(instruction, C.READ_CELL))

    def on_load_closure(self, instruction: dis.Instruction) -> None:
        if instruction.argval in self._code.co_freevars:
            super().on_load_closure(instruction)
        else:
            self._push(Tracked([self._read_variable(instruction, C.READ_CELL)]))

    def _load(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        if name not in self._variables and name not in self.stored:
            self._variables[name] = self._read_variable(instruction, C.READ_LOCAL)

    def _read_variable(self, instruction: dis.Instruction, kind: int) -> Tracked:
        number = instruction.arg or 0
        if number not in self._values:
            raise NotRepeatable(f"`{instruction.argval}` has no value")
        tracked = self._tracker.read(self._values[number], kind, 0, number)
        if number in self._varying and tracked.register is not None:
            self._tracker.varying[tracked.register] = instruction.argval
        return self.read.setdefault(number, tracked)
