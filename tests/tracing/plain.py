"""Small tensors, and what several tests of plain PyTorch need."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import foldloom as fl
from foldloom.tracing.fibers.tasks import Fiber
from foldloom.tracing.values.lazy_tensor import LazyTensor


def vector(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def vectors(count: int = 3, *shape: int) -> list[torch.Tensor]:
    return [vector(*(shape or (3,))) for _ in range(count)]


def sequences(*lengths: int, width: int = 3) -> list[torch.Tensor]:
    return [vector(length, width) for length in lengths or (2, 4, 1, 3)]


def flat(examples: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for example in examples for tensor in example]


MATRIX = torch.randn(3, 3, dtype=torch.float64)


def halved_until_small(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    rounds = 0
    while (x * x).sum() > 0.1:
        x = x * 0.7
        rounds += 1
    return x, rounds


@contextmanager
def no_fiber_left_behind() -> Iterator[None]:
    """No fiber is left afterwards."""
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if type(thing) is Fiber}
    yield
    gc.collect()
    left = [thing for thing in gc.get_objects() if type(thing) is Fiber and id(thing) not in before]
    assert not any(left)


def batched(function: Callable[[], Any], **settings: Any) -> Any:
    with fl.batching(**settings):
        return function()


def concrete(value: Any) -> Any:
    """Tensors for the values that are left after a batch: what any function of torch makes of them."""
    if type(value) in (tuple, list):
        return type(value)([concrete(item) for item in value])
    return torch.clone(value) if type(value) is LazyTensor else value  # type: ignore[arg-type]


LINEAR, OTHER_LINEAR = nn.Linear(3, 3, dtype=torch.float64), nn.Linear(3, 3, dtype=torch.float64)
