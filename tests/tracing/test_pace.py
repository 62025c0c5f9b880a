"""Whether batching pays, told with a clock that the examples themselves move on."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import foldloom as fl
from foldloom.tracing import pace
from foldloom.tracing.scope import scope


class Clock:
    """An example takes so long in a batch, and so long by itself."""

    def __init__(self, together: float, alone: float) -> None:
        self.now, self._together, self._alone = 0.0, together, alone
        self.ways: list[str] = []

    def example(self) -> None:
        is_together = scope.recorder is not None
        self.now += self._together if is_together else self._alone
        self.ways.append("together" if is_together else "alone")

    def last(self, function: Any, count: int, calls: int = 1) -> set[str]:
        """How the examples of the last call ran."""
        for _ in range(calls):
            self.ways.clear()
            function(torch.arange(count, dtype=torch.float64))
        return set(self.ways)


@pytest.fixture
def clock_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(together: float, alone: float) -> Clock:
        clock = Clock(together, alone)
        monkeypatch.setattr(pace, "clock", lambda: clock.now)
        return clock

    return make


def squares(clock: Clock, **options: Any) -> Any:
    def square(x: Tensor) -> Tensor:
        clock.example()
        return x * x

    return fl.batch(square, **options)


@pytest.mark.parametrize("count", [1, 5, 16])
def test_what_does_not_pay_runs_one_by_one(clock_of: Any, count: int) -> None:
    clock = clock_of(together=5, alone=1)
    batched = squares(clock)
    assert clock.last(batched, count) == {"together"}
    assert clock.last(batched, count, calls=20) == {"alone"}
    with torch.no_grad():
        assert clock.last(batched, count) == {"together"}, "without gradients it is another matter"


@pytest.mark.parametrize("count", [1, 5, 16])
def test_what_pays_runs_in_batches(clock_of: Any, count: int) -> None:
    clock = clock_of(together=1, alone=1)
    assert clock.last(squares(clock), count, calls=20) == {"together"}


def test_a_few_small_examples_do_not_decide(clock_of: Any) -> None:
    """The last ones are by far the smallest: a whole batch is tried, and then batches go on."""
    clock = clock_of(together=1, alone=1)

    def square(x: Tensor) -> Tensor:
        clock.example()
        if scope.recorder is None and x >= 14:
            clock.now -= 0.9
        return x * x

    batched = fl.batch(square)
    assert clock.last(batched, 16, calls=5) == {"alone"}
    assert clock.last(batched, 16, calls=15) == {"together"}


def test_a_few_large_examples_do_not_decide(clock_of: Any) -> None:
    clock = clock_of(together=6, alone=4)

    def square(x: Tensor) -> Tensor:
        clock.example()
        if scope.recorder is None and x >= 14:
            clock.now += 3
        return x * x

    with torch.no_grad():
        assert clock.last(fl.batch(square), 16, calls=20) == {"alone"}


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize(
    ("together", "alone", "way"), [((1, 10), (3, 3), "alone"), ((5, 1), (1, 6), "together"), ((2, 2), (2, 1), "alone")]
)
@pytest.mark.parametrize("count", [1, 5, 16])
def test_backward_counts(
    clock_of: Any, count: int, together: tuple[int, int], alone: tuple[int, int], way: str, stack: bool
) -> None:
    """Each example takes so long forward and so long backward."""
    clock = clock_of(together[0], alone[0])

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, is_together: bool) -> Tensor:
            ctx.seconds = (together if is_together else alone)[1]
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Any:
            clock.now += ctx.seconds
            return grads[0] * 2, None

    def twice(x: Tensor) -> Tensor:
        clock.example()
        return Square.apply(x, scope.recorder is not None)

    batched = fl.batch(twice, stack=stack)
    for _ in range(25):
        clock.ways.clear()
        weight = torch.ones(count, dtype=torch.float64, requires_grad=True)
        results = batched(weight)
        (results if stack else torch.stack(results)).sum().backward()
        assert weight.grad is not None
        assert torch.equal(weight.grad, torch.full((count,), 2.0, dtype=torch.float64))
    assert set(clock.ways) == {way}


@pytest.mark.parametrize("stack", [False, True])
@pytest.mark.parametrize("count", [1, 5, 16])
def test_results_are_the_same_all_along(clock_of: Any, count: int, stack: bool) -> None:
    batched = squares(clock_of(together=5, alone=1), stack=stack)
    xs = torch.arange(count, dtype=torch.float64)
    for _ in range(25):
        results = batched(xs)
        assert isinstance(results, Tensor) is stack
        assert torch.equal(results if stack else torch.stack(results), xs * xs)


def test_random_numbers_are_drawn_in_batches(clock_of: Any) -> None:
    clock = clock_of(together=5, alone=1)

    def noisy(x: Tensor) -> Tensor:
        clock.example()
        return x + torch.rand(())

    assert clock.last(fl.batch(noisy), 1, calls=20) == {"together"}


def test_modes_do_not_outlast_an_example(clock_of: Any) -> None:
    clock = clock_of(together=5, alone=1)

    def switching(x: Tensor) -> Tensor:
        clock.example()
        torch.set_grad_enabled(bool(x < 2))
        return x * 2

    batched = fl.batch(switching)
    xs = torch.arange(4, dtype=torch.float64, requires_grad=True)
    for _ in range(25):
        assert [result.requires_grad for result in batched(xs)] == [True, True, False, False]
        assert torch.is_grad_enabled()
    assert set(clock.ways[-4:]) == {"alone"}


def test_errors_name_the_example(clock_of: Any) -> None:
    clock = clock_of(together=5, alone=1)

    def checked(x: Tensor) -> Tensor:
        clock.example()
        if x.dtype == torch.float32 and x > 2:
            raise ValueError("too large")
        return x

    batched = fl.batch(checked)
    assert clock.last(batched, 4, calls=20) == {"alone"}
    with pytest.raises(ValueError, match="too large") as caught:
        batched(torch.arange(4, dtype=torch.float32))
    assert caught.value.__notes__ == ["in example 3"]


def test_another_process_times_anew(clock_of: Any) -> None:
    clock = clock_of(together=5, alone=1)
    batched = squares(clock)
    assert clock.last(batched, 4, calls=20) == {"alone"}
    batched.paces = pickle.loads(pickle.dumps(batched.paces))
    assert clock.last(batched, 4) == {"together"}


def test_explain_says_so(clock_of: Any) -> None:
    clock = clock_of(together=5, alone=1)
    batched = squares(clock)
    assert "one by one, which" not in str(fl.explain(batched, list(torch.ones(16))))
    clock.last(batched, 16, calls=20)
    assert "batches of 16 to 31 run one by one with gradients, which was 4.4 times as fast" in str(
        fl.explain(batched, list(torch.ones(16)))
    )
