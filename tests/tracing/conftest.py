from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def nothing_hangs() -> Iterator[None]:
    """What waits for ever fails instead."""

    def give_up(*_: object) -> None:
        raise TimeoutError("the test took longer than two minutes")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
