"""Random numbers of tasks: those of a loop where nobody parks, and each task's own otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import foldloom as fl
from foldloom.tracing.fibers.fibers import Fibers
from tests.tracing.fibers.rounds import Rounds


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

    found = rounds.run([partial(task, seed) for seed in (3, 7, 3)])
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
        return rounds.run([lambda: drawing(0), list])[0]

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


def test_a_generator_that_is_set_to_where_it_stands() -> None:
    """As each of several examples does that are to draw the same numbers."""
    state = torch.get_rng_state()

    def noisy(x: torch.Tensor) -> torch.Tensor:
        torch.set_rng_state(state)
        return torch.rand(()) if x > 0 else -torch.rand(())

    xs = [torch.tensor(1.0), torch.tensor(-1.0), torch.tensor(2.0)]
    expected = fl.one_by_one(noisy)(xs)
    torch.set_rng_state(state)
    assert fl.batch(noisy)(xs) == expected
