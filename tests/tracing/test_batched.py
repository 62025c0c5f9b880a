"""The ends of the range: nothing, little, deep, and in several threads."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import sequences, vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_an_empty_batch() -> None:
    assert fl.batch(lambda x: x * 2)([]) == []


def test_sequences_without_elements() -> None:
    start = vector(3)

    def function(table: torch.Tensor) -> Any:
        total = sum(table, start * 2)
        return total, table.sum(0), table.softmax(0), torch.cat([table, total.unsqueeze(0)]), [row * 2 for row in table]

    tables = sequences(0, 2, 0, 3)
    check_on_the_fly(function, tables, sources=[start, *tables])


def test_examples_that_compute_nothing() -> None:
    given = vector(3)
    check_on_the_fly(lambda x: x if x else given, [0, 1, 2, 0], sources=[given])
    check_on_the_fly(lambda x: (None, "text", x, 3), vectors())


def test_deep_recursion() -> None:
    weight = nn.Parameter(torch.tensor(0.999))

    def deep(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if not depth else deep(x * weight, depth - 1) + 1

    inputs = vectors(2)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        check_on_the_fly(deep, inputs, [600, 400], sources=[weight, *inputs])
    finally:
        sys.setrecursionlimit(limit)


def test_threads_do_not_disturb_each_other() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors(4)
    expected = [linear(x) * 2 if x.sum() > 0 else linear(x).tanh() for x in inputs]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        torch.set_default_dtype(torch.float64)
        for _ in range(5):
            if number:
                found[number] = fl.batch(lambda x: linear(x) * 2 if x.sum() > 0 else linear(x).tanh())(inputs)
            else:
                found[number] = [linear(x) * 2 if x.sum() > 0 else linear(x).tanh() for x in inputs]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert_same(found[number], expected)
