"""`fl.Server`: requests join and leave a running batch; no clock decides in these tests but the one that they set."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.errors import DeadlineError, ServerBusyError, ServerClosedError, SharedStateError
from foldloom.serving import requests
from tests.streaming.programs import Walker, check, examples

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


class Gate:
    """A program that takes a step each time that it is let, in the order in which it is asked."""

    def __init__(self) -> None:
        self.order: list[Any] = []
        self.begun = threading.Semaphore(0)
        self.steps = threading.Semaphore(0)

    def __call__(self, name: str, steps: int) -> tuple[str, float]:
        self.order.append(name)
        self.begun.release()
        x = torch.ones(2)
        for _ in range(steps):
            if name.startswith("held"):
                self.steps.acquire()
            x = x * 1.5
            if x.sum() < 0:
                break
        return name, float(x[0])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(requests, "clock", clock)
    return clock


def test_answers_are_those_of_one_by_one() -> None:
    model, columns = Walker(), examples(100, 5)
    with torch.no_grad():
        expected = fl.one_by_one(model, errors="return")(*columns)
    with fl.Server(model, max_live=16, timeout=None) as server:
        answers = [server(*args) for args in zip(*columns, strict=True)]
        check([answer.exception() or answer.result() for answer in answers], expected)
        statistics = server.statistics()
    raised = sum(isinstance(result, Exception) for result in expected)
    assert (statistics.answered, statistics.failed) == (100 - raised, raised)
    assert statistics.live == statistics.waiting == 0


def test_from_coroutines_and_threads() -> None:
    layer = nn.Linear(3, 3)
    inputs = [torch.randn(3) for _ in range(40)]

    async def ask(server: fl.Server) -> list[Any]:
        return await asyncio.gather(*[server(x) for x in inputs])

    with fl.Server(lambda x: layer(x).sum().item(), max_live=4) as server:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(asyncio.run(ask(server)))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [pytest.approx([layer(x).sum().item() for x in inputs])] * 3


def test_too_many_requests_are_refused_at_once(clock: Clock) -> None:
    gate = Gate()
    with fl.Server(gate, max_live=1, max_waiting=2) as server:
        held = server("held", 1)
        gate.begun.acquire()
        answers = [server("a", 1), server("b", 1)]
        with pytest.raises(ServerBusyError, match="2 requests are waiting"):
            server("c", 1)
        assert server.statistics().waiting == 2
        gate.steps.release()
        assert [answer.result()[0] for answer in (held, *answers)] == ["held", "a", "b"]
        assert server.statistics().refused == 1


def test_higher_priority_goes_first(clock: Clock) -> None:
    gate = Gate()
    with fl.Server(gate, max_live=1) as server:
        server("held", 1)
        gate.begun.acquire()
        answers = [server(name, 0, priority=priority) for name, priority in (("a", 0), ("b", 2), ("c", 1), ("d", 2))]
        gate.steps.release()
        for answer in answers:
            answer.result()
    assert gate.order == ["held", "b", "d", "c", "a"]


def test_a_request_that_never_ends_is_ended_at_its_deadline(clock: Clock) -> None:
    gate = Gate()
    with fl.Server(gate, max_live=2, timeout=5.0) as server:
        endless, patient = server("held", 10**9), server("held too", 3, timeout=100.0)
        gate.begun.acquire()
        clock.now = 6.0
        waiting = server("late", 1, timeout=1.0)
        clock.now = 8.0
        for _ in range(20):
            gate.steps.release()
        with pytest.raises(DeadlineError, match="was ended"):
            endless.result()
        assert patient.result()[0] == "held too"
        with pytest.raises(TimeoutError):
            waiting.result()
        assert server.statistics().expired == 2
        assert server("next", 1).result()[0] == "next"


def test_a_cancelled_request_ends_at_its_next_step() -> None:
    gate = Gate()
    ended = threading.Event()

    def function(name: str, steps: int) -> Any:
        try:
            return gate(name, steps)
        finally:
            if name == "held":
                ended.set()

    with fl.Server(function, max_live=1, timeout=None) as server:
        endless = server("held", 10**9)
        gate.begun.acquire()
        waits, stays = server("waits", 1), server("stays", 1)
        assert waits.cancel()
        assert endless.cancel()
        gate.steps.release()
        gate.steps.release()
        assert stays.result()[0] == "stays"
        assert ended.is_set()
        with pytest.raises(CancelledError):
            endless.result()
    assert server.statistics().cancelled == 2
    assert gate.order == ["held", "stays"]


def test_a_coroutine_that_gives_up_cancels_its_request() -> None:
    gate = Gate()

    async def ask(server: fl.Server) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(server("held", 10**9), 0.01)
        gate.steps.release()
        gate.steps.release()
        assert (await server("next", 1))[0] == "next"

    with fl.Server(gate, max_live=1, timeout=None) as server:
        asyncio.run(ask(server))
    assert server.statistics().cancelled == 1


def test_closing_answers_what_was_accepted() -> None:
    gate = Gate()
    server = fl.Server(gate, max_live=1, timeout=None)
    answers = [server("held", 1), server("a", 1), server("b", 1)]
    closing = threading.Thread(target=server.close)
    gate.begun.acquire()
    closing.start()
    gate.steps.release()
    assert [answer.result()[0] for answer in answers] == ["held", "a", "b"]
    closing.join()
    with pytest.raises(ServerClosedError):
        server("c", 1)


def test_closing_at_once_cancels() -> None:
    gate = Gate()
    server = fl.Server(gate, max_live=1, timeout=None)
    answers = [server("held", 10**9), server("a", 1)]
    gate.begun.acquire()
    gate.steps.release()
    gate.steps.release()
    server.close(drain=False)
    assert all(answer.cancelled() for answer in answers)


def test_an_error_of_all_does_not_end_the_server() -> None:
    seen: list[str] = []

    def function(name: str) -> float:
        if name == "all":
            raise SharedStateError("of all examples")
        seen.append(name)
        return 1.0

    with fl.Server(function, max_live=4, timeout=None) as server:
        with pytest.raises(SharedStateError):
            server("all").result()
        assert server("next").result() == 1.0


@pytest.mark.parametrize(
    ("how", "text"), [({"max_live": 0}, "max_live is a number"), ({"max_waiting": 1.5}, "max_waiting is a number")]
)
def test_what_is_given_is_checked(how: Any, text: str) -> None:
    with pytest.raises(fl.errors.ArgumentError, match=text):
        fl.Server(torch.sin, **how)
