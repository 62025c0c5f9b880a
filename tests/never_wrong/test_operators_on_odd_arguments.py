"""Operators on arguments without elements, with ties, and with chances of nothing or all: found by `python -m benchmarks operators --odd`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import foldloom as fl
from tests.never_wrong.checking import assert_same

SCALES = torch.arange(1.0, 7.0, dtype=torch.float64)


def numbers(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


CASES: dict[str, tuple[Callable[[torch.Tensor], Any], Sequence[torch.Tensor]]] = {
    "cross entropy of no classes": (lambda x: functional.cross_entropy(x, x.detach().exp()), numbers((2, 3), (2, 0), (2, 3))),
    "cross entropy of no rows": (lambda x: functional.cross_entropy(x, x.detach().exp()), numbers((2, 3), (0, 3), (2, 3))),
    "mean of nothing": (lambda x: (x.mean(), x.sum(), x.sum(0), x.mean(0)), numbers((2, 3), (0, 3), (2, 0))),
    "average pools of no channels": (
        lambda x: functional.adaptive_avg_pool1d(x, 5),
        numbers((8, 8), (0, 8), (8, 8)),
    ),
    "largest of no channels": (lambda x: functional.adaptive_max_pool2d(x, 3), numbers((2, 4, 4), (0, 4, 4), (2, 4, 4))),
    "pools of no channels in space": (lambda x: functional.adaptive_avg_pool3d(x, 2), numbers((2, 4, 4, 4), (0, 4, 4, 4))),
    "groups of no rows": (lambda x: functional.group_norm(x, 2, SCALES, SCALES), numbers((1, 6, 3), (0, 6, 3), (2, 6, 3))),
    "groups of no columns": (lambda x: functional.group_norm(x, 2, SCALES, SCALES), numbers((1, 6, 3), (1, 6, 0))),
    "repeated rows of nothing": (lambda x: x.repeat_interleave(2, dim=0), numbers((3, 1), (0, 1), (3, 1))),
    "joined with nothing": (lambda x: torch.cat([x.new_zeros(0, 3), x]), numbers((2, 3), (0, 3), (1, 3))),
    "ties": (lambda x: (x.round().amax(0), x.round().sort(0).values, x.round().median(0).values), numbers((5, 2), (4, 2))),
    "dropout of nothing": (lambda x: functional.dropout(x, 0.0), numbers((5, 2), (0, 2))),
    "dropout of all": (lambda x: functional.dropout(x, 1.0), numbers((5, 2), (0, 2))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.ByAgenda()], ids=["by depth", "by agenda"])
@pytest.mark.parametrize("name", CASES)
def test_odd_arguments(name: str, scheduler: Any) -> None:
    function, given = CASES[name]

    def run(of_all: Callable[[Sequence[torch.Tensor]], Any]) -> tuple[Any, list[Any]]:
        sources = [tensor.clone().requires_grad_() for tensor in given]
        results = of_all(sources)
        first = [result[0] if isinstance(result, tuple) else result for result in results]
        total = torch.stack([tensor.sum() for tensor in first]).sum()
        return results, list(torch.autograd.grad(total, sources, allow_unused=True))

    expected = run(lambda xs: [function(x) for x in xs])
    assert_same(run(lambda xs: fl.batch(function, scheduler=scheduler)(xs)), expected)
