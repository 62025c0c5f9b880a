"""State of torch and context variables belong to the task that sets them."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from foldloom.tracing.fibers.fibers import Fibers
from tests.tracing.fibers.rounds import STATES, Rounds, thread_state


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
    rounds.run([partial(task, one, other) for one in STATES for other in STATES if one != other])
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
        tasks: list[Callable[[], Any]] = [infers, trains, infers]
        first, second, third = rounds.run(tasks)
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
