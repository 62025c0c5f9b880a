"""Segments: parts of functions that are recorded as one node, where the functions as a whole are no automatic cells.

A loop over a list, a recursive call, a value that is waited for, a write to an object: each of them makes a function one that Python has to
run. What stands between them may still do the same again and again. Such a function is *divided*: it runs by a code with shortcuts
(`rewriting.py`). Which segments there are is found out while it runs. Where one may start stands a learner; when it is reached, what follows is
explored as far as it can be followed, forgotten again, and captured up to where the segment had better end. Where exploring failed, the next
segments may start. A learner goes when it has learnt enough, and a start of no use goes with it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from types import CodeType
from typing import Any

from foldloom.torch_private import are_transforms_active
from foldloom.tracing.automatic.attempt import Attempt, TooFar
from foldloom.tracing.automatic.flow import Flow
from foldloom.tracing.automatic.interpreter import NOT_DIVIDED, Interpreter, is_library
from foldloom.tracing.automatic.rewriting import Shortcut, Start, may_start, with_shortcuts
from foldloom.tracing.automatic.segment_frame import Point, SegmentFrame
from foldloom.tracing.automatic.traces import own, part_of, trace_of
from foldloom.tracing.automatic.tracked import C, NotRepeatable, Tracked
from foldloom.tracing.catching import is_caught
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import LazyTensor

_FEW_CALLS = 2
"""Instructions that record something: a segment has at least as many."""

_MOST_FRUITLESS = 4
"""Attempts at a start where nothing was learnt yet: other calls may take another way."""

_MOST_ENDS = 3
"""Of segments with one start."""

_MOST_ENDS_TRIED = 8
"""In one attempt."""

_MOST_STARTS = 48
"""In one function."""

_MANY_VALUES = 3
"""A number that had more values than this where a segment starts is taken to differ every time."""

_FEW_ATTEMPTS = 6
"""After as many it is asked whether segments that start at a place are of use."""

_learning = threading.Lock()

divisions: weakref.WeakKeyDictionary[CodeType, Division] = weakref.WeakKeyDictionary()
"""Functions that have segments, or had learners."""


class Segment:
    """From one place to another, by one shortcut."""

    def __init__(self, code: CodeType, start: int, end: Point) -> None:
        self.start = start
        self.end = end.place
        self.depth = len(end.stack)
        self.null = end.null
        self.values = self.depth - (self.null is not None)
        self.called = C.Shortcut(code, self.values)

    def is_until(self, end: Point) -> bool:
        return (self.end, self.depth, self.null) == (end.place, len(end.stack), end.null)


class Site:
    """A place where segments start."""

    def __init__(self, division: Division, code: CodeType, place: int) -> None:
        self.division = division
        self.place = place
        self.segments: list[Segment] = []
        self.learner: Any = C.Shortcut(code, -1)
        self.learner.site = self
        self.reason = ""
        self.attempts = self._fruitless = 0
        self.varying: frozenset[int] = frozenset()
        self._numbers: dict[int, set[Any]] = {}

    def note_numbers(self, read: dict[int, Tracked]) -> bool:
        """Whether the numbers that a trace depends on were found to differ from call to call."""
        for number, tracked in read.items():
            if tracked.is_settled and type(tracked.value) in (int, float):
                self._numbers.setdefault(number, set()).add(tracked.value)
        found = frozenset([number for number, values in self._numbers.items() if len(values) > _MANY_VALUES])
        if found <= self.varying:
            return False
        self.varying |= found
        self.segments = []
        self.attempts = self._fruitless = 0
        return True

    def count(self, reason: str | None) -> None:
        """One more attempt, which failed for a reason, or did not."""
        self.attempts += 1
        if reason is not None:
            self.reason = reason
            self._fruitless += 1

    @property
    def patience(self) -> int:
        """How many calls of the learner pass until the next attempt."""
        return min(self.attempts, 8) + (4 << min(self._fruitless, 10))

    def is_of_no_use(self) -> bool:
        if not self.segments:
            return self._fruitless >= _MOST_FRUITLESS
        hits: int = sum(segment.called.hits for segment in self.segments)
        return self.attempts >= _FEW_ATTEMPTS and hits * 4 < self.learner.misses

    def close(self) -> None:
        """Segments no longer start here."""
        self.learner = None
        self.segments = []


class Division:
    """What is known of the segments of one function."""

    def __init__(self, code: CodeType) -> None:
        self.code = weakref.ref(code)
        self.flow = Flow(code)
        self.sites: dict[int, Site] = {}
        for place in self._first_places():
            self.add_site(code, place)

    def _first_places(self) -> list[int]:
        """The beginning of the function, and of the bodies of loops."""
        flow = self.flow
        entry = next(place for place, each in enumerate(flow.instructions) if each.opname == "RESUME")
        loops = [place for place, each in enumerate(flow.instructions) if each.opname == "FOR_ITER"]
        heads = [flow.place_of[each.argval] for each in flow.instructions if "BACKWARD" in each.opname]
        found = [place for after in (entry, *loops) for place in flow.next_clean(after)]
        return sorted({*found, *[place for place in heads if flow.is_clean(place)]})

    def reasons(self) -> dict[int, str]:
        """Lines from which on no segment was found, with the reason."""
        positions = {place: self.flow.instructions[place].positions for place in self.sites}
        lines = {place: position.lineno for place, position in positions.items() if position is not None}
        return {
            line: site.reason
            for place, site in sorted(self.sites.items())
            if site.reason and not site.segments and (line := lines.get(place)) is not None
        }

    def add_site(self, code: CodeType, place: int) -> bool:
        if place in self.sites or len(self.sites) >= _MOST_STARTS or not may_start(code, self.flow, place):
            return False
        self.sites[place] = Site(self, code, place)
        return True

    def draw(self, code: CodeType) -> None:
        """Make the code anew that the function runs by."""
        starts = []
        for site in self.sites.values():
            shortcuts = [Shortcut(each.called, each.end, each.values, each.null) for each in site.segments]
            if shortcuts or site.learner is not None:
                starts.append(Start(site.place, tuple(shortcuts), site.learner))
        drawn = with_shortcuts(code, self.flow, starts)
        C.divide(*((code,) if drawn is None else (code, drawn)))


def divided(code: CodeType) -> None:
    """Divide a function that is called often and is no automatic cell. Called by the hook."""
    if code.co_flags & NOT_DIVIDED or is_library(code.co_filename):
        return
    division = divisions[code] = Division(code)
    division.draw(code)


def learn(learner: Any, function: Any, values: dict[int, Any]) -> int:
    """Learn the segment that begins where a learner stands: how many calls later it wants to be asked again. Called by the learner."""
    recorder: Any = scope.recorder
    site: Site = learner.site
    code = function.__code__
    if recorder.names_cells or is_caught() or are_transforms_active():
        return 1
    if not _learning.acquire(blocking=False):
        return 1  # another thread
    try:
        for value in values.values():
            if type(value) is LazyTensor:
                own(recorder, value)  # before the attempt: what it records is forgotten
        is_changed = _Lesson(recorder, site, function, values).take()
        if site.is_of_no_use():
            site.close()
            is_changed = True
        if is_changed:
            site.division.draw(code)
    finally:
        _learning.release()
    return site.patience


class _Lesson:
    """One attempt to learn a segment."""

    def __init__(self, recorder: Recorder, site: Site, function: Any, values: dict[int, Any]) -> None:
        self._recorder = recorder
        self._site = site
        self._function = function
        self._code: CodeType = function.__code__
        self._values = values

    def take(self) -> bool:
        """Whether the function's code must be made anew."""
        try:
            is_changed, reason = self._taken()
        except Exception as error:  # what the function itself raises, it raises again when Python runs it
            is_changed, reason = False, f"it raises {type(error).__name__}"
        self._site.count(reason)
        return is_changed

    def _taken(self) -> tuple[bool, str | None]:
        """The same, and why nothing was learnt."""
        points, reason = self._explored()
        is_changed = self._add_sites(points[-1].place)
        limit = len(points) - 1
        for _ in range(_MOST_ENDS_TRIED):
            end = self._end(points[: limit + 1])
            if end is None:
                break
            if limit < len(points) - 1:  # what comes after the end may be a segment too
                is_changed |= self._add_site_at(points[end].place)
            try:
                return self._capture(points[end]) or is_changed, None
            except _Farther as farther:
                limit, reason = min(farther.limit, end - 1), str(farther)
            except TooFar as error:
                limit, reason = end - 1, str(error)
                while limit > 0 and points[limit].nodes > error.nodes:
                    limit -= 1
            except NotRepeatable as error:
                limit, reason = end - 1, str(error)
                while limit > 0 and points[limit].calls == points[end].calls:
                    limit -= 1
            is_changed |= self._add_sites(points[max(limit, 0)].place)
        return is_changed, reason

    def _add_site_at(self, place: int) -> bool:
        division = self._site.division
        return division.flow.is_clean(place) and division.add_site(self._code, place)

    def _add_sites(self, *places: int) -> bool:
        """The next segments start behind where this one ends."""
        division, is_changed = self._site.division, False
        for place in places:
            for after in division.flow.next_clean(place):
                is_changed |= division.add_site(self._code, after)
        return is_changed

    def _explored(self) -> tuple[list[Point], str]:
        attempt = Attempt(self._recorder, self._function)

        def steps(interpreter: Interpreter) -> tuple[list[Point], str]:
            frame = self._frame(attempt, interpreter)
            reason = frame.explore(self._site.place)
            return frame.points, reason

        explored = attempt.follow(steps)
        attempt.forget()
        return explored

    def _frame(self, attempt: Attempt, interpreter: Interpreter) -> SegmentFrame:
        interpreter.begin(self._code)
        return SegmentFrame(interpreter, attempt.tracker.function, self._values, self._site.varying)

    def _end(self, points: list[Point]) -> int | None:
        """Where the segment had better end: as few values on the stack as can be, with all that was recorded."""
        most = points[-1].calls
        if most < _FEW_CALLS:
            return None
        first: dict[int, int] = {}
        for number, point in enumerate(points):
            first.setdefault(point.place, number)
        fit = [
            number
            for number, point in enumerate(points)
            if point.may_end and first[point.place] == number and point.calls >= _FEW_CALLS
        ]
        return min(fit, key=lambda number: (-points[number].calls, len(points[number].stack), number), default=None)

    def _capture(self, end: Point) -> bool:
        """Keep the way to a place as a trace. Whether the function's code must be made anew."""
        attempt = Attempt(self._recorder, self._function)
        site = self._site
        frame = attempt.follow(functools.partial(self._followed, attempt, end.place))
        try:
            if len(frame.points[-1].stack) != len(end.stack):
                raise NotRepeatable("its end is reached in another way")
            if site.note_numbers(frame.read):
                return True
            segment = next((each for each in site.segments if each.is_until(frame.points[-1])), None)
            is_new = segment is None
            if segment is None:
                if len(site.segments) == _MOST_ENDS:
                    return False
                segment = Segment(self._code, site.place, frame.points[-1])
            self._keep(attempt, frame, segment)
            if is_new:
                site.segments.append(segment)
            return is_new
        finally:
            attempt.forget()

    def _followed(self, attempt: Attempt, end: int, interpreter: Interpreter) -> SegmentFrame:
        frame = self._frame(attempt, interpreter)
        frame.follow(self._site.place, end)
        return frame

    def _keep(self, attempt: Attempt, frame: SegmentFrame, segment: Segment) -> None:
        builder = attempt.builder()
        flow = self._site.division.flow
        kept: list[int] = []
        forgotten: list[int] = []
        parts = []
        for name, (number, position) in frame.stored.items():
            value = frame.value_of(name)
            if value is None or not flow.is_live(number, segment.end):
                forgotten.append(number)
                continue
            kept.append(number)
            try:
                parts.append(part_of(attempt.tracker, builder, value))
            except NotRepeatable as error:
                raise _Farther(str(error), position - 1) from None
        parts += [part_of(attempt.tracker, builder, value) for value in _as_unpacked(frame.points[-1])]
        label = f"{self._code.co_qualname} ({self._lines(frame)})"
        if len(builder.nodes) < _FEW_CALLS:
            raise NotRepeatable("it computes next to nothing")
        returned = (C.TUPLE, tuple(parts))
        trace = trace_of(self._recorder, attempt.tracker, attempt.natives, builder, returned, label)
        segment.called.add(trace, tuple(kept), tuple(forgotten))

    def _lines(self, frame: SegmentFrame) -> str:
        positions = [self._site.division.flow.instructions[point.place].positions for point in frame.points[:-1]]
        lines = {position.lineno for position in positions if position is not None and position.lineno is not None}
        return f"line {min(lines)}" if len(lines) == 1 else f"lines {min(lines)} to {max(lines)}"


class _Farther(NotRepeatable):
    """A segment must end before one of its points."""

    def __init__(self, reason: str, limit: int) -> None:
        super().__init__(reason)
        self.limit = limit


def _as_unpacked(end: Point) -> list[Tracked]:
    """What is on the stack, in the order in which a tuple of it is unpacked there: see `rewriting.py`."""
    stack = list(end.stack)
    if end.null is not None:
        stack[end.null] = stack[-1]
        stack.pop()
    return stack[::-1]
