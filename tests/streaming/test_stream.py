"""`fl.stream`: equal to one by one, whatever the width; examples are taken when lanes are free; one failure is one error."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import foldloom as fl
from foldloom.streaming import lanes
from tests.streaming.programs import Walker, check, examples
from tests.tracing.plain import no_fiber_left_behind

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


@pytest.fixture(autouse=True)
def _forgets_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LEAST_BYTES", 1 << 12)


def one_by_one(function: Any, columns: list[list[Any]]) -> list[Any]:
    with torch.no_grad():
        return fl.one_by_one(function, errors="return")(*columns)


@pytest.mark.parametrize("width", [1, 3, 16, 1000])
@pytest.mark.parametrize("automatic", [True, False])
def test_as_one_by_one(width: int, automatic: bool) -> None:
    model, columns = Walker(), examples(120)
    with no_fiber_left_behind():
        results = fl.stream(model, *columns, width=width, errors="return", automatic_cells=automatic)
        check(list(results), one_by_one(model, columns))
        statistics = results.statistics()
        assert statistics.examples == 120
        assert statistics.renewals > 0
        del results


@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.OneByOne()], ids=str)
def test_schedulers(scheduler: Any) -> None:
    model, columns = Walker(), examples(40, 1)
    found = list(fl.stream(model, *columns, width=8, errors="return", scheduler=scheduler))
    check(found, one_by_one(model, columns))


STEPS = st.lists(st.sampled_from(["add", "ask", "cell", "view", "raise", "fail", "catch"]), max_size=8)


@given(st.lists(STEPS, min_size=1, max_size=12), st.integers(1, 6))
@settings(max_examples=40)
def test_programs_that_are_drawn(programs: list[list[str]], width: int) -> None:
    table = nn.Embedding(5, 3)
    twice = fl.cell(lambda x: torch.sin(x) * 2)

    def run(program: list[str]) -> Any:
        x = table(torch.tensor(len(program) % 5))
        asked = []
        for step in program:
            if step == "add":
                x = x + table.weight[1]
            elif step == "ask":
                asked.append(round(float(x.sum()), 6))
            elif step == "cell":
                x = twice(x)
            elif step == "view":
                x = x * 1
                x[1] = 3.0
            elif step == "raise":
                raise ValueError(str(len(program)))
            elif step == "fail":
                x = x + table(torch.tensor(7))
            elif step == "catch":
                try:
                    x = x + table(torch.tensor(7 if len(program) % 2 else 2))
                except IndexError:
                    x = x - 1
        return x, asked

    found = list(fl.stream(run, programs, width=width, errors="return"))
    expected = one_by_one(run, [programs])
    assert [type(result) is tuple for result in found] == [type(result) is tuple for result in expected]
    check(found, expected)


def test_programs_that_never_wait() -> None:
    table = nn.Embedding(5, 3)
    words = [n % 5 for n in range(50)]
    results = fl.stream(lambda word: table(torch.tensor(word)) * 2, words, width=8)
    check(list(results), one_by_one(lambda word: table(torch.tensor(word)) * 2, [words]))
    assert results.statistics().flushes <= 50 // 8 + 3


def halvings(x: torch.Tensor) -> int:
    count = 0
    while x > 1:
        x, count = x / 2, count + 1
    return count


def test_as_completed_with_their_numbers() -> None:
    inputs = [torch.tensor(2.0 ** (10 - n)) for n in range(8)]
    found = list(fl.stream(halvings, inputs, width=3, ordered=False))
    assert sorted(found) == [(n, 10 - n) for n in range(8)]
    assert found != sorted(found)


@pytest.mark.parametrize("ordered", [True, False])
def test_examples_are_not_read_ahead(ordered: bool) -> None:
    taken = 0

    def endless() -> Iterator[torch.Tensor]:
        nonlocal taken
        for taken in itertools.count(1):
            yield torch.tensor(float(taken))

    with fl.stream(halvings, endless(), width=4, ordered=ordered) as results:
        assert taken == 0
        for number in range(1, 40):
            next(results)
            assert taken <= number + 2 * 4 + 1
    with pytest.raises(StopIteration):
        next(results)


def test_results_that_wait_for_one_before_them_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foldloom.streaming.streams.MOST_HELD", 2)
    taken = 0

    def endless() -> Iterator[torch.Tensor]:
        nonlocal taken
        yield torch.tensor(2.0**500)
        while True:
            taken += 1
            yield torch.tensor(1.0)

    with fl.stream(halvings, endless(), width=4) as results:
        assert next(results) == 500
        assert taken <= 4 * 2 + 2 * 4


def test_what_an_example_raises_ends_the_stream_in_its_place() -> None:
    ended = []

    def function(x: torch.Tensor, number: int) -> int:
        try:
            count = halvings(x)
            if number == 3:
                raise KeyError("mine")
            return count
        finally:
            ended.append(number)

    inputs = [torch.tensor(2.0 ** (20 - n)) for n in range(8)]
    with no_fiber_left_behind():
        results = fl.stream(function, inputs, range(8), width=8)
        assert [next(results) for _ in range(3)] == [20, 19, 18]
        with pytest.raises(KeyError, match="mine") as caught:
            next(results)
        assert caught.value.__notes__[0] == "in example 3"
        with pytest.raises(StopIteration):
            next(results)
        assert sorted(ended) == list(range(8))[: len(ended)]
        del caught, results


def test_examples_that_raise_do_so_after_the_results_before_them() -> None:
    def broken() -> Iterator[torch.Tensor]:
        yield torch.tensor(8.0)
        yield torch.tensor(4.0)
        raise OSError("no more")

    results = fl.stream(halvings, broken(), width=8)
    assert [next(results), next(results)] == [3, 2]
    with pytest.raises(OSError, match="no more"):
        next(results)


def test_a_stream_that_is_left_ends() -> None:
    with no_fiber_left_behind():
        before = threading.active_count()
        results = fl.stream(halvings, (torch.tensor(100.0) for _ in itertools.count()), width=4)
        next(results)
        assert threading.active_count() == before + 1
        del results
        gc.collect()
        assert threading.active_count() == before


def test_nothing_requires_grad() -> None:
    weight = nn.Parameter(torch.ones(3))
    results = list(fl.stream(lambda x: (x * weight, torch.is_grad_enabled()), [torch.ones(3)] * 3))
    assert [(result.requires_grad, enabled) for result, enabled in results] == [(False, False)] * 3
    assert torch.is_grad_enabled()


def test_attributes_of_modules_belong_to_the_example() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.h: Any = torch.zeros(())

        def forward(self, x: torch.Tensor) -> Any:
            self.h = x
            while self.h > 1:
                self.h = self.h / 2
            return self.h

    model = Keeps()
    inputs = [torch.tensor(float(n)) for n in range(1, 60)]
    expected = one_by_one(model, [inputs])
    other = Keeps()
    results = fl.stream(model, inputs, width=7)
    found = []
    for number, result in enumerate(results):
        found.append(result)
        if number % 9 == 0:  # whoever asks may use the module, too
            assert fl.batch(model)(inputs[:3]) == expected[:3]
            assert other(inputs[5]) == expected[5]
    assert found == expected
    assert type(model.h) is torch.Tensor
    assert model.h == expected[-1]


def test_random_numbers() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        x = x + torch.randn(())
        while x.abs() > 1:
            x = x / 2 + torch.randn(()) * 0.1
        return x

    def draw(width: int) -> list[float]:
        torch.manual_seed(3)
        return [float(x) for x in fl.stream(noisy, [torch.tensor(8.0)] * 40, width=width)]

    assert draw(8) == draw(8)
    assert len(set(draw(8))) == 40
    torch.manual_seed(3)
    inputs = [torch.ones(())] * 10
    found = list(fl.stream(lambda x: x + torch.randn(()), inputs, width=4))
    torch.manual_seed(3)
    assert found == [x + torch.randn(()) for x in inputs]


def test_a_recorder_that_is_worn_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST_OPS", 3)
    model, columns = Walker(), examples(60, 2)
    results = fl.stream(model, *columns, width=8, errors="return")
    check(list(results), one_by_one(model, columns))
    assert results._counts.recorders > 1


def test_who_waits_for_what_few_wait_for_is_not_left_waiting() -> None:
    """In a batch the many go first. Where new ones always come, the few would wait for ever."""
    done: list[str] = []

    def function(kind: str) -> None:
        x = torch.ones(3) if kind == "few" else torch.ones(2)
        for _ in range(3 if kind == "few" else 2):
            x = x * 1.5
            assert x.sum().item() > 0 if kind == "many" else x.tolist()

    with fl.stream(function, (kind for kind in ("few", *["many"] * 10**6)), width=6, ordered=False) as results:
        for number, _ in results:
            done.append("few" if number == 0 else "many")
            if number == 0:
                break
    assert len(done) < 200


def test_inside_a_batch() -> None:
    with pytest.raises(fl.errors.RecordingError, match=r"inside fl\.batch"):
        fl.batch(lambda x: next(fl.stream(torch.sin, [x])))([torch.ones(2)])


NOTHING: Any = 3


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fl.stream(NOTHING, [1]), "takes a function"),
        (lambda: fl.stream(torch.sin, [1], width=0), "at least 1"),
        (lambda: fl.stream(torch.sin, NOTHING), "an iterable for each"),
        (lambda: fl.stream(torch.sin), "at least one iterable"),
        (lambda: fl.stream(torch.sin, [1], errors=NOTHING), '"raise" or "return"'),
    ],
)
def test_what_is_given_is_checked(make: Any, text: str) -> None:
    with pytest.raises(fl.errors.ArgumentError, match=text):
        make()
