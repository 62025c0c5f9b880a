"""Fibers whose rounds are counted, and every state of torch that a task may change."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from greenlet import getcurrent, greenlet
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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


def thread_state() -> tuple[Any, ...]:
    return tuple(TorchState.capture())


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


def greenlets() -> set[Any]:
    """All that there are. Whoever keeps the set keeps them: one that an earlier test's thread left behind may otherwise go at any time."""
    getcurrent()  # makes the one of the thread itself, if nobody has asked for it yet
    gc.collect()  # what earlier tests left behind
    return {found for found in gc.get_objects() if issubclass(type(found), greenlet)}
