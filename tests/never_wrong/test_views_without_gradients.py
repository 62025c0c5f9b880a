"""Views made within `torch.no_grad()` require grad as what they are views of does, and no gradient flows through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.never_wrong.checking import check, vectors

WEIGHT = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
TABLE = nn.Embedding(4, 3, dtype=torch.float64)

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "first row": lambda rows: rows[0],
    "another row": lambda rows: rows[1],
    "slice": lambda rows: rows[:2],
    "view": lambda rows: rows.view(-1),
    "transposed": lambda rows: rows.t(),
    "unbound": lambda rows: rows.unbind(0)[1],
    "iterated": lambda rows: list(rows)[2],
    "columns": lambda rows: rows.unbind(-1)[0],
    "split": lambda rows: rows.split(1)[1],
    "expanded": lambda rows: rows[0].expand(3, 3),
    "diagonal": lambda rows: rows.diagonal(),
    "reshaped": lambda rows: rows.reshape(-1),
    "view of a view": lambda rows: rows.view(-1)[1:],
    "no view, reshaped": lambda rows: rows.t().reshape(-1),
    "no view, joined": lambda rows: torch.stack([rows[0], rows[1]]),
    "no view, largest": lambda rows: rows.max(0).values,
    "detached": lambda rows: rows.detach(),
    "data": lambda rows: rows.data,
}

BASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "given": lambda x: x,
    "computed": lambda x: x * 2,
    "computed from weights": lambda x: WEIGHT * 2,
    "looked up": lambda x: TABLE(torch.tensor([0, 1, 2])),
    "stacked": lambda x: torch.stack([x[0], x[1], x[2]]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("base", BASES)
def test_view(base: str, view: str) -> None:
    def program(x: torch.Tensor) -> Any:
        rows = BASES[base](x)
        with torch.no_grad():
            found = VIEWS[view](rows)
            inside = found.requires_grad, found.is_leaf, found.grad_fn is None
        used = found * 2
        return inside, found.requires_grad, used.requires_grad, used.is_leaf, found, used

    xs = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    check(program, xs, sources=[*xs, WEIGHT, TABLE.weight])


def test_result_that_is_all_there_is() -> None:
    """Nothing else in the batch requires grad."""

    def program(x: torch.Tensor) -> Any:
        with torch.no_grad():
            row = (WEIGHT * x)[0]
        return (row * 2).sum()

    check(program, [torch.ones(3, dtype=torch.float64)] * 2, sources=[WEIGHT])


def test_beside_what_has_gradients() -> None:
    def program(x: torch.Tensor) -> Any:
        scores = torch.tanh(WEIGHT @ x)
        with torch.no_grad():
            best = scores[1]
            if best.sum() > 0:
                best = best * 2
        return best, best + scores[0], best.requires_grad

    xs = vectors(4)
    check(program, xs, sources=[*xs, WEIGHT])


def test_views_of_what_becomes_a_leaf() -> None:
    def program(x: torch.Tensor) -> Any:
        base = x * 2
        first, second, third = base
        rest, column, plain = base[1:], base.view(3, 1)[0], base.detach()
        used = second * 2
        base.requires_grad_()
        found = [first, second, third, rest, column, plain, used]
        return [(value.requires_grad, value.is_leaf) for value in found], second, rest * 2, base * 2

    check(program, [torch.randn(3, dtype=torch.float64) for _ in range(3)])
