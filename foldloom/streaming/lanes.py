"""Lanes: examples that come and go in a batch that is never closed.

The hub of the fibers starts an example whenever a lane is free, and calls `advance` when all that are live wait. There everything is decided:
what they wait for is computed; results of those that have ended are handed over; those that have failed, or are given up, end; and what nobody can
reach any more is forgotten (`tracing/examples/renewal.py`). Where examples come from and where results go is for the `Source` to say.

One `Recorder` serves until it is *worn*: it knows very many kinds of calls, or is large and holds values that cannot be moved. Then no example
is begun until those that are live are done, and a new recorder takes its place.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from foldloom.errors import CellError
from foldloom.execution.interrupts import Interrupts
from foldloom.execution.results import GivenBack, unstacked
from foldloom.planning.schedulers import Scheduler
from foldloom.pytrees import patched
from foldloom.tracing.automatic.capture import automatic_cells
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.examples.in_fibers import fibers_of
from foldloom.tracing.examples.one_example import add_line, record_example
from foldloom.tracing.examples.outcomes import Raised, noted, outcome_of
from foldloom.tracing.examples.renewal import renew
from foldloom.tracing.fibers.torch_state import TorchState
from foldloom.tracing.interception import uncompiled, watch_all
from foldloom.tracing.recording.numbers import VaryingNumbers
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import recording_into

LEAST_BYTES = 64 << 20
"""What a recorder may hold before it forgets what nobody can reach."""

_LARGER = 4
"""So many times as much as was kept it may hold until the next time."""

MOST_OPS = 1 << 14
"""A recorder that knows more kinds of calls is worn."""

Result = tuple[int, Any]
"""The number of an example, and what it returned, or `Raised`."""


class Program(NamedTuple):
    """A function of one example, and how it runs."""

    function: Callable[..., Any]
    scheduler: Scheduler
    cells: tuple[Cell, ...]
    automatic_cells: bool


class Source(Protocol):
    """Where examples come from and where their results go. Asked by the hub, in the thread of the lanes."""

    patience: int
    """How many flushes results may wait for more of them, which are then computed together."""

    @property
    def is_over(self) -> bool:
        """Whether no example will come any more."""

    def may_take(self) -> bool:
        """Whether `take` may be asked."""

    def take(self, free: int) -> tuple[int, tuple[Any, ...]] | None:
        """The next example with its number; None if there is none now. So many lanes are free, for this and the next ones."""

    def wait(self) -> None:
        """No example is live: returns when there is one to take, or there will be none."""

    def given_up(self) -> Iterable[tuple[int, Exception]]:
        """Live examples that are to end, and why. Asked between two steps."""

    def hand_over(self, results: list[Result]) -> None:
        """These examples are done."""


class Counts:
    """What has happened in the lanes so far."""

    def __init__(self) -> None:
        self.examples = 0
        """That have ended."""
        self.flushes = 0
        self.live = 0
        """The sum of the examples that were live at each flush."""
        self.renewals = 0
        self.recorders = 0


class Lanes:
    """Runs what a source gives, so many examples at a time, until it is over."""

    def __init__(self, program: Program, source: Source, width: int) -> None:
        self._program = program
        self._source = source
        self._width = width
        self._numbers = VaryingNumbers()
        self.counts = Counts()

    def run(self) -> None:
        """Nothing that is computed has gradients. An error of a single example is its result; what says something of all is raised."""
        watch_all()
        with torch.no_grad():
            while not self._source.is_over:
                recorder = Recorder(self._program.scheduler, self._program.function, self._program.cells, self._numbers)
                self.counts.recorders += 1
                _Run(self._program, self._source, self._width, recorder, self.counts).run()


class _Run:
    """What one recorder does: the tasks of an open group of fibers."""

    def __init__(self, program: Program, source: Source, width: int, recorder: Recorder, counts: Counts) -> None:
        self._program = program
        self._source = source
        self._width = width
        self._recorder = recorder
        self._counts = counts
        self._live: dict[int, tuple[Any, ...]] = {}
        """The arguments of the examples that are under way."""
        self._ended: list[tuple[int, Any]] = []
        """Those whose function has returned or raised, and whose results are not computed yet."""
        self._waited = 0
        """For how many flushes."""
        self._failed: dict[int, CellError] = {}
        """Examples of which an operation has failed."""
        self._results: list[Result] = []
        self._limit = LEAST_BYTES
        self._is_worn = False
        self._uncompiled = uncompiled()
        self._fibers = fibers_of(recorder, program.function, Interrupts(), self._advance)
        recorder.flushes.keeps_failures = True
        recorder.graph.is_endless = True
        recorder.outside.examples = self._live

    def run(self) -> None:
        recorder = self._recorder
        try:
            with (
                self._uncompiled,
                recording_into(recorder),
                automatic_cells(recorder, self._program.automatic_cells),
            ):
                self._fibers.run_open(self)
        finally:
            recorder.end()
        if recorder.flushes.has_begun:
            recorder.let_go()

    # ---- What the fibers ask: the tasks.

    @property
    def can_start(self) -> bool:
        """Whether a lane is free. Examples that have ended and wait for their results take none."""
        if self._is_worn or len(self._live) >= self._width or len(self._ended) >= self._width:
            return False
        return self._source.may_take()

    @property
    def is_over(self) -> bool:
        if self._live or self._ended or self._results:
            return False
        return self._is_worn or self._source.is_over

    def __iter__(self) -> Iterator[tuple[int, Callable[[], None]]]:
        return self

    def __next__(self) -> tuple[int, Callable[[], None]]:
        taken = None
        if self.can_start:
            with self._outside():
                taken = self._source.take(self._width - len(self._live))
        if taken is None:
            raise StopIteration  # for now
        number, args = taken
        self._live[number] = args
        self._recorder.outside.forget_owners()
        return number, partial(self._run_one, number, args)

    def _run_one(self, number: int, args: tuple[Any, ...]) -> None:
        example = partial(record_example, self._recorder, self._program.function, patched, args, number)
        # No variable may hold the outcome: the frames of an exception hold this one.
        self._note_end(number, outcome_of(example))

    def _note_end(self, number: int, outcome: Any) -> None:
        if self._live.pop(number, None) is not None:  # else it was ended
            self._ended.append((number, outcome))

    # ---- When all that are live wait.

    def _advance(self, kinds: set[Hashable]) -> list[tuple[int, Exception]]:
        flushes = self._recorder.flushes
        self._counts.flushes += 1
        self._counts.live += min(len(self._live) + len(self._ended), self._width)
        is_large = flushes.held_bytes() > self._limit
        if is_large or self._is_time_for_results(kinds):
            kinds |= flushes.demanded_kinds
            self._compute_results()
        elif kinds:
            flushes.flush(kinds)
        done, self._results = self._results, []
        self._failed = flushes.take_failed() | self._failed
        failed: list[tuple[int, Exception]]
        failed = [(number, self._failed.pop(number)) for number in [*self._failed] if number in self._live]
        failed += self._source.given_up()
        ended = [(number, error) for number, error in failed if self._live.pop(number, None) is not None]
        # Those that end here are handed over next time: then they have ended.
        self._results += [(number, self._raised(number, error)) for number, error in ended]
        if is_large:
            self._forget()
        self._counts.examples += len(done)
        if done:
            with self._outside():
                self._source.hand_over(done)
        elif not (self._live or self._results or self.can_start or self.is_over):
            with self._outside():
                self._source.wait()
        return ended

    def _is_time_for_results(self, kinds: set[Hashable]) -> bool:
        if not self._ended:
            return False
        self._waited += 1
        return not kinds or self._waited > self._source.patience or 8 * len(self._ended) >= self._width

    def _compute_results(self) -> None:
        """Compute everything that has been recorded, and the results of the examples that have ended."""
        ended, self._ended, self._waited = self._ended, [], 0
        back = GivenBack()
        values: list[int] = []
        templates: list[Any] = []
        for _, outcome in ended:
            if type(outcome) is tuple:
                outputs, of_example, template = outcome
                values += outputs
                templates.append(template)
                back.add(of_example)
        planned, rows = self._recorder.flushes.flush_results(values, templates)
        self._recorder.inputs.check_copies()
        results = iter(unstacked(planned.plan, rows, planned.results, back))  # type: ignore[arg-type] # they are apart
        self._failed = self._recorder.flushes.take_failed() | self._failed
        for number, outcome in ended:
            result = next(results) if type(outcome) is tuple else None
            error = self._failed.pop(number, outcome.error if type(outcome) is Raised else None)
            self._results.append((number, result if error is None else self._raised(number, error)))

    def _raised(self, number: int, error: Exception) -> Raised:
        """The result of an example that has raised. Its frames hold nothing any more: else all that the example had computed would be kept
        with it. Those of a step, which is no example's, hold the hub's, too, and go."""
        found: BaseException | None = noted(error, number)
        if isinstance(error, CellError):
            add_line(error, self._recorder)
        is_of_step = error.__traceback__ is None
        while found is not None:
            traceback.clear_frames(found.__traceback__)
            if is_of_step:
                found.__traceback__ = None
            found = found.__cause__ or found.__context__
        return Raised(error)

    def _forget(self) -> None:
        flushes = self._recorder.flushes
        if renew(self._recorder):
            self._counts.renewals += 1
            self._fibers.forget_before(min(self._live, default=None))
            self._limit = max(LEAST_BYTES, _LARGER * flushes.held_bytes())
            self._is_worn = len(self._recorder.graph.ops) > MOST_OPS
        else:
            self._is_worn = True

    @contextmanager
    def _outside(self) -> Iterator[None]:
        """While somebody else's code runs."""
        self._uncompiled.__exit__()
        try:
            with self._fibers.others_may_write():
                yield
        finally:
            self._uncompiled.__enter__()


def as_here(work: Callable[[], None]) -> Callable[[], None]:
    """The same in another thread, with torch's modes of this one."""
    state = TorchState.capture()

    def run() -> None:
        with torch.inference_mode(state.inference):
            state.apply()
            work()

    return run
