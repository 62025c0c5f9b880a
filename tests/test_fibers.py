"""Fibers alone: no recorder, no lazy tensor."""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from greenlet import GreenletExit, greenlet
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from foldloom.errors import RecordingError
from foldloom.tracing.fibers import fibers as module
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.fibers.torch_state import TorchState


class Rounds:
    """Counts the rounds; `fibers.park` waits for the next."""

    def __init__(self) -> None:
        self.count = 0
        self.fibers = Fibers(self.advance)
        self.park = self.fibers.park
        self.run = self.fibers.run

    def advance(self, kinds: object) -> None:
        self.count += 1


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


def thread_state() -> tuple[Any, ...]:
    return tuple(TorchState.capture())


# Who runs, and when.


def test_results_come_in_order(rounds: Rounds) -> None:
    def task(number: int) -> int:
        for _ in range(number % 4):
            rounds.park()
        return number

    assert rounds.run([lambda number=number: task(number) for number in range(10)]) == list(range(10))
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
    seen = rounds.run([lambda: id(module.getcurrent())] * 5)
    assert len(set(seen)) == 1


def test_fibers_are_used_again_within_a_run(rounds: Rounds) -> None:
    def outer() -> tuple[list[int], list[int]]:
        return rounds.run([task] * 5), rounds.run([task] * 5)

    def task() -> int:
        rounds.park()
        return id(module.getcurrent())

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
        found = rounds.run([lambda number=number: inner(f"{name}{number}") for number in range(2)])
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


def test_context_variables_belong_to_the_task(rounds: Rounds) -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("caller")

    def task(name: str, parks: bool) -> tuple[str, str]:
        before = variable.get()
        variable.set(name)
        if parks:
            rounds.park()
        return before, variable.get()

    tasks = [lambda: task("a", True), lambda: task("b", False), lambda: task("c", False), lambda: task("d", True)]
    assert rounds.run(tasks) == [("caller", name) for name in "abcd"]
    assert variable.get() == "caller"


# Whose torch state.


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


STATES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
    "default dtype": default_dtype,
    "default device": default_device,
    "device": lambda: torch.device("meta"),
    "function mode": FunctionMode,
    "dispatch mode": DispatchMode,
    "deterministic": deterministic,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "saved tensor hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
    "no overrides": torch._C.DisableTorchFunctionSubclass,
}
"""Everything a task may change for itself, as context managers."""


@pytest.mark.parametrize("name", STATES)
def test_state_belongs_to_the_task(rounds: Rounds, name: str) -> None:
    outside = thread_state()

    def inside() -> None:
        before = thread_state()
        with STATES[name]():
            within = thread_state()
            assert within != before
            for _ in range(3):
                rounds.park()
                assert thread_state() == within
        assert thread_state() == before
        rounds.park()
        assert thread_state() == before

    def other() -> None:
        for _ in range(4):
            assert thread_state() == outside
            rounds.park()

    rounds.run([inside, other, inside, other])
    assert thread_state() == outside


@pytest.mark.parametrize("name", STATES)
def test_tasks_and_advance_start_with_the_state_of_the_caller(name: str) -> None:
    seen: list[Any] = []
    fibers = Fibers(lambda _: seen.append(thread_state()))

    def task() -> None:
        seen.append(thread_state())
        with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            fibers.park()
        seen.append(thread_state())

    outside = thread_state()
    with STATES[name]():
        within = thread_state()
        fibers.run([task] * 3)
        assert thread_state() == within
    assert thread_state() == outside
    assert seen == [within] * 7


@pytest.mark.parametrize("name", STATES)
def test_tasks_of_an_inner_run_start_with_the_state_of_their_task(rounds: Rounds, name: str) -> None:
    def inner(expected: Any) -> None:
        assert thread_state() == expected
        rounds.park()
        assert thread_state() == expected

    def outer() -> None:
        with STATES[name]():
            within = thread_state()
            rounds.run([lambda: inner(within)] * 3)
            assert thread_state() == within

    outside = thread_state()
    rounds.run([outer, lambda: inner(outside), outer])
    assert thread_state() == outside


def test_states_nest(rounds: Rounds) -> None:
    def task(first: str, second: str) -> None:
        with STATES[first]():
            outer = thread_state()
            rounds.park()
            with STATES[second]():
                inner = thread_state()
                rounds.park()
                assert thread_state() == inner
            assert thread_state() == outer
            rounds.park()
            assert thread_state() == outer

    outside = thread_state()
    rounds.run([lambda one=one, other=other: task(one, other) for one in STATES for other in STATES if one != other])
    assert thread_state() == outside


