"""`fl.batching`: batches without a function."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import foldloom as fl
from tests.law import assert_same, gradients
from tests.tracing.plain import batched, concrete, sequences, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.ByAgenda(), fl.OneByOne()])
def test_batching_without_a_function(scheduler: fl.Scheduler, waits: bool) -> None:
    linear, module = nn.Linear(3, 3), nn.GRU(3, 3)
    examples = sequences()
    parameters = [*linear.parameters(), *module.parameters()]

    def loss(s: torch.Tensor) -> torch.Tensor:
        states = module(linear(s))[0]
        if waits and states.sum().item() > 0:
            states = states * 2
        return (linear(s[0]).softmax(0) @ states[-1] - 1) ** 2

    expected = [loss(s) for s in examples]
    with fl.batching(scheduler=scheduler):
        losses = [loss(s) for s in examples]
    total = torch.stack(losses).sum()
    assert_same(total, torch.stack(expected).sum())
    assert_same(torch.autograd.grad(total, parameters), torch.autograd.grad(torch.stack(expected).sum(), parameters))


AFTERWARDS: dict[str, Callable[[list[Any], Any], Any]] = {
    "stack": lambda y, s: torch.stack(y),
    "sum": lambda y, s: sum(y),
    "operators": lambda y, s: (y[0] + y[1] * 2, 1 - y[2], torch.ones(3) * y[0], -y[0], y[0] @ y[1]),
    "items": lambda y, s: (y[0].sum().item(), float(y[1][0].detach()), y[2].tolist(), bool(y[0][0] > y[1][0])),
    "indexing": lambda y, s: (y[0][1], y[0][-1], y[0][0], y[0][1:], y[0][torch.tensor([0, 2])], y[0][y[0] > 0]),
    "rows": lambda y, s: (s[1], s[1:], list(s)[-1], s.flip(0), s.unbind()[1], torch.cat([s, s]), s[::2]),
    "rows as a whole": lambda y, s: (s.sum(0), s.softmax(0), s + 1, s @ s.t(), s.T, s.mean()),
    "functions": lambda y, s: (functional.relu(y[0]), torch.cat(y), y[0].view(3, 1), y[0].chunk(3)[1], y[0].long()),
    "copies": lambda y, s: (y[0].clone().mul_(2), copy.deepcopy(y[1].detach())),
    "format": lambda y, s: f"{y[0].sum():.4f} {y[1].detach()}",
    "python": lambda y, s: (len(y[0]), max(y[0]), [*y[1]], 0.5 in y[2], y[0].shape, s.shape),
    "numpy": lambda y, s: (y[0].detach().numpy().sum().item(), s.detach().numpy().shape),
}  # fmt: skip


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_comes_out_of_batching_is_used_afterwards(name: str, waits: bool) -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()

    def compute() -> Any:
        results = [linear(x).tanh() for x in inputs]
        if waits:
            results[0].sum().item()
        return results, torch.stack([linear(x) for x in inputs])

    sources = [*linear.parameters(), *inputs]
    expected = AFTERWARDS[name](*compute())
    actual = concrete(AFTERWARDS[name](*batched(compute)))
    assert_same(actual, expected)
    assert_same(gradients(actual, sources), gradients(expected, sources))
    if not isinstance(expected, torch.Tensor):
        assert [a for a in actual if not is_tensors(a)] == [e for e in expected if not is_tensors(e)]


def is_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple)) and is_tensors((*value, None)[0]))


def test_backward_of_what_comes_out_of_batching() -> None:
    linear = nn.Linear(3, 1)
    inputs = vectors()
    with fl.batching():
        losses = [linear(x).sum() for x in inputs]
    losses[0].backward(retain_graph=True)
    torch.stack(losses[1:]).sum().backward()
    assert_same(linear.weight.grad, torch.stack(inputs).sum(0, keepdim=True))


def test_what_comes_out_of_one_batching_goes_into_another() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    sources = [*linear.parameters(), *inputs]
    first = batched(lambda: [linear(x) for x in inputs])
    second = batched(lambda: [linear(state.tanh()) + x for state, x in zip(first, inputs, strict=True)])
    expected = [linear(linear(x).tanh()) + x for x in inputs]
    assert_same(concrete(second), expected)
    assert_same(gradients(concrete(second), sources), gradients(expected, sources))
    first = batched(lambda: [linear(x) for x in inputs])
    results = fl.batch(lambda x, number: x * first[number].tanh())(inputs, [0, 1, 2])
    assert_same(results, [x * linear(x).tanh() for x in inputs])


def test_an_exception_within_batching() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    results = []
    with pytest.raises(KeyError), fl.batching():  # noqa: PT012
        results += [linear(x) for x in inputs]
        raise KeyError
    assert_same(concrete(results), [linear(x) for x in inputs])
    assert type(linear(inputs[0])) is torch.Tensor, "what comes afterwards is computed at once"


def test_batching_within_a_batch_says_that_it_adds_nothing() -> None:
    with pytest.raises(fl.errors.RecordingError, match="leave out the inner one"):
        fl.batch(lambda x: batched(lambda: x * 2))(vectors())


def test_a_batch_within_batching() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    results = batched(lambda: fl.batch(lambda x: linear(x) * 2 if linear(x).sum() > 0 else linear(x))(inputs))
    assert_same(concrete(results), [linear(x) * 2 if linear(x).sum() > 0 else linear(x) for x in inputs])
