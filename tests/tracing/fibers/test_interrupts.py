"""Ctrl-C at any moment of a batch: it is a KeyboardInterrupt, and torch is as it was."""

from __future__ import annotations

import _thread
import gc
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.execution.interrupts import Interrupts, check_interrupts
from foldloom.tracing.fibers.torch_state import TorchState
from foldloom.tracing.scope import scope


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.wide = nn.Linear(4, 4), nn.Linear(128, 128)
        self.h: Any = None

    def forward(self, x: Any) -> Any:
        self.h = x
        for _ in range(3):
            with torch.no_grad():
                if self.lin(self.h).sum() > 0:
                    x = x * 0.5
            self.h = torch.tanh(self.lin(x))
        return self.h, self.wide(self.h.repeat(32))


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Programs that a shell starts in the background ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    # What is raised inside a callback of the collector is lost, and a testing library has one.
    callbacks, gc.callbacks[:] = gc.callbacks[:], []
    yield
    gc.callbacks[:] = callbacks
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def state_of(model: nn.Module) -> tuple[Any, ...]:
    return (
        tuple(TorchState.capture()), gc.isenabled(), scope.recorder, type(model.wide.weight), sorted(vars(model)),
        signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGALRM),
    )  # fmt: skip


def run_interrupted(batched: Any, xs: Any, after: float) -> str:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            batched(xs)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException as error:
        return repr(error)
    return "done"


def test_at_any_moment(alarm: None) -> None:
    model = Model()
    xs = [torch.randn(4) for _ in range(6)]
    batched = fl.batch(model)
    expected = [h for h, _ in batched(xs)]
    start = time.perf_counter()
    batched(xs)
    duration = time.perf_counter() - start
    before, draw = state_of(model), random.Random(0)
    seen: Counter[str] = Counter()
    for _ in range(250):
        seen[run_interrupted(batched, xs, draw.uniform(1e-6, duration))] += 1
        assert state_of(model) == before
    assert seen.keys() <= {"interrupted", "done"}
    assert seen["interrupted"] > 20
    # Functions may have become automatic cells meanwhile, and steps of other sizes round differently.
    torch.testing.assert_close([h for h, _ in batched(xs)], expected)


def test_interrupt_main() -> None:
    model = Model()
    before = state_of(model)

    def f(x: Any) -> Any:
        if model(x)[0].sum() > -100:
            _thread.interrupt_main()
        return model(x)[0]

    with pytest.raises(KeyboardInterrupt):
        fl.batch(f)([torch.randn(4)] * 3)
    assert state_of(model) == before


def test_handlers_wait_while_they_are_held() -> None:
    with Interrupts() as interrupts:
        _thread.interrupt_main()
        for _ in range(100):
            pass
        held = interrupts.held
        with pytest.raises(KeyboardInterrupt):
            check_interrupts()
    assert held
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_has_waited_comes_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        _thread.interrupt_main()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_the_program_sets_stays() -> None:
    before = signal.getsignal(signal.SIGINT)

    def handler(*_: object) -> None:
        pass

    def f(x: Any) -> Any:
        signal.signal(signal.SIGINT, handler)
        return x + 1 if x.sum() > 0 else x

    try:
        fl.batch(f)([torch.ones(2)] * 2)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone() -> None:
    seen: list[Any] = []

    def run() -> None:
        def f(x: Any) -> Any:
            seen.append(signal.getsignal(signal.SIGINT))
            return x

        fl.batch(f)([torch.ones(2)])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