@pytest.mark.parametrize("parks", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_grad_enabled(False),
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_device("meta"),
    ],
    ids=["grad mode", "default dtype", "default device"],
)
def test_what_a_task_leaves_behind_reaches_no_other(rounds: Rounds, change: Callable[[], Any], parks: bool) -> None:
    def task() -> Any:
        before = thread_state()
        if parks:
            rounds.park()
        change()
        return before

    outside = thread_state()
    assert rounds.run([task] * 3) == [outside] * 3
    assert thread_state() == outside


def test_autocast_does_not_share_casts_between_fibers(rounds: Rounds) -> None:
    """A weight that was cast where no gradients were asked for must not serve where they are."""
    weight = torch.ones(2, 2, requires_grad=True)

    def evaluates() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            weight @ weight
            rounds.park()

    def trains() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return weight @ weight

    assert rounds.run([evaluates, trains])[1].requires_grad


def test_gradients_within_inference_mode_of_others(rounds: Rounds) -> None:
    def infers() -> bool:
        with torch.inference_mode():
            rounds.park()
            value = torch.ones(2) * 2
            rounds.park()
            return value.is_inference()

    def trains() -> torch.Tensor:
        weight = torch.ones(2, requires_grad=True)
        rounds.park()
        loss = (weight * 3).sum()
        rounds.park()
        return torch.autograd.grad(loss, weight)[0]

    for _ in range(2):
        first, second, third = rounds.run([infers, trains, infers])
        assert first is third is True
        assert second.tolist() == [3, 3]


def test_parking_inside_torch_func(rounds: Rounds) -> None:
    def square(x: torch.Tensor) -> torch.Tensor:
        rounds.park()
        y = x * x
        rounds.park()
        return y.sum()

    def nested(x: torch.Tensor) -> torch.Tensor:
        return sum(rounds.run([lambda: square(x), lambda: square(2 * x)]))  # type: ignore[return-value]

    def plain() -> torch.Tensor:
        weight = torch.ones(2, requires_grad=True)
        rounds.park()
        return torch.autograd.grad((weight * 3).sum(), weight)[0]

    ones = torch.ones(2)
    tasks = [
        lambda: torch.func.grad(square)(ones),
        plain,
        lambda: torch.func.grad(nested)(ones),
        lambda: torch.func.grad(lambda x: torch.func.grad(square)(x).sum())(ones),
    ]
    assert [gradient.tolist() for gradient in rounds.run(tasks)] == [[2, 2], [3, 3], [10, 10], [2, 2]]
    assert torch._C._functorch.maybe_current_level() is None


# Whose random numbers.


def draws(generator: torch.Generator, count: int) -> list[float]:
    return [float(torch.rand((), generator=generator)) for _ in range(count)]


def test_tasks_that_do_not_park_draw_as_in_a_loop(rounds: Rounds) -> None:
    torch.manual_seed(5)
    expected = [torch.rand(3).tolist() for _ in range(4)] + [torch.rand(1).item()]
    torch.manual_seed(5)
    assert rounds.run([lambda: torch.rand(3).tolist()] * 4) + [torch.rand(1).item()] == expected


def test_a_seeded_task_continues_its_own_stream(rounds: Rounds) -> None:
    def task(seed: int) -> list[float]:
        torch.manual_seed(seed)
        found = []
        for _ in range(4):
            found.append(torch.rand(()).item())
            rounds.park()
        return found

    found = rounds.run([lambda seed=seed: task(seed) for seed in (3, 7, 3)])
    assert found == [draws(torch.Generator().manual_seed(seed), 4) for seed in (3, 7, 3)]


def test_seeding_again_with_the_same_seed(rounds: Rounds) -> None:
    def task() -> tuple[float, float]:
        torch.manual_seed(0)
        first = torch.rand(()).item()
        rounds.park()
        return first, torch.rand(()).item()

    torch.manual_seed(0)
    expected = tuple(draws(torch.Generator().manual_seed(0), 2))
    assert rounds.run([task] * 3) == [expected] * 3


def test_what_a_task_draws_is_not_disturbed_by_others(rounds: Rounds) -> None:
    def drawing(start: int) -> list[float]:
        found = []
        for number in range(4):
            if number >= start:
                found.append(torch.randn(()).item())
            rounds.park()
        return found

    def alone() -> list[float]:
        torch.manual_seed(1)
        return rounds.run([lambda: drawing(0), lambda: None])[0]

    torch.manual_seed(1)
    together = rounds.run([lambda: drawing(0), lambda: drawing(0), lambda: drawing(2)])
    assert together[0] == alone()
    assert len({number for found in together for number in found}) == 4 + 4 + 2  # nobody saw another's numbers


