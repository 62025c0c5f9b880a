"""The requests of a server: those that wait, those that are live, and which of them are given up. The `Source` of its lanes."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

from foldloom.errors import DeadlineError, ServerBusyError, ServerClosedError
from foldloom.streaming.lanes import Result
from foldloom.tracing.examples.outcomes import Raised

clock: Callable[[], float] = time.monotonic


class Answer(Future[Any]):
    """What a server will answer: `await` it in a coroutine, or ask for its `result()` in a thread. `cancel()` ends the example at its next step.

    >>> import torch, foldloom as fl
    >>> with fl.Server(torch.sin) as server:
    ...     server(torch.zeros(2)).result()
    tensor([0., 0.])
    """

    seconds_waited = 0.0
    """How long the request waited for a lane."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


class Request:
    """An example on its way."""

    __slots__ = ("answer", "args", "deadline", "number", "submitted")

    def __init__(self, number: int, args: tuple[Any, ...], submitted: float, deadline: float | None) -> None:
        self.number, self.args, self.submitted, self.deadline = number, args, submitted, deadline
        self.answer = Answer()


class Tally:
    """How many requests have come to what end."""

    def __init__(self) -> None:
        self.accepted = self.answered = self.failed = self.expired = self.cancelled = self.refused = 0
        self.seconds_waited = self.seconds = 0.0
        """Of those that were answered: until they had a lane, and in all."""


class Requests:
    """Called by whoever asks, in any thread; and by the lanes, in theirs."""

    patience = 0

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._changed = threading.Condition(threading.RLock())
        self._count = 0
        self._queue: list[tuple[float, int]] = []
        """The numbers of requests, those of the highest priority first; some are not waiting any more."""
        self._deadlines: list[tuple[float, int]] = []
        self.waiting: dict[int, Request] = {}
        self.live: dict[int, Request] = {}
        self._cancelled: list[int] = []
        """Of those that are live."""
        self.is_closed = False
        self.tally = Tally()

    # ---- Whoever asks.

    def add(self, args: tuple[Any, ...], timeout: float | None, priority: float) -> Answer:
        with self._changed:
            if self.is_closed:
                raise ServerClosedError("the server is closed: it answers what it had accepted, and takes nothing new")
            if len(self.waiting) >= self._max_waiting:
                self.tally.refused += 1
                raise ServerBusyError(
                    f"{len(self.waiting)} requests are waiting, as many as may (`max_waiting`): ask again later, or elsewhere"
                )
            now = clock()
            request = Request(self._count, args, now, None if timeout is None else now + timeout)
            self._count += 1
            self.tally.accepted += 1
            self.waiting[request.number] = request
            heapq.heappush(self._queue, (-priority, request.number))
            if request.deadline is not None:
                heapq.heappush(self._deadlines, (request.deadline, request.number))
            request.answer.add_done_callback(lambda answer: self._note_done(request.number, answer.cancelled()))
            self._changed.notify_all()
        return request.answer

    def _note_done(self, number: int, was_cancelled: bool) -> None:
        if not was_cancelled:
            return
        with self._changed:
            if self.waiting.pop(number, None) is not None:
                self.tally.cancelled += 1
            elif number in self.live:
                self._cancelled.append(number)
            self._changed.notify_all()

    def close(self, *, drain: bool) -> None:
        with self._changed:
            self.is_closed = True
            if not drain:
                for request in [*self.waiting.values(), *self.live.values()]:
                    request.answer.cancel()
            self._changed.notify_all()

    # ---- The lanes.

    @property
    def is_over(self) -> bool:
        return self.is_closed and not self.waiting

    def may_take(self) -> bool:
        return bool(self.waiting)

    def take(self, free: int = 1) -> tuple[int, tuple[Any, ...]] | None:
        late: list[Request] = []
        try:
            with self._changed:
                late = self._late_waiting()
                while self._queue:
                    _, number = heapq.heappop(self._queue)
                    request = self.waiting.pop(number, None)
                    if request is not None:
                        self.live[number] = request
                        request.answer.seconds_waited = clock() - request.submitted
                        return number, request.args
                return None
        finally:
            self._expire(late)

    def wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.waiting or self.is_closed)

    def given_up(self) -> list[tuple[int, Exception]]:
        with self._changed:
            late = self._late_waiting()
            found: list[tuple[int, Exception]] = [(number, DeadlineError(_LATE)) for number in self._late_live()]
            found += [(number, DeadlineError("the request was cancelled")) for number in self._cancelled]
            self._cancelled = []
        self._expire(late)
        return found

    def _late_waiting(self) -> list[Request]:
        """Take away requests whose deadline is past."""
        now = clock()
        late = [
            self.waiting[number] for deadline, number in self._deadlines if deadline <= now and number in self.waiting
        ]
        for request in late:
            del self.waiting[request.number]
        return late

    def _late_live(self) -> list[int]:
        now, late = clock(), []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            if number in self.live:
                late.append(number)
        return late

    def _expire(self, late: list[Request]) -> None:
        for request in late:
            self.tally.expired += 1
            _answer(request, DeadlineError("the deadline of the request is past, and it had not begun"))

    def hand_over(self, results: list[Result]) -> None:
        for number, result in results:
            with self._changed:
                request = self.live.pop(number)
            self._count_end(request, result)
            _answer(request, result.error if type(result) is Raised else result, is_error=type(result) is Raised)

    def _count_end(self, request: Request, result: Any) -> None:
        tally = self.tally
        if request.answer.cancelled():
            tally.cancelled += 1
        elif type(result) is not Raised:
            tally.answered += 1
            tally.seconds_waited += request.answer.seconds_waited
            tally.seconds += clock() - request.submitted
        elif isinstance(result.error, DeadlineError):
            tally.expired += 1
        else:
            tally.failed += 1

    def fail_live(self, error: Exception) -> None:
        """What says something of all examples that are live is the error of each of them."""
        with self._changed:
            live, self.live = [*self.live.values()], {}
        for request in live:
            self.tally.failed += 1
            _answer(request, error)


_LATE = "the deadline of the request is past: the example was ended"


def _answer(request: Request, result: Any, *, is_error: bool = True) -> None:
    """Unless it was cancelled meanwhile."""
    if request.answer.set_running_or_notify_cancel():
        if is_error:
            request.answer.set_exception(result)
        else:
            request.answer.set_result(result)
