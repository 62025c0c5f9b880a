"""What `fl.explain` says of automatic cells, and what they cost."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

import foldloom as fl
from examples import tree_lstm
from examples.tree_lstm import TreeLSTM
from foldloom.tracing import fast_path

pytestmark = pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts")


@pytest.fixture
def trees() -> tuple[TreeLSTM, list[object]]:
    """A model whose code is new: what other tests have had captured of it does not count."""
    torch.manual_seed(0)
    anew = importlib.util.module_from_spec(tree_lstm.__spec__)
    tree_lstm.__spec__.loader.exec_module(anew)
    return anew.TreeLSTM(), list(tree_lstm.made_examples(8, 0))


def test_cells_and_reasons_are_named(trees: tuple[TreeLSTM, list[object]]) -> None:
    model, examples = trees
    fl.batch(model)(examples)
    text = str(fl.explain(model, examples))
    assert "automatic cell Merge.forward: 15 operations as one" in text
    assert "automatic cell TreeLSTM.forward.<locals>.visit (lines 54 to 59): 11 operations as one" in text
    assert "automatic cell TreeLSTM.forward.<locals>.visit (line 59): 2 operations as one" in text
    assert "no automatic cell: TreeLSTM.forward.<locals>.visit" in text
    assert ", because " in text


def test_a_batch_takes_fewer_nodes_and_steps(trees: tuple[TreeLSTM, list[object]]) -> None:
    model, examples = trees
    counts = {}
    for is_on in (True, False):
        for _ in range(2):  # what is captured in the first batch is a cell in all of the second
            with fl.profile() as profile:
                fl.batch(model, automatic_cells=is_on)(examples)
        counts[is_on] = sum(len(run.plan.steps) for run in profile.runs)
    assert counts[True] * 3 < counts[False]


def test_python_does_not_run_again() -> None:
    calls = 0

    def squashed(x: Tensor) -> Tensor:
        return torch.tanh(x * 2) + 1

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return squashed(x)

    for _ in range(3):
        fl.batch(counted)([torch.ones(2)] * 5)
    assert calls == 15  # what writes to something that outlives the call is no cell
    (trace,) = fast_path.automatic.traces_of(squashed.__code__)
    assert trace.calls >= 12


def test_each_layer_of_a_model_has_a_trace() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.outer(torch.relu(self.inner(x)))

    layers = [Layer() for _ in range(8)]

    def through(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x)
        return x

    xs = [torch.randn(3) for _ in range(6)]
    for _ in range(2):
        results = fl.batch(through)(xs)
    torch.testing.assert_close(results, [through(x) for x in xs])
    assert len(fast_path.automatic.traces_of(Layer.forward.__code__)) == 8
