"""The static graph under torch.compile: one graph, forward and backward, whatever the shapes."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import foldloom as fl
from foldloom import blocks as fb
from tests.exporting.programs import EXPORTED, Exported

ATOL = 1e-10


def gradients(loss: torch.Tensor, model: nn.Module) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if grad is None else grad for p, grad in zip(parameters, found, strict=True)]


def total(results: Any) -> torch.Tensor:
    """All tensors of a result, squared and summed."""
    if isinstance(results, torch.Tensor):
        return results.square().sum()
    items = results.values() if isinstance(results, dict) else results if isinstance(results, (list, tuple)) else ()
    return sum([total(item) for item in items], torch.zeros(()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, element: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.tanh(self.linear(torch.cat((element, state), 1)))
        return state, state


def two_loops() -> fb.Model:
    """One sequence along another: a loop that begins with what needs no gradient, and a loop that begins with what the first has made."""
    states = [fb.RNN(Recurrent(), initial_state=fb.Zeros(3)) >> fb.GetItem(0) for _ in range(2)]
    return fb.compile(fb.Map(fb.Vector(3)) >> states[0] >> states[1])


COMPILED = {
    "binary Tree-LSTM": EXPORTED["binary Tree-LSTM"],
    "two loops": Exported(two_loops, EXPORTED["feed-forward attention"].example),
}


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler: g++")


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("binary Tree-LSTM", "aot_eager"),
        ("two loops", "aot_eager"),
        pytest.param("two loops", "inductor", marks=needs_compiler),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_compiled_once_for_all_shapes(name: str, backend: str) -> None:
    torch._dynamo.reset()
    model = COMPILED[name].make().double()
    static = fl.static_model(model)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(static.graph, backend=counter, fullgraph=True, dynamic=True)
    graphs = 0
    for seed, count in enumerate((1, 7, 2, 30)):
        examples = COMPILED[name].examples(count, seed)
        batch = static.batch(examples)
        found = total(batch.results(compiled(*batch.tensors)))
        expected = total([model.one_example(example) for example in examples])
        torch.testing.assert_close(found, expected, atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(gradients(found, model), gradients(expected, model), atol=ATOL, rtol=ATOL)
        graphs = graphs or counter.frame_count
        assert counter.frame_count == graphs, "it was compiled again"


class Derived(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t()


def test_gradients_reach_weights_that_others_are_computed_from() -> None:
    """`weight.t()` is computed from a weight once for a batch, but has to be inside the graph."""
    torch._dynamo.reset()
    model, examples = Derived(), [torch.randn(3), torch.randn(3)]
    static = fl.static_model(model, examples)
    batch = static.batch(examples)
    compiled = torch.compile(static.graph, backend="aot_eager", fullgraph=True, dynamic=True)
    (found,) = gradients(total(batch.results(compiled(*batch.tensors))), model)
    (expected,) = gradients(total([model(example) for example in examples]), model)
    torch.testing.assert_close(found, expected)
    assert found.abs().sum() > 0


def test_the_graph_has_the_models_own_weights() -> None:
    model = fb.compile(fb.Vector(2) >> nn.Linear(2, 3))
    static = fl.static_model(model)
    assert {id(weight) for weight in static.graph.parameters()} == {id(weight) for weight in model.parameters()}
