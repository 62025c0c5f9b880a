"""Finding 16: what is computed from weights alone is each example's own all the same."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import Program, check_program, linear, steps_run, vectors

W = nn.Parameter(torch.randn(3, dtype=torch.float64))
TABLE = nn.Embedding(4, 3, dtype=torch.float64)
LAYER = linear()
BUFFER = torch.randn(3, dtype=torch.float64)
INPUTS = [torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in ([1, 1, 1], [0, 1, 0], [2, 0, 1.0])]


def place_set(x: torch.Tensor) -> Any:
    p = W.softmax(0)
    if x.sum() > 1.8:
        p = p.clone()
        p[0] = 0
    return p * x


def place_set_without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        p = W.softmax(0)
        if x.sum() > 1.8:
            p[0] = 0
        return p * x.detach()


def place_set_in_place(x: torch.Tensor) -> Any:
    p = W * 2
    if x.sum() > 1.8:
        p[0] = 0
    return p * x


def added_in_place(x: torch.Tensor) -> Any:
    p = W * 2
    p += x
    return p


def multiplied_after_a_wait(x: torch.Tensor) -> Any:
    p = W * 2
    if x.sum() > 1.8:
        p.mul_(3)
    return p + x


def view_of_derived(x: torch.Tensor) -> Any:
    p = W * 2
    q = p[1:]
    if x.sum() > 1.8:
        q.zero_()
    return p * x


def embedded_constant(x: torch.Tensor) -> Any:
    start = TABLE(torch.tensor(0))
    if x.sum() > 1.8:
        start[1] = 5.0
    return start * x


def embedded_without_waiting(x: torch.Tensor) -> Any:
    start = TABLE(torch.tensor(0))
    start += x
    return start


def made_of_a_buffer(x: torch.Tensor) -> Any:
    p = BUFFER * 2
    if x.sum() > 1.8:
        p[0] = 0
    return p * x


def returned(x: torch.Tensor) -> Any:
    return W * 2


def returned_with_others(x: torch.Tensor) -> Any:
    p = W.softmax(0)
    return p, p * x, W.exp()


def detached_in_place(x: torch.Tensor) -> Any:
    p = W * 2
    if x.sum() > 1.8:
        p.detach_()
    return p * x


def filled_mask(x: torch.Tensor) -> Any:
    scores = W * 2
    scores[x > 0] = 0
    return scores


def initial_state(x: torch.Tensor) -> Any:
    """A learned first state, changed as a memory is."""
    memory = W.expand(2, 3).clone()
    memory[0] = x
    return memory * 2


def constant_made_inside(x: torch.Tensor) -> Any:
    zeros = torch.zeros(3, dtype=torch.float64)
    if x.sum() > 1.8:
        zeros[0] = 1
    return zeros + x


def constant_without_waiting(x: torch.Tensor) -> Any:
    ones = torch.ones(3, dtype=torch.float64)
    ones[1] = x[0]
    return ones


def unused_derived(x: torch.Tensor) -> Any:
    return (W * 0).sqrt() if x.sum() > 100 else x * W


def product_of_weights(x: torch.Tensor) -> Any:
    return (LAYER.weight @ LAYER.weight.T) @ x + LAYER.weight.norm()


def asked_of_weights(x: torch.Tensor) -> Any:
    return x * 2 if LAYER.weight.norm() > 0.1 else x


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    function.__name__: function
    for function in (
        place_set,
        place_set_without_gradients,
        place_set_in_place,
        added_in_place,
        multiplied_after_a_wait,
        view_of_derived,
        embedded_constant,
        embedded_without_waiting,
        made_of_a_buffer,
        returned,
        returned_with_others,
        detached_in_place,
        filled_mask,
        initial_state,
        constant_made_inside,
        constant_without_waiting,
        unused_derived,
        product_of_weights,
        asked_of_weights,
    )
}


@pytest.mark.parametrize(
    "name",
    list(PROGRAMS),
)
def test_derived_weights(name: str) -> None:
    def build() -> Program:
        sources = [*INPUTS, W, TABLE.weight, *LAYER.parameters()]
        left = [W, TABLE.weight, BUFFER]
        return Program(PROGRAMS[name], [INPUTS], sources, lambda: [value.detach().clone() for value in left])

    check_program(build)


def test_results_made_of_weights_alone_are_tensors_of_their_own() -> None:
    first, second = fl.batch(lambda x: (W * 2).detach())(INPUTS[:2])
    first.zero_()
    assert second.abs().sum() > 0


def test_what_is_made_of_weights_alone_is_computed_once() -> None:
    inputs = vectors(8)
    assert steps_run(lambda x: W.softmax(0).exp() * x, inputs) <= 3


def test_names_of_long_computations_from_weights_stay_short() -> None:
    """Written out, the name of the last one would have 2 ** 60 parts."""

    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            p: torch.Tensor = self.start
            for _ in range(60):
                p = torch.tanh(p) + p
            return x + p

    model = Long()
    recording = fl.record(model, INPUTS[0].detach())
    kept = pickle.loads(pickle.dumps(recording))
    for result in (fl.batch(model)(INPUTS[:1]), fl.batch(model).run(fl.plan([kept]))):
        torch.testing.assert_close(result[0], model(INPUTS[0]))
    assert max(len(repr(op.shared)) for op in recording.graph.ops) < 200
