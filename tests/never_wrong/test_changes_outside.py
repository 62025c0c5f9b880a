"""Tensors that were made outside are changed in place as in a loop, with computed values and in the order of the examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.never_wrong.checking import Program, check_program, linear, vectors

Maker = Callable[[], tuple[Callable[..., Any], Any]]


def counted() -> tuple[Callable[..., Any], Any]:
    counts, layer = torch.zeros(5, dtype=torch.float64), linear()

    def function(x: torch.Tensor) -> Any:
        place = layer(x).argmax()
        counts[place] += 1
        return x * counts[place]

    return function, counts


def rows_of_a_table() -> tuple[Callable[..., Any], Any]:
    table, layer = torch.ones(3, 3, dtype=torch.float64), linear()

    def function(x: torch.Tensor) -> Any:
        table[x.argmax()] = layer(x).detach()
        return table.sum(0) * x

    return function, table


def remembered() -> tuple[Callable[..., Any], Any]:
    state, layer = torch.zeros(3, dtype=torch.float64), linear()

    def function(x: torch.Tensor) -> Any:
        h = torch.tanh(layer(x) + state)
        if h.sum() > 0:
            state.copy_(h.detach())
        return h

    return function, state


def views_follow() -> tuple[Callable[..., Any], Any]:
    def function(x: torch.Tensor) -> Any:
        column, rest = x.view(3, 1), x[1:]
        x += 1
        rest *= 2
        x.view(-1)[0] = 7
        return column, rest, x.sum()

    return function, None


def weights_of_a_module() -> tuple[Callable[..., Any], Any]:
    layer = nn.Linear(3, 3, dtype=torch.float64).requires_grad_(False)
    nn.init.ones_(layer.weight)

    def function(x: torch.Tensor) -> Any:
        before = layer(x)
        for weight in layer.parameters():
            weight.sub_(0.1 * before.sum())
        return before, layer(x)

    return function, layer.weight


def leaf() -> tuple[Callable[..., Any], Any]:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def function(x: torch.Tensor) -> Any:
        try:
            weight[0] += x.sum()
        except RuntimeError as error:
            return str(error)
        return None

    return function, weight


MAKERS: dict[str, Maker] = {
    maker.__name__: maker for maker in (counted, rows_of_a_table, remembered, views_follow, weights_of_a_module, leaf)
}


@pytest.mark.parametrize("name", list(MAKERS))
def test_changes_of_what_was_made_outside(name: str) -> None:
    def build() -> Program:
        torch.manual_seed(0)
        function, left = MAKERS[name]()
        inputs = [x.detach() for x in vectors(4)]
        return Program(function, [inputs], left=lambda: ([x.clone() for x in inputs], left))

    check_program(build)


def test_one_tensor_for_several_examples() -> None:
    def build() -> Program:
        x, layer = vectors(1)[0].detach(), linear()

        def function(x: torch.Tensor) -> Any:
            x.mul_(2)
            if layer(x).sum() > -100:
                x.add_(1)
            return x * 1

        return Program(function, [[x, x, x.clone()]], left=lambda: x.clone())

    check_program(build)


def refused_by_torch(x: torch.Tensor) -> Any:
    found = []
    for change in (_rows, _overlapping):
        try:
            change(x * 2)
        except RuntimeError as error:
            found.append(str(error))
    return found


def _rows(y: torch.Tensor) -> None:
    for row in y:
        row += 1


def _overlapping(y: torch.Tensor) -> None:
    y[:2] = y[1:]


def test_changes_that_torch_refuses() -> None:
    def build() -> Program:
        inputs = vectors()
        return Program(refused_by_torch, [inputs], inputs)

    check_program(build)