def test_random_numbers_are_determined_by_the_seed(rounds: Rounds) -> None:
    def task() -> list[float]:
        found = []
        for _ in range(3):
            found += torch.rand(2).tolist()
            rounds.park()
        return found

    def once() -> Any:
        torch.manual_seed(4)
        return rounds.run([task] * 3), torch.rand(2).tolist()

    first = once()
    assert first == once()
    assert rounds.run([task] * 3) != first[0]  # the caller's generator has moved on


def test_a_run_that_draws_nothing_leaves_the_generator_alone(rounds: Rounds) -> None:
    before = torch.get_rng_state()
    rounds.run([rounds.park] * 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_advance_draws_from_the_stream_of_the_caller() -> None:
    drawn: list[float] = []
    fibers = Fibers(lambda _: drawn.append(torch.rand(()).item()))

    def task() -> None:
        fibers.park()
        fibers.park()

    torch.manual_seed(2)
    fibers.run([task] * 3)
    assert drawn == draws(torch.Generator().manual_seed(2), 2)


# What goes wrong.


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
    assert log == ["a True", "b True"]
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
        rounds.run([lambda number=number: task(number) for number in range(5)])
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
        fibers.run([lambda number=number: task(number) for number in range(3)])
    assert caught.value is error
    assert ended == [0, 1, 2]


def test_who_waits_for_what_few_wait_for_waits_for_more(rounds: Rounds) -> None:
    """Tasks end one after the other: what they then ask for is made for several at once."""
    made: list[tuple[set[object], int]] = []
    asked: list[str] = []

    def advance(kinds: set[object]) -> None:
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
    assert fibers.run([lambda number=number: task(number) for number in range(8)]) == list(range(8))
    assert not asked
    assert [count for kinds, count in made if kinds == {"step"}] == [7, 6, 5, 4, 3, 2, 1]
    assert [count for kinds, count in made if kinds == {"end"}] == [4, 2, 1, 1]
    assert len(made) == 11


def test_kinds_that_few_wait_for_each_are_made_together(rounds: Rounds) -> None:
    made: list[set[object]] = []
    fibers = Fibers(lambda kinds: made.append(set(kinds)))
    fibers.run([lambda kind=kind: fibers.park(kind) for kind in "abc"])
    assert made == [{"a", "b", "c"}]


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
        fibers.run([lambda number=number: task(number) for number in range(3)])
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


def test_a_task_that_never_ends_is_given_up(rounds: Rounds) -> None:
    def stubborn() -> None:
        while True:
            try:
                rounds.park()
            except BaseException:
                continue

    outside = thread_state()
    with pytest.raises(ZeroDivisionError), pytest.warns(RuntimeWarning, match="task 0 does not end"):
        rounds.run([stubborn, rounds.park, lambda: 1 // 0])
    assert thread_state() == outside
    assert rounds.run([rounds.park] * 2) == [None, None]


def test_what_a_task_raises_while_it_is_ended_is_noted(rounds: Rounds) -> None:
    def untidy() -> None:
        try:
            rounds.park()
        finally:
            raise KeyError("untidy")

    with pytest.raises(ZeroDivisionError) as caught:
        rounds.run([untidy, lambda: 1 // 0])
    assert caught.value.__notes__ == [
        "while task 0 was being ended because of this, it raised KeyError('untidy')",
        "in task 1",
    ]


class Thing:
    """Something that a task holds."""


def greenlets() -> int:
    module.getcurrent()  # makes the one of the thread itself, if nobody has asked for it yet
    gc.collect()  # what earlier tests left behind
    return sum(issubclass(type(found), greenlet) for found in gc.get_objects())


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
                rounds.run([lambda number=number: task(number) for number in range(5)])
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

    rounds.run([lambda thing=thing: task(thing)] * 3)
    del thing
    assert alive() is None


# Where it may be used.


def test_park_outside_of_a_task(rounds: Rounds) -> None:
    with pytest.raises(RecordingError, match="outside of any fiber"):
        rounds.park()
    other = Rounds()
    with pytest.raises(RecordingError, match="outside of any fiber"):
        rounds.run([other.park])
    with pytest.raises(RecordingError, match="outside of any fiber"):
        rounds.run([lambda: greenlet(rounds.park).switch()])


def test_run_inside_advance() -> None:
    fibers = Fibers(lambda _: fibers.run([lambda: None]) and None)
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
            own.run([own.park, lambda: 1 // 0])
        return own.run([lambda number=number: task(number) for number in range(3)])

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
