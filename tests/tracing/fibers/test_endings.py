"""Exceptions, and how the tasks that are under way are ended."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from greenlet import GreenletExit

from foldloom.tracing.fibers.fibers import Fibers
from tests.tracing.fibers.rounds import STATES, Rounds, thread_state


def test_an_exception_is_raised_as_it_is_with_the_index(rounds: Rounds) -> None:
    error = ValueError("mine")
    log: list[str] = []

    def fails() -> None:
        rounds.park()
        raise error

    def waits(name: str) -> None:
        try:
            with torch.no_grad():
                rounds.park()
                rounds.park()
        finally:
            log.append(f"{name} {torch.is_grad_enabled()}")

    outside = thread_state()
    with pytest.raises(ValueError, match="mine") as caught:
        rounds.run([lambda: waits("a"), fails, lambda: waits("b")])
    assert caught.value is error
    assert error.__notes__ == ["in task 1"]
    assert log == ["b True", "a True"]
    assert thread_state() == outside
    assert rounds.run([rounds.park]) == [None]  # it can be used again


def test_errors_call_a_task_what_they_are_told_to() -> None:
    fibers = Fibers(lambda _: None, noun="example")
    with pytest.raises(ZeroDivisionError) as caught:
        fibers.run([lambda: 0, lambda: 1 // 0])
    assert caught.value.__notes__ == ["in example 1"]


@pytest.mark.parametrize("name", STATES)
def test_context_managers_are_left_when_a_task_is_ended(rounds: Rounds, name: str) -> None:
    log: list[bool] = []

    def waits() -> None:
        with STATES[name]():
            within = thread_state()
            try:
                rounds.park()
            finally:
                log.append(thread_state() == within)

    def fails() -> None:
        with STATES[name]():
            raise ValueError("mine")

    outside = thread_state()
    with pytest.raises(ValueError, match="mine"):
        rounds.run([waits, fails])
    assert log == [True]
    assert thread_state() == outside


def test_tasks_that_were_not_started_are_not(rounds: Rounds) -> None:
    started: list[int] = []

    def task(number: int) -> None:
        started.append(number)
        if number == 1:
            raise KeyError(number)

    with pytest.raises(KeyError):
        rounds.run([partial(task, number) for number in range(5)])
    assert started == [0, 1]


def test_what_advance_raises_ends_all() -> None:
    ended: list[int] = []
    error = RuntimeError("no kernel")

    def advance(_: object) -> None:
        raise error

    def task(number: int) -> None:
        try:
            fibers.park()
        finally:
            ended.append(number)

    fibers = Fibers(advance)
    with pytest.raises(RuntimeError, match="no kernel") as caught:
        fibers.run([partial(task, number) for number in range(3)])
    assert caught.value is error
    assert ended == [0, 1, 2]


@pytest.mark.parametrize("where", ["task", "advance"])
def test_keyboard_interrupt_ends_all(where: str) -> None:
    ended: list[int] = []

    def interrupt(here: str) -> None:
        if here == where:
            raise KeyboardInterrupt

    def task(number: int) -> None:
        try:
            fibers.park()
            interrupt("task")
        finally:
            ended.append(number)

    fibers = Fibers(lambda _: interrupt("advance"))
    with pytest.raises(KeyboardInterrupt):
        fibers.run([partial(task, number) for number in range(3)])
    assert ended == [0, 1, 2]


def test_exceptions_of_an_inner_run_can_be_caught(rounds: Rounds) -> None:
    ended: list[str] = []

    def waits() -> None:
        try:
            rounds.park()
        finally:
            ended.append("inner")

    def outer() -> list[str]:
        with pytest.raises(ZeroDivisionError) as caught, torch.no_grad():
            rounds.run([waits, lambda: rounds.run([waits, lambda: 1 // 0])])
        assert torch.is_grad_enabled()
        rounds.park()
        return caught.value.__notes__

    def other() -> int:
        rounds.park()
        return 3

    assert rounds.run([other, outer, other]) == [3, ["in task 1", "in task 1"], 3]
    assert ended == ["inner", "inner"]


def test_inner_tasks_are_ended_with_their_owner(rounds: Rounds) -> None:
    ended: list[str] = []

    def waits(name: str) -> None:
        try:
            rounds.park()
        finally:
            ended.append(name)

    def owner() -> None:
        try:
            rounds.run([lambda: waits("inner")] * 2)
        finally:
            ended.append("owner")

    def fails() -> None:
        rounds.park()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        rounds.run([fails, owner])
    assert ended == ["inner", "inner", "owner"]


def test_a_task_may_swallow_its_ending(rounds: Rounds) -> None:
    def swallows() -> str:
        try:
            rounds.park()
        except GreenletExit:
            return "and goes on"
        return "not ended"

    with pytest.raises(ZeroDivisionError):
        rounds.run([swallows, lambda: 1 // 0])


def test_a_task_that_parks_while_it_is_ended_goes_on_ending(rounds: Rounds) -> None:
    reached: list[str] = []

    def parks() -> None:
        try:
            rounds.park()
        finally:
            try:
                rounds.park()
            finally:
                reached.append("parked again")
                rounds.run([rounds.park])

    with pytest.raises(ZeroDivisionError):
        rounds.run([parks, lambda: 1 // 0])
    assert reached == ["parked again"]


def _fails_later(rounds: Rounds) -> None:
    rounds.park()
    raise ZeroDivisionError


def test_tasks_before_one_that_raises_go_on(rounds: Rounds) -> None:
    log: list[str] = []

    def goes_on(name: str) -> None:
        for _ in range(3):
            rounds.park()
        log.append(name)

    with pytest.raises(ZeroDivisionError) as caught:
        rounds.run([partial(goes_on, "a"), partial(_fails_later, rounds), partial(goes_on, "b")])
    assert log == ["a"]
    assert caught.value.__notes__ == ["in task 1"]


def test_of_two_tasks_that_raise_the_first_is_heard(rounds: Rounds) -> None:
    def fails_at_once() -> None:
        raise KeyError

    with pytest.raises(ZeroDivisionError) as caught:
        rounds.run([rounds.park, lambda: _fails_later(rounds), fails_at_once])
    assert caught.value.__notes__ == ["in task 1"]


def test_a_task_that_never_ends_is_given_up(rounds: Rounds) -> None:
    def stubborn() -> None:
        while True:
            try:
                rounds.park()
            except BaseException:
                continue

    outside = thread_state()
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match="task 2 does not end"):
        rounds.run([lambda: _fails_later(rounds), rounds.park, stubborn])
    assert thread_state() == outside
    assert rounds.run([rounds.park] * 2) == [None, None]


def test_what_a_task_raises_while_it_is_ended_is_noted(rounds: Rounds) -> None:
    def untidy() -> None:
        try:
            rounds.park()
        finally:
            raise KeyError("untidy")

    with pytest.raises(ZeroDivisionError) as caught:
        rounds.run([lambda: _fails_later(rounds), untidy])
    assert caught.value.__notes__ == [
        "while task 1 was being ended because of this, it raised KeyError('untidy')",
        "in task 0",
    ]
