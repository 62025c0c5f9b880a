"""The law: batched ≡ one by one, values and gradients, in float64, for every scheduler and executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch

import foldloom as fl
from foldloom.execution.backward import ledgers, weight_grads
from foldloom.planning.schedulers.base import check_schedule

SCHEDULERS = (fl.ByDepth(), fl.ByAgenda(), fl.OneByOne(), fl.ByDepth(largest_step=2))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors of a nested result, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, fl.Ragged):
        yield value.values
        yield value.lengths
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def loss_of(value: Any) -> torch.Tensor:
    """A number that depends on every differentiable tensor of a result, on each in another way."""
    total = torch.zeros((), dtype=torch.float64)
    for number, tensor in enumerate(tensors_in(value)):
        if tensor.is_floating_point():
            total = total + (tensor * torch.cos(torch.arange(tensor.numel()) + number).view(tensor.shape)).sum()
    return total


def gradients(value: Any, sources: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    loss = loss_of(value)
    if not loss.requires_grad:
        return [torch.zeros_like(source) for source in sources]
    # Examples may hang on a graph that is not theirs, such as an encoder of all of them: it must outlive this pass.
    found = torch.autograd.grad(loss, sources, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(s) if g is None else g.to_dense() for s, g in zip(sources, found, strict=True)]


def assert_same(actual: Any, expected: Any) -> None:
    actual_tensors, expected_tensors = list(tensors_in(actual)), list(tensors_in(expected))
    assert len(actual_tensors) == len(expected_tensors)
    for one, other in zip(actual_tensors, expected_tensors, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@contextmanager
def weight_grads_collected(enough_rows: int) -> Iterator[None]:
    """Collect the gradients of all weights, however small, in products of this many rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_grads, "LARGE_WEIGHT", 0)
        patch.setattr(weight_grads, "NARROW_STEP", 10**9)
        patch.setattr(ledgers, "ENOUGH_ROWS", enough_rows)
        yield


def check_law(
    function: Callable[..., Any], *columns: Sequence[Any], sources: Iterable[torch.Tensor] = (), stack: bool = False
) -> None:
    """Everything the law asks of one function on one batch."""
    sources = list(sources)
    expected = fl.one_by_one(function, stack=stack)(*columns)
    expected_grads = gradients(expected, sources)
    for scheduler in SCHEDULERS:
        batched = fl.batch(function, scheduler=scheduler, stack=stack)
        for enough_rows in (1, 5, 1_000_000):
            with weight_grads_collected(enough_rows):
                actual = batched(*columns)
            assert_same(actual, expected)
            assert_same(gradients(actual, sources), expected_grads)
        actual = batched(*columns)
        assert_same(gradients(actual, sources), expected_grads)
        with torch.no_grad():
            assert_same(batched(*columns), expected)
        recordings = [fl.record(function, *args) for args in zip(*columns, strict=True)]
        if recordings:
            planned = fl.plan(recordings, scheduler)
            planned.plan.check()
            for recording in recordings:
                check_schedule(recording.graph, scheduler.schedule(recording.graph))
            actual = batched.run(planned)
            assert_same(actual, expected)
            assert_same(gradients(actual, sources), expected_grads)
