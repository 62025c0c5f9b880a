"""How a call is told from another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foldloom.tracing.scope import scope
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def _total(first: Any, rest: Any = None) -> torch.Tensor:
    return first[0] - first[1] if rest is None else first + 3 * rest[0]


def test_brackets_tell_calls_apart() -> None:
    """Where the brackets stand is part of a call, empty ones too."""

    def call(*args: Any) -> torch.Tensor:
        recorder = scope.recorder
        return _total(*args) if recorder is None else recorder.call_function(_total, args, None)

    def function(x: torch.Tensor) -> Any:
        y, ones = x * 2, torch.ones(2, 3) * x
        sums = ones.sum([]), ones.sum(()), ones.sum([0]), ones.sum(0), ones.sum((0, 1)), ones.sum(1)
        return call([x, y]), call(x, [y]), call((y, x)), call(x, (y,)), sums

    inputs = vectors()
    check_on_the_fly(lambda x: function(x * 1), inputs, sources=inputs)
