"""Fibers alone, without recorder or lazy tensor: who runs, and when."""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import Any

from greenlet import getcurrent

from foldloom.tracing.fibers.fibers import Fibers
from tests.tracing.fibers.rounds import Rounds, greenlets


def test_results_come_in_order(rounds: Rounds) -> None:
    def task(number: int) -> int:
        for _ in range(number % 4):
            rounds.park()
        return number

    assert rounds.run([partial(task, number) for number in range(10)]) == list(range(10))
    assert rounds.count == 3


def test_no_tasks(rounds: Rounds) -> None:
    assert rounds.run([]) == []
    assert rounds.run(iter([lambda: 1])) == [1]
    assert rounds.count == 0


def test_advance_comes_when_all_are_parked_or_done(rounds: Rounds) -> None:
    log: list[Any] = []

    def task(name: str, parks: int) -> None:
        log.append((name, rounds.count))
        for _ in range(parks):
            rounds.park()
            log.append((name, rounds.count))

    rounds.run([lambda: task("a", 2), lambda: task("b", 0), lambda: task("c", 1)])
    assert log == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("c", 1), ("a", 2)]


def test_tasks_that_never_park_share_a_fiber(rounds: Rounds) -> None:
    seen = rounds.run([lambda: id(getcurrent())] * 5)
    assert len(set(seen)) == 1


def test_fibers_are_used_again_within_a_run(rounds: Rounds) -> None:
    def outer() -> tuple[list[int], list[int]]:
        return rounds.run([task] * 5), rounds.run([task] * 5)

    def task() -> int:
        rounds.park()
        return id(getcurrent())

    ((first, second),) = rounds.run([outer])
    assert sorted(first) == sorted(second)


def test_no_fiber_outlives_its_run(rounds: Rounds) -> None:
    before = greenlets()
    rounds.run([rounds.park] * 10)
    assert greenlets() == before


def test_run_inside_a_task_takes_turns_with_all(rounds: Rounds) -> None:
    log: list[Any] = []

    def inner(name: str) -> str:
        rounds.park()
        log.append((name, rounds.count))
        return name.upper()

    def outer(name: str) -> list[str]:
        found = rounds.run([partial(inner, f"{name}{number}") for number in range(2)])
        rounds.park()
        return found

    assert rounds.run([lambda: outer("a"), lambda: inner("x"), lambda: outer("b")]) == [["A0", "A1"], "X", ["B0", "B1"]]
    assert rounds.count == 2
    assert {name for name, count in log if count == 1} == {"a0", "a1", "b0", "b1", "x"}


def test_runs_nest_deeply(rounds: Rounds) -> None:
    def task(depth: int) -> int:
        if depth == 0:
            rounds.park()
            return 1
        return sum(rounds.run([lambda: task(depth - 1)] * 2))

    assert rounds.run([lambda: task(5)] * 2) == [32, 32]
    assert rounds.count == 1


def test_another_fibers_object_inside_a_task(rounds: Rounds) -> None:
    def task() -> int:
        other = Rounds()
        other.run([other.park] * 3)
        rounds.park()
        return other.count

    assert rounds.run([task] * 2) == [1, 1]
    assert rounds.count == 1


def test_who_waits_for_what_few_wait_for_waits_for_more(rounds: Rounds) -> None:
    """Tasks end one after the other: what they then ask for is made for several at once."""
    made: list[tuple[set[object], int]] = []
    asked: list[str] = []

    def advance(kinds: Set[object]) -> None:
        made.append((set(kinds), sum(kind in kinds for kind in asked)))
        asked[:] = [kind for kind in asked if kind not in kinds]

    def ask(kind: str) -> None:
        asked.append(kind)
        fibers.park(kind)

    def task(number: int) -> int:
        for _ in range(number):
            ask("step")
        ask("end")
        return number

    fibers = Fibers(advance)
    assert fibers.run([partial(task, number) for number in range(8)]) == list(range(8))
    assert not asked
    assert [count for kinds, count in made if kinds == {"step"}] == [7, 6, 5, 4, 3, 2, 1]
    assert [count for kinds, count in made if kinds == {"end"}] == [4, 2, 1, 1]
    assert len(made) == 11


def test_kinds_that_few_wait_for_each_are_made_together(rounds: Rounds) -> None:
    made: list[set[object]] = []
    fibers = Fibers(lambda kinds: made.append(set(kinds)))
    fibers.run([partial(fibers.park, kind) for kind in "abc"])
    assert made == [{"a", "b", "c"}]
