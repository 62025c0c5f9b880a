"""What calls read is as it was when they were made, whatever changes before they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_a_given_tensor_that_changes_before_it_is_read() -> None:
    def function(x: torch.Tensor) -> Any:
        positions = torch.arange(3.0)
        y = x * positions
        positions.add_(1)
        return y, x * positions

    inputs = [x.detach() for x in vectors()]
    assert_same(fl.batch(function)(inputs), fl.one_by_one(function)(inputs))
    with pytest.raises(fl.errors.ArgumentError, match="changed in place after"):
        fl.record(function, inputs[0])


_weight = nn.Parameter(torch.ones(3, dtype=torch.float64))


def _changed_after(use: Callable[[torch.Tensor], Any], waits: bool = False) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        y = use(x)
        if waits:
            y.sum().item()
        with torch.no_grad():
            for tensor in (_weight, _changing.weight, _changing.scale, _double, _buffer):
                tensor.fill_(2.0)
        return y

    return function


class Changing(nn.Linear):
    """A cell with a buffer."""

    def __init__(self) -> None:
        super().__init__(3, 3, dtype=torch.float64)
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


_changing, _linear_changing = Changing(), nn.Linear(3, 3, dtype=torch.float64)


_linear_changing.weight = _changing.weight


_changing_cell = fl.cell(_changing)
_double, _buffer = torch.ones(3, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)


CHANGED: dict[str, Callable[[torch.Tensor], Any]] = {
    "a weight": lambda x: x * _weight,
    "a weight by which another is derived": lambda x: x * (_weight * 2),
    "a weight of a module": lambda x: _linear_changing(x),
    "a buffer of a cell": lambda x: _changing_cell(x),
    "a table for all": lambda x: x @ _double,
    "a vector for all": lambda x: x * _buffer,
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("name", CHANGED)
def test_what_calls_read_may_change_before_they_run(name: str, waits: bool) -> None:
    found: list[Any] = []
    inputs = vectors()
    for batch in (fl.one_by_one, fl.batch):
        with torch.no_grad():
            for tensor in (_weight, _changing.weight, _changing.scale, _double, _buffer):
                tensor.fill_(1.0)
        found.append(batch(_changed_after(CHANGED[name], waits))(inputs))
    assert_same(found[1], found[0])


def test_weights_may_change_before_they_are_met_and_after_the_batch() -> None:
    inputs = vectors()
    with torch.no_grad():
        _weight.fill_(3.0)
    check_on_the_fly(lambda x: x * _weight, inputs, sources=inputs)
    with torch.no_grad():
        _weight.fill_(4.0)
    assert_same(fl.batch(lambda x: x * _weight)(inputs), [x * 4 for x in inputs])
