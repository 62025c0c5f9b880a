"""What a batch holds is freed when its results are dropped."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.tracing.recording.recorder import Recorder
from tests.tracing.plain import flat, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


@contextmanager
def recorders() -> Iterator[list[weakref.ref[Recorder]]]:
    """The recorders that are made within, with the garbage collector at rest."""
    made: list[weakref.ref[Recorder]] = []
    initialise = Recorder.__init__

    def noted(self: Recorder, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        made.append(weakref.ref(self))

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Recorder, "__init__", noted)
            yield made
    finally:
        gc.enable()


_linear = nn.Linear(3, 3, dtype=torch.float64)
_lstm = nn.LSTM(3, 2, dtype=torch.float64)


HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "operations": lambda x: (x * 2).tanh(),
    "modules": lambda x: _linear(x).sum(),
    "a recurrent module": lambda x: _lstm(torch.stack([x, x * 2]))[0],
    "values on demand": lambda x: x * 2 if (x * 3).sum() > 0 else x * 4,
    "changes in place": lambda x: (x * 2).add_(1),
    "rows": lambda x: torch.stack([x, x * 2]).softmax(0).sum(0),
    "a batch inside": lambda x: sum(fl.batch(lambda y: y * 2)(list(x))),
    "views": lambda x: (x * 2).view(3, 1) * 2,
    "slices": lambda x: (x * 2)[1:] * 2,
    "views and values on demand": lambda x: (x * 2).view(3, 1) * 2 if (x * 3).sum() > 0 else x * 4,
}


@pytest.mark.parametrize("name", HOLDS)
def test_everything_is_freed_when_the_results_are_dropped(name: str) -> None:
    function = HOLDS[name]
    inputs = vectors()
    fl.batch(function)(inputs)  # what is made once for each signature stays
    with recorders() as made:
        results = fl.batch(function)(inputs)
        kept = weakref.ref(next(iter(flat([[r] for r in results]))))
        del results
        assert len(made) == 1
        assert made[0]() is None
        assert kept() is None


@pytest.mark.parametrize("waits", [True, False])
def test_batching_is_freed_when_its_results_are_dropped(waits: bool) -> None:
    inputs = vectors()

    def run() -> None:
        with fl.batching():
            losses = [_linear(x).tanh().sum() for x in inputs]
            if waits:
                losses[0].item()
        torch.stack(losses).sum().backward()

    run()
    with recorders() as made:
        run()
        assert made[0]() is None


def test_a_batch_that_failed_is_freed() -> None:
    inputs = vectors()

    def run() -> None:
        with pytest.raises(ZeroDivisionError):
            fl.batch(lambda x: 1 // int((x * 0).sum().item()))(inputs)

    run()
    with recorders() as made:
        run()
        assert made[0]() is None
