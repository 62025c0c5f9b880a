"""`fl.stream`: the results of an endless sequence of examples, so many of which are live at a time."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foldloom.errors import ArgumentError, RecordingError
from foldloom.planning.schedulers import Scheduler
from foldloom.streaming.lanes import Lanes, Program, Result, as_here
from foldloom.streaming.relay import Relay
from foldloom.torch_private import current_transform
from foldloom.tracing.arguments import described, scheduler_of
from foldloom.tracing.cells.lookup import cell_of_module
from foldloom.tracing.examples.outcomes import Errors, Raised, errors_of
from foldloom.tracing.scope import scope

MOST_HELD = 16
"""So many results for each lane may wait for one that comes before them."""

_HAS_RESULTS = "has results"


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """What a stream has done so far. Made by `Stream.statistics`.

    >>> import torch, foldloom as fl
    >>> results = fl.stream(torch.sin, [torch.ones(2)] * 100, width=10)
    >>> for _ in results:
    ...     pass
    >>> results.statistics().examples
    100
    """

    examples: int
    """That have ended."""
    flushes: int
    width: int
    occupancy: float
    """The part of the lanes that had an example when steps ran, on average."""
    renewals: int
    """How often values were forgotten that nobody could reach."""


class Stream(Iterator[Any]):
    """The results of a stream, one after the other. Made by `stream`. It can be closed before it ends, by `close` or as a context manager.

    >>> import itertools, torch, foldloom as fl
    >>> results = fl.stream(lambda x: x * 2, itertools.count(1), width=4)
    >>> next(results), next(results)
    (2, 4)
    >>> results.close()
    """

    def __init__(
        self, program: Program, examples: Iterator[tuple[Any, ...]], width: int, ordered: bool, errors: Errors
    ) -> None:
        self._examples = examples
        self._broken: Exception | None = None
        """What the examples raised instead of the next one."""
        self._ordered, self._errors, self._width = ordered, errors, width
        self._source = _Lazily(width, ordered)
        lanes = Lanes(program, self._source, width)
        self._counts = lanes.counts
        self._relay = self._source.relay = Relay(as_here(lanes.run), "fl.stream")
        self._close = weakref.finalize(self, self._relay.stop)
        self._close.atexit = False

    def __next__(self) -> Any:
        ready = self._source.ready
        try:
            while not ready and not self._relay.is_done:
                self._turn()
            if not ready:
                raise self._broken or StopIteration
            number, result = ready.popleft()
            if type(result) is Raised:
                if self._errors == "raise":
                    raise result.error
                result = result.error
        except BaseException:
            self._broken = None
            self.close()
            raise
        return result if self._ordered else (number, result)

    def _turn(self) -> None:
        """Let the lanes go on until they have results, and give them the examples that they need."""
        message = self._relay.resume()
        while type(message) is int:  # for so many lanes
            taken: list[tuple[Any, ...]] = []
            try:
                taken += itertools.islice(self._examples, message)
            except Exception as error:  # it is raised when the results of those before have come, as in a loop
                self._broken = error
            message = self._relay.resume(taken)

    def close(self) -> None:
        """End the examples that are under way. What has not come yet does not come."""
        self._close()
        self._source.ready.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def statistics(self) -> StreamStatistics:
        """What has been done so far.

        >>> import torch, foldloom as fl
        >>> fl.stream(torch.sin, []).statistics().occupancy
        0.0
        """
        counts = self._counts
        lanes = self._width * max(counts.flushes, 1)
        return StreamStatistics(counts.examples, counts.flushes, self._width, counts.live / lanes, counts.renewals)


class _Lazily:
    """Takes an example when a lane is free, and hands results over in order, or as they come. Everything is asked in the thread of the lanes."""

    patience = 8
    relay: Relay

    def __init__(self, width: int, ordered: bool) -> None:
        self._ordered, self._most_held = ordered, MOST_HELD * width
        self._count = self._next = 0
        self._held: dict[int, Any] = {}
        """Results that wait for earlier ones, by their numbers."""
        self.ready: deque[Result] = deque()
        self._taken: deque[tuple[Any, ...]] = deque()
        """Examples for lanes that are free."""
        self._is_exhausted = False

    @property
    def is_over(self) -> bool:
        return self._is_exhausted and not self._taken

    def may_take(self) -> bool:
        return not self.is_over and len(self._held) < self._most_held

    def take(self, free: int) -> tuple[int, tuple[Any, ...]] | None:
        if not self._taken and not self._is_exhausted:
            found = self.relay.pause(free)
            self._is_exhausted = len(found) < free
            self._taken.extend(found)
        if not self._taken:
            return None
        self._count += 1
        return self._count - 1, self._taken.popleft()

    def wait(self) -> None:
        raise AssertionError("results that are held wait for an example that is live")

    def given_up(self) -> tuple[()]:
        self.relay.check()
        return ()

    def hand_over(self, results: list[Result]) -> None:
        if self._ordered:
            self._held.update(results)
            while self._next in self._held:
                self.ready.append((self._next, self._held.pop(self._next)))
                self._next += 1
        else:
            self.ready.extend(results)
        if self.ready:
            self.relay.pause(_HAS_RESULTS)


def stream(
    function: Callable[..., Any],
    *columns: Iterable[Any],
    width: int = 256,
    ordered: bool = True,
    errors: Errors = "raise",
    scheduler: Scheduler | None = None,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
) -> Stream:
    """The results of ``function(x, y)`` for each of the examples ``zip(xs, ys)``, of which there may be any number: ``width`` of them are live at
    a time, and as one ends the next begins.

    Results come in order, or with ``ordered=False`` as they are done, each with the number of its example. The examples are not read ahead:
    one is taken when a lane is free, and none while a result waits to be asked for. What an example raises is raised where its result would
    come, and ends the stream; with ``errors="return"`` it is the result. Memory does not grow, however long the stream is.

    A stream is for inference. It computes as within `torch.no_grad()`, so nothing that comes out of it requires grad: to train, take minibatches and
    write ``fl.batch(function)(xs)``. Values that the function keeps elsewhere than in its result are there when the stream has ended.

    >>> import itertools, torch, foldloom as fl
    >>> def halvings(x):
    ...     count = 0
    ...     while x > 1:
    ...         x, count = x / 2, count + 1
    ...     return count
    >>> endless = (torch.tensor(float(number)) for number in itertools.count(1))
    >>> with fl.stream(halvings, endless, width=4) as results:
    ...     print([next(results) for _ in range(10)])
    [0, 1, 2, 2, 3, 3, 3, 3, 4, 4]
    """
    if not callable(function):
        raise ArgumentError(f"fl.stream takes a function or a module, and was given {described(function)}")
    if type(width) is not int or width < 1:
        raise ArgumentError(f"the width of a stream is a number of examples, at least 1, and was {described(width)}")
    if scope.recorder is not None or current_transform() is not None:
        raise RecordingError(
            "fl.stream was called inside fl.batch, fl.batching, another stream or a transform of torch.func. There, write `fl.batch(f)(xs)`: "
            "its examples join those around it"
        )
    for column in columns:
        if not isinstance(column, Iterable) or (isinstance(column, torch.Tensor) and not column.ndim):
            raise ArgumentError(
                f"fl.stream takes an iterable for each argument, and was given {described(column)}: write `fl.stream(f, xs)`"
            )
    if not columns:
        raise ArgumentError("fl.stream takes a function and at least one iterable of arguments: fl.stream(f, xs)")
    program = Program(function, scheduler_of(scheduler), tuple(map(cell_of_module, cells)), automatic_cells)
    return Stream(program, zip(*columns, strict=True), width, ordered, errors_of(errors))
