"""`fl.Server`: answers requests from any coroutine or thread, all those that are live in one running batch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch

from foldloom.errors import ArgumentError
from foldloom.planning.schedulers import Scheduler
from foldloom.serving.requests import Answer, Requests
from foldloom.streaming.lanes import Lanes, Program, as_here
from foldloom.tracing.arguments import described, scheduler_of
from foldloom.tracing.cells.lookup import cell_of_module


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """What a server has done, and has to do. Made by `Server.statistics`.

    >>> import torch, foldloom as fl
    >>> with fl.Server(torch.sin) as server:
    ...     _ = [answer.result() for answer in [server(torch.zeros(2)) for _ in range(10)]]
    ...     server.statistics().answered
    10
    """

    live: int
    waiting: int
    accepted: int
    answered: int
    failed: int
    """That raised."""
    expired: int
    """Whose deadline was past."""
    cancelled: int
    refused: int
    """For which there was no room."""
    steps: int
    """How often computed values were waited for by all that were live."""
    occupancy: float
    """The part of the lanes that had an example when steps ran, on average."""
    seconds_waited: float
    """For a lane, on average of the answered."""
    seconds: float
    """In all, on average of the answered."""


class Server:
    """Answers with ``function(*args)``; up to ``max_live`` examples run together, and as one ends the next begins.

    A call returns an `Answer` at once: `await` it, or ask for its `result()`. If ``max_waiting`` requests are waiting already, it raises a
    `ServerBusyError`. An example that takes longer than ``timeout`` seconds, waiting included, ends at its next step, and its answer is a `DeadlineError`;
    so does one whose answer is cancelled. What an example raises is raised by its answer, and by no other. Among those that wait, higher
    ``priority`` goes first. Everything runs in one thread of the server's, without gradients.

    >>> import torch, foldloom as fl
    >>> def halvings(x):
    ...     count = 0
    ...     while x > 1:
    ...         x, count = x / 2, count + 1
    ...     return count
    >>> with fl.Server(halvings, max_live=64) as server:
    ...     answers = [server(torch.tensor(2.0**n)) for n in range(5)]
    ...     print([answer.result() for answer in answers])
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        max_live: int = 256,
        max_waiting: int = 1024,
        timeout: float | None = 2.0,
        scheduler: Scheduler | None = None,
        cells: Sequence[torch.nn.Module] = (),
        automatic_cells: bool = True,
    ) -> None:
        if not callable(function):
            raise ArgumentError(f"fl.Server takes a function or a module, and was given {described(function)}")
        for name, count in (("max_live", max_live), ("max_waiting", max_waiting)):
            if type(count) is not int or count < 1:
                raise ArgumentError(f"{name} is a number of requests, at least 1, and was {described(count)}")
        self._timeout = timeout
        self._max_live = max_live
        self.requests = Requests(max_waiting)
        program = Program(function, scheduler_of(scheduler), tuple(map(cell_of_module, cells)), automatic_cells)
        self._lanes = Lanes(program, self.requests, max_live)
        self._thread = threading.Thread(
            target=copy_context().run, args=(as_here(self._run),), name="fl.Server", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        while not self.requests.is_over:
            try:
                self._lanes.run()
            except Exception as error:
                self.requests.fail_live(error)

    def __call__(self, *args: Any, timeout: float | None = None, priority: float = 0) -> Answer:
        """The answer to one example, which comes later. ``timeout`` is in place of the server's."""
        return self.requests.add(args, self._timeout if timeout is None else timeout, priority)

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more requests, and return when those that were accepted are answered, or after ``timeout`` seconds. Without ``drain`` they are
        cancelled."""
        self.requests.close(drain=drain)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def statistics(self) -> ServerStatistics:
        """What the server has done, and has to do."""
        tally, counts = self.requests.tally, self._lanes.counts
        return ServerStatistics(
            live=len(self.requests.live),
            waiting=len(self.requests.waiting),
            accepted=tally.accepted,
            answered=tally.answered,
            failed=tally.failed,
            expired=tally.expired,
            cancelled=tally.cancelled,
            refused=tally.refused,
            steps=counts.flushes,
            occupancy=counts.live / (self._max_live * max(counts.flushes, 1)),
            seconds_waited=tally.seconds_waited / max(tally.answered, 1),
            seconds=tally.seconds / max(tally.answered, 1),
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)
