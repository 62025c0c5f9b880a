"""What leaks, what is refused, threads, depth, and what a switch costs."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from greenlet import greenlet

from foldloom.errors import RecordingError
from foldloom.tracing.fibers.fibers import Fibers
from tests.tracing.fibers.rounds import Rounds, greenlets


class Thing:
    """Something that a task holds."""


def test_nothing_leaks(rounds: Rounds) -> None:
    alive: list[weakref.ref[Any]] = []

    def task(number: int) -> None:
        thing = Thing()
        alive.append(weakref.ref(thing))
        rounds.park()
        if number == 2:
            raise ValueError(thing)
        rounds.park()

    before = greenlets()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(ValueError, match="Thing"):
                rounds.run([partial(task, number) for number in range(5)])
        assert [found() for found in alive] == [None] * 15  # without the help of the collector
    finally:
        gc.enable()
    assert greenlets() == before


def test_idle_fibers_hold_nothing(rounds: Rounds) -> None:
    thing = Thing()
    alive = weakref.ref(thing)

    def task(held: Thing) -> Thing:
        rounds.park()
        return held

    rounds.run([partial(task, thing)] * 3)
    del thing
    assert alive() is None


def test_park_outside_of_a_task(rounds: Rounds) -> None:
    with pytest.raises(RecordingError, match="outside of any fiber"):
        rounds.park()
    other = Rounds()
    with pytest.raises(RecordingError, match="outside of any fiber"):
        rounds.run([other.park])
    with pytest.raises(RecordingError, match="outside of any fiber"):
        rounds.run([lambda: greenlet(rounds.park).switch()])


def test_run_inside_advance() -> None:
    def advance(_: object) -> None:
        fibers.run([lambda: None])

    fibers = Fibers(advance)
    with pytest.raises(RecordingError, match="run was called by `advance`"):
        fibers.run([fibers.park])


def in_a_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return found[0]


def test_every_thread_has_its_own(rounds: Rounds) -> None:
    def work() -> list[int]:
        own = Rounds()

        def task(number: int) -> int:
            with torch.no_grad():
                own.park()
            return number

        with pytest.raises(ZeroDivisionError):
            own.run([own.park, lambda: 1 // 0])  # type: ignore[arg-type]
        return own.run([partial(task, number) for number in range(3)])

    assert in_a_thread(work) == [0, 1, 2]
    before = greenlets()
    assert in_a_thread(work) == [0, 1, 2]
    assert greenlets() == before  # its idle fibers went with it
    assert rounds.run([lambda: in_a_thread(work)]) == [[0, 1, 2]]


def test_another_thread_may_not_use_them(rounds: Rounds) -> None:
    assert "belong to the thread" in str(in_a_thread(lambda: rounds.run([lambda: 1])))
    found = rounds.run([lambda: in_a_thread(rounds.park)])
    assert isinstance(found[0], RecordingError)


def depth_reached() -> int:
    try:
        return depth_reached() + 1
    except RecursionError:
        return 1


def test_recursion_is_as_deep_as_outside(rounds: Rounds) -> None:
    def deep(levels: int) -> int:
        if levels == 0:
            rounds.park()
            return 0
        return deep(levels - 1) + 1

    outside = depth_reached()
    assert rounds.run([depth_reached])[0] >= outside - 10
    assert rounds.run([lambda: deep(outside - 50)] * 4) == [outside - 50] * 4
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(limit * 4)
        outside = depth_reached()
        assert rounds.run([depth_reached])[0] >= outside - 10
        assert rounds.run([lambda: deep(outside - 50)] * 4) == [outside - 50] * 4
    finally:
        sys.setrecursionlimit(limit)


def test_it_is_cheap(rounds: Rounds) -> None:
    """Far from what it takes on a free machine (0.3 and 4 microseconds), so that a busy one passes too."""

    def best(tasks: list[Callable[[], Any]]) -> float:
        def once() -> float:
            start = time.perf_counter()
            rounds.run(tasks)
            return time.perf_counter() - start

        return min(once() for _ in range(5))

    def parks() -> None:
        for _ in range(50):
            rounds.park()

    assert best([lambda: None] * 2000) / 2000 < 5e-6
    assert best([parks] * 20) / 1000 < 50e-6
