"""Where in the user's code something was asked for, noted while somebody watches."""

from __future__ import annotations

import os
import weakref
from itertools import compress
from types import CodeType
from typing import Any, NamedTuple

from foldloom.execution.observer import Observer, Underway
from foldloom.graph import Graph, Ints
from foldloom.graph.recording import Recording
from foldloom.planning.schedulers import ByAgenda, Scheduler
from foldloom.tracing.scope import is_machinery, scope, user_frame
from foldloom.views.survey import Part, Place


class _Line(NamedTuple):
    """As little as tells a place, because one is taken for every node."""

    code: CodeType
    number: int


def user_place() -> Place | None:
    frame = user_frame()
    return _place_of(_Line(frame.f_code, frame.f_lineno))


def _place_of(line: _Line) -> Place | None:
    """None where no code of the user's is being run: what blocks ask for, they ask for themselves."""
    file = line.code.co_filename
    if is_machinery(file):
        return None
    near = os.path.relpath(file) if os.path.exists(file) else file
    return Place(file if near.startswith("..") else near, line.number, line.code.co_qualname)


class NotedNodes(list[int]):
    """The op of each node in recording order, as the recorder keeps it; notes beside it who asked, and where."""

    def __init__(self, underway: Underway) -> None:
        super().__init__()
        self.underway = underway
        self.examples: list[int] = []
        self._lines: list[_Line] = []

    def append(self, op: int) -> None:
        super().append(op)
        # The front end sets its example before it records anything for it.
        self.examples.append(getattr(self.underway, "example", 0))
        self._lines.append(self._line_of(op))

    def __delitem__(self, where: Any) -> None:
        super().__delitem__(where)
        del self.examples[where], self._lines[where]

    def _line_of(self, op: int) -> _Line:
        if scope.line is not None:
            return _Line(*scope.line)
        frame = user_frame()
        return _Line(frame.f_code, frame.f_lineno)

    def add(self, other: NotedNodes) -> None:
        self.extend(other)
        self.examples += other.examples
        self._lines += other._lines

    def take(self, nodes: Ints) -> NotedNodes:
        """These nodes, in this order; the others remain."""
        taken = NotedNodes(self.underway)
        numbers = nodes.tolist()
        taken.extend([self[number] for number in numbers])
        taken.examples = [self.examples[number] for number in numbers]
        taken._lines = [self._lines[number] for number in numbers]
        remains = bytearray(b"\x01" * len(self))
        for number in numbers:
            remains[number] = 0
        self[:] = compress(self, remains)
        self.examples = list(compress(self.examples, remains))
        self._lines = list(compress(self._lines, remains))
        return taken

    def places(self) -> list[Place | None]:
        place_of_line = {line: _place_of(line) for line in set(self._lines)}
        return [place_of_line[line] for line in self._lines]


class NotedOps(NotedNodes):
    """The same, with one line for all nodes of an op: for when recording is timed, because finding a line takes as long as recording."""

    def __init__(self, underway: Underway) -> None:
        super().__init__(underway)
        self._line_of_op: dict[int, _Line] = {}

    def _line_of(self, op: int) -> _Line:
        line = self._line_of_op.get(op)
        if line is None:
            line = self._line_of_op[op] = super()._line_of(op)
        return line


class PartsObserver(Observer):
    """An observer that knows of each part who asked for its nodes, and where."""

    def __init__(self) -> None:
        self.scheduler: Scheduler = ByAgenda()
        self._noted: weakref.WeakKeyDictionary[Graph, NotedNodes] = weakref.WeakKeyDictionary()
        self._left: weakref.WeakKeyDictionary[Underway, NotedNodes] = weakref.WeakKeyDictionary()
        """What earlier parts of a batch have left for later ones."""
        self._demand: Place | None = None

    def recorded(self, recording: Recording, op_of_node: list[int], nodes: Ints | None = None) -> None:
        if not isinstance(op_of_node, NotedNodes):
            return
        noted, underway = op_of_node, op_of_node.underway
        if nodes is not None:
            left = self._left.pop(underway, None) or NotedNodes(underway)
            left.add(noted)
            noted = left.take(nodes)
            if left:
                self._left[underway] = left
        self._noted[recording.graph] = noted

    def demanded(self) -> None:
        self._demand = self._demand or user_place()

    def part_of(
        self, recording: Recording, scheduler: Scheduler, earlier: Ints | None
    ) -> tuple[Part, NotedNodes | None]:
        """The part that is about to be planned; what was noted of it, unless it was recorded where nobody watched."""
        noted = self._noted.pop(recording.graph, None)
        places, examples = (None, None) if noted is None else (noted.places(), noted.examples)
        part = Part(recording.graph, earlier, examples, places, self._demand)
        self.scheduler, self._demand = scheduler, None
        return part, noted
