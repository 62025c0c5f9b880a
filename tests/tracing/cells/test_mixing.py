"""Cells and operations in one program."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.law import assert_same, gradients
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import batched, concrete, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)
        self.merge = Merge()

    def forward(self, tree: Any) -> torch.Tensor:
        if isinstance(tree, int):
            return self.table(torch.tensor(tree))
        return self.merge(self(tree[0]), self(tree[1]))


class Merge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(torch.cat([left, right], -1))) + left * right


TREES: list[Any] = [((1, 2), (3, 4)), 5, ((1, (2, (3, 4))), 8), (0, 0)]


@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.ByAgenda(), fl.OneByOne()])
def test_a_module_named_as_a_cell(scheduler: fl.Scheduler) -> None:
    model = Tree()
    sources = list(model.parameters())
    expected = fl.one_by_one(model)(TREES)
    for cells in ([], [model.merge], [model.merge, model.table]):
        actual = fl.batch(model, scheduler=scheduler, cells=cells)(TREES)
        assert_same(actual, expected)
        assert_same(gradients(actual, sources), gradients(expected, sources))


def test_a_module_named_as_a_cell_takes_fewer_steps() -> None:
    model = Tree()
    counts = []

    def counted(planned: Any, *args: Any, **kwargs: Any) -> Any:
        counts.append(planned.statistics().steps)
        return execute(planned, *args, **kwargs)

    module = sys.modules[fl.batch.__module__]
    execute = module.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "execute", counted)
        fl.batch(model)(TREES)
        fl.batch(model, cells=[model.merge])(TREES)
    assert counts[1] < counts[0]
    assert counts[1] == 1 + 4, "the leaves, and the levels of the deepest tree"


def test_cells_and_operations_in_one_program() -> None:
    double = fl.cell(lambda x: x * 2)
    shrink = fl.cell(nn.Linear(3, 3))

    def function(x: torch.Tensor, times: int) -> Any:
        for _ in range(times):
            x = shrink(double(x).tanh() + x[0]) * x.sum()
        pair = torch.stack([x, double(x)])
        return pair.softmax(0), double(pair[1]), double(3), x.sum() + double(x.sum())

    inputs = vectors()
    check_on_the_fly(function, inputs, [1, 3, 2], sources=[*shrink.parameters(), *inputs])


def test_cells_within_batching() -> None:
    model = Tree()
    results = batched(lambda: [model(tree) for tree in TREES], cells=[model.merge])
    assert_same(concrete(results), fl.one_by_one(model)(TREES))
