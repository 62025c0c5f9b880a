"""Exceptions in an example: raised with its number and the user's line, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import halved_until_small, no_fiber_left_behind, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


@pytest.mark.parametrize("waits", [True, False])
def test_an_exception_is_raised_with_the_example_and_the_users_line(waits: bool) -> None:
    ended = []

    def function(x: torch.Tensor, number: int) -> float:
        try:
            if waits:
                (x * 2).sum().item()
            if number == 2:
                raise KeyError("mine")
            return (x * 3).sum().item()
        finally:
            ended.append(number)

    with no_fiber_left_behind():
        with pytest.raises(KeyError, match="mine") as caught:
            fl.batch(function)(vectors(5), list(range(5)))
        assert caught.value.__notes__ == ["in example 2"]
        assert caught.traceback[-1].name == "function"
        assert ended == [0, 1, 2]  # a list that examples share: they run one at a time, as in a loop
        del caught


def test_a_wrong_shape_is_raised_with_the_example_and_the_users_line() -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x * 2 + (torch.zeros(5) if number == 1 else 0)

    with no_fiber_left_behind():
        with pytest.raises(RuntimeError) as caught:
            fl.batch(function)(vectors(), [0, 1, 2])
        notes = "\n".join(caught.value.__notes__)
        assert "in example 1" in notes
        assert "test_exceptions.py" in notes
        del caught


@pytest.mark.parametrize("waits", [True, False])
def test_a_failure_while_running_names_the_example(waits: bool) -> None:
    table = nn.Embedding(4, 3)

    def function(word: torch.Tensor) -> Any:
        vector = table(word * 2)
        return vector.sum().item() if waits else vector

    with no_fiber_left_behind(), pytest.raises(fl.errors.FoldloomError, match=r"example 1.*out of range"):
        fl.batch(function)([torch.tensor(word) for word in (0, 9, 1)])


def test_an_exception_that_the_example_catches() -> None:
    def function(x: torch.Tensor) -> Any:
        try:
            return x @ torch.zeros(5)
        except RuntimeError:
            return x * (1 if x.sum().item() > 0 else 2)

    inputs = vectors()
    check_on_the_fly(function, inputs, sources=inputs, records=False)


def test_a_batch_works_after_one_that_failed() -> None:
    inputs = vectors()
    with pytest.raises(ZeroDivisionError):
        fl.batch(lambda x: 1 // int((x * 0).sum().item()))(inputs)
    check_on_the_fly(halved_until_small, inputs, sources=inputs, records=False)


def _run_in_another_process(lines: str) -> subprocess.CompletedProcess[str]:
    code = "import torch, foldloom as fl\n" + textwrap.dedent(lines)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_an_error_of_torch_in_a_fiber_that_is_used_again() -> None:
    done = _run_in_another_process(
        """
        def fails(x):
            try:
                torch.dot(torch.zeros(3), torch.zeros(5))
            except RuntimeError:
                return x
        def deep(function, depth):
            return function() if not depth else max([0], key=lambda _: deep(function, depth - 1) and 0)
        deep(lambda: fl.batch(lambda x: (x * 2).sum().item())([torch.ones(3)] * 5), 9)
        fl.batch(fails)([torch.ones(3)] * 5)
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_wrong_shape_is_raised_and_not_printed() -> None:
    done = _run_in_another_process(
        """
        try:
            fl.batch(lambda x: x * 2 + torch.ones(5))([torch.ones(3)])
        except RuntimeError as error:
            print(error)
        """
    )
    assert "must match the size of tensor b (5)" in done.stdout
    assert done.stderr == ""
