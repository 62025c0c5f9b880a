"""Errors say what is wrong and what to write."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import vectors

TABLE = nn.Embedding(5, 3)
CELL = fl.cell(nn.Embedding(5, 3))
NUMBERS = [torch.tensor(n) for n in (1, 2, 9)]

LOOKUPS: dict[str, Callable[[Any], Any]] = {
    "module": lambda n: TABLE(n) * 2,
    "function": lambda n: F.embedding(n, TABLE.weight) * 2,
    "cell": lambda n: CELL(n) * 2,
    "cell with a number": lambda n: CELL(int(n)) * 2,
    "row": lambda n: TABLE.weight[n] * 2,
    "index_select": lambda n: TABLE.weight.index_select(0, n.view(1)) * 2,
    "computed": lambda n: TABLE(n * 1) * 2,
    "sentence": lambda n: TABLE(torch.stack([n, n])) * 2,
}


@pytest.mark.parametrize(
    "name",
    list(LOOKUPS),
)
def test_an_index_out_of_range_is_told_in_full(name: str) -> None:
    line = inspect.getsourcelines(LOOKUPS[name])[1]
    with pytest.raises((IndexError, RuntimeError, fl.errors.FoldloomError)) as caught:
        fl.batch(LOOKUPS[name])(NUMBERS)
    message = str(caught.value) + "\n".join(["", *getattr(caught.value, "__notes__", [])])
    assert re.search(r"\b9\b", message), f"the index: {message}"
    assert re.search(r"\b5\b", message), f"the table's size: {message}"
    assert "example 2" in message, message
    assert f"test_messages.py:{line}" in message, message


def says(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises((TypeError, ValueError, fl.errors.FoldloomError)) as caught:
        call()
    for word in words:
        assert re.search(word, str(caught.value)), str(caught.value)


def test_no_list() -> None:
    says(lambda: fl.batch(lambda x: x)(3), "list", r"\[")  # type: ignore[arg-type]


def test_no_argument() -> None:
    says(lambda: fl.batch(lambda x: x)(), "list|argument")


def test_lists_of_different_lengths() -> None:
    says(lambda: fl.batch(lambda x, y: x)([1, 2], [1]), r"\b2\b", r"\b1\b")


def test_scheduler_by_name() -> None:
    says(lambda: fl.batch(lambda x: x, scheduler="by agenda")(vectors()), r"fl\.ByAgenda\(\)|fl\.ByDepth\(\)")  # type: ignore[call-overload]


def test_scheduler_that_is_a_class() -> None:
    says(lambda: fl.batch(lambda x: x, scheduler=fl.ByAgenda)(vectors()), r"fl\.ByAgenda\(\)|ByAgenda\(\)")  # type: ignore[call-overload]


def test_scheduler_of_a_plan_by_name() -> None:
    recordings = fl.record_each(lambda x: x * 2, vectors())
    says(lambda: fl.plan(recordings, "by agenda"), r"fl\.ByAgenda\(\)|fl\.ByDepth\(\)")  # type: ignore[arg-type]


def test_plan_of_no_recordings() -> None:
    says(lambda: fl.plan([1, 2]), r"fl\.record")  # type: ignore[list-item]


def test_plan_of_one_recording() -> None:
    says(lambda: fl.plan(fl.record(lambda x: x * 2, vectors()[0])), "list|iterable")  # type: ignore[arg-type]


def test_plan_of_nothing() -> None:
    says(lambda: fl.plan(3), r"list|fl\.record")  # type: ignore[arg-type]


def test_run_of_no_plan() -> None:
    says(lambda: fl.batch(lambda x: x).run([1, 2]), r"fl\.plan")  # type: ignore[arg-type]


def test_batch_of_no_function() -> None:
    says(lambda: fl.batch([1, 2]), "function")  # type: ignore[call-overload]


def test_cell_of_no_function() -> None:
    says(lambda: fl.cell(3), "function|module")  # type: ignore[arg-type]


def test_stack_of_unlike_results() -> None:
    says(lambda: fl.batch(lambda x: x * 2, stack=True)([torch.ones(2), torch.ones(3)]), "stack|shape")
