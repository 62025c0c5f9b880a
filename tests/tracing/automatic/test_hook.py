"""The hook between caller and callee, and captures that fail: nobody else notices them."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import foldloom as fl
from foldloom.tracing import fast_path

pytestmark = [
    pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts"),
    pytest.mark.usefixtures("captured_at_once"),
]


def test_deep_recursion() -> None:
    """The hook takes stack of C's for each call, and steps aside before it is used up."""

    def deep(x: Tensor, depth: int) -> Tensor:
        return x if depth == 0 else deep(x, depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        (result,) = fl.batch(lambda x: deep(x, 50_000) * 2)([torch.ones(2)])
    finally:
        sys.setrecursionlimit(limit)
    assert result.tolist() == [2.0, 2.0]


def test_another_thread_runs_as_ever() -> None:
    """The hook is one of the whole process; what other threads call, it leaves alone."""
    calls: list[int] = []

    def squashed(x: Tensor) -> Tensor:
        return torch.tanh(x * 2) + 1

    def count() -> None:
        for number in range(2000):
            calls.append(len(squashed(torch.ones(2))) + number)

    thread = threading.Thread(target=count)
    thread.start()
    while thread.is_alive():
        results = fl.batch(lambda x: squashed(squashed(x)))([torch.zeros(2)] * 4)
        assert torch.equal(results[0], squashed(squashed(torch.zeros(2))))
    assert len(calls) == 2000


def test_a_debugger_sees_every_call() -> None:
    seen: list[str] = []

    def squashed(x: Tensor) -> Tensor:
        return torch.tanh(x * 2) + 1

    def program(x: Tensor) -> Tensor:
        return squashed(squashed(x))

    fl.batch(program)([torch.ones(2)] * 4)

    def trace(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.settrace(trace)
    try:
        fl.batch(program)([torch.ones(2)] * 4)
    finally:
        sys.settrace(None)
    assert seen.count("squashed") == 8


def test_inputs_of_a_capture_that_fails() -> None:
    """They are taken back with its nodes, and what the batch has recorded before is still run."""
    lstm = torch.nn.LSTM(3, 3)
    weight = torch.nn.Parameter(torch.randn(3, 3))

    def run(rows: int) -> Any:
        return lstm(weight[:rows])[0]

    with pytest.raises(RuntimeError, match="sequence length"):
        fl.batch(run)([0, 2])
    assert [len(found) for found in fl.batch(run)([1, 2])] == [1, 2]
