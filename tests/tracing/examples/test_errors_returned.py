"""`fl.batch(f, errors="return")`: an example that raises ends alone, and everything else is as one by one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.tracing.plain import no_fiber_left_behind

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def bounded(rows: torch.Tensor) -> torch.Tensor:
    if bool((rows > 50).any()):
        raise ArithmeticError("too large")
    return rows * 2


class Walker(nn.Module):
    """A program that waits, branches, and fails in its own Python, in a cell or in an operation, as its example says."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.step = nn.Embedding(10, 3), nn.Linear(3, 3)
        self.bounded = fl.cell(bounded)
        self.seen: Any = None

    def forward(self, word: int, length: int, fails: str, at: int) -> Any:
        self.seen = word
        h = self.table(torch.tensor(word))
        scores = []
        for number in range(length):
            if number == at:
                if fails == "python":
                    raise KeyError(f"mine {word}")
                if fails == "operator":
                    h = h + self.table(torch.tensor(10 + word))
                if fails == "cell":
                    h = self.bounded(h + 100 * (1 + word))
            h = torch.tanh(self.step(h))
            scores.append(h.sum())
            if number % 2 and bool(h[0] > 0.9):
                break
        return {"h": h, "scores": scores, "seen": self.seen}


def examples(count: int, seed: int, *, length: int = 7) -> list[list[Any]]:
    draw = random.Random(seed)
    kinds = ("no", "no", "no", "python", "operator", "cell")
    rows = [
        (draw.randrange(10), draw.randrange(1, length), draw.choice(kinds), draw.randrange(length))
        for _ in range(count)
    ]
    return [list(column) for column in zip(*rows, strict=True)]


def check(function: Any, columns: list[list[Any]], parameters: Sequence[torch.Tensor], **how: Any) -> list[Any]:
    """The same results, errors and gradients as one by one; the results."""
    found = fl.batch(function, errors="return", **how)(*columns)
    expected = fl.one_by_one(function, errors="return")(*columns)
    losses = []
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert isinstance(one, Exception) == isinstance(other, Exception), number
        if isinstance(other, Exception):
            kind = type(other)
            assert isinstance(one, kind), (number, one, other)
            assert f"in example {number}" in one.__notes__
            assert any(__file__ in note for note in one.__notes__)
            if kind is KeyError:
                assert one.args == other.args
        else:
            torch.testing.assert_close(one, other)
            losses.append((sum(one["scores"]), sum(other["scores"])))
    gradients = [
        torch.autograd.grad(sum(side), parameters, allow_unused=True, retain_graph=True)
        for side in zip(*losses, strict=True)
    ]
    torch.testing.assert_close(*gradients)
    return found


@pytest.mark.parametrize("scheduler", [fl.ByAgenda(), fl.ByDepth(), fl.OneByOne()], ids=str)
@pytest.mark.parametrize("automatic", [True, False])
def test_examples_that_raise_end_alone(scheduler: Any, automatic: bool) -> None:
    model = Walker()
    kinds: set[type] = set()
    for seed in range(4):
        columns, weights = examples(24, seed), list(model.parameters())
        with no_fiber_left_behind():
            found = check(model, columns, weights, scheduler=scheduler, automatic_cells=automatic)
            kinds.update(cls for result in found if isinstance(result, Exception) for cls in type(result).__mro__)
            del found
    assert {KeyError, IndexError, ArithmeticError} <= kinds


def test_examples_that_never_wait() -> None:
    model = Walker()
    check(model, examples(24, 1, length=2), list(model.parameters()))


def test_an_operation_that_failed_before_the_program_raised() -> None:
    table = nn.Embedding(4, 3)

    def function(word: int) -> torch.Tensor:
        vector = table(torch.tensor(word))
        if word > 5:
            raise ValueError("later")
        return vector

    found = fl.batch(function, errors="return")([1, 9, 2])
    assert isinstance(found[1], IndexError)
    torch.testing.assert_close([found[0], found[2]], [table.weight[1], table.weight[2]])


def test_the_finally_of_an_example_whose_operation_fails_runs() -> None:
    table = nn.Embedding(4, 3)
    ended = []

    def function(word: int) -> float:
        try:
            return table(torch.tensor(word)).sum().item()
        finally:
            ended.append(word)

    found = fl.batch(function, errors="return")([1, 9, 2])
    assert isinstance(found[1], IndexError)
    assert sorted(ended) == [1, 2, 9]


def test_a_failure_that_the_example_catches_is_its_own_affair() -> None:
    table = nn.Embedding(4, 3)

    def function(word: int) -> Any:
        try:
            return table(torch.tensor(word)).sum().item()
        except IndexError:
            return "caught"

    found = fl.batch(function, errors="return")([1, 9, 2])
    assert found[1] == "caught"
    assert not any(isinstance(result, Exception) for result in found)


def test_inside_another_batch() -> None:
    table = nn.Embedding(4, 3)

    def inner(word: int) -> torch.Tensor:
        if word == 7:
            raise KeyError("mine")
        return table(torch.tensor(word))

    def outer(word: int) -> list[Any]:
        return fl.batch(inner, errors="return")([1, word, 2])

    for word, kind in ((7, KeyError), (9, IndexError)):
        for found in fl.batch(outer)([3, word])[1:]:
            assert isinstance(found[1], kind)
            assert "in example 1" in found[1].__notes__
            torch.testing.assert_close([found[0], found[2]], [table.weight[1], table.weight[2]])


def test_batches_that_run_one_by_one_because_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr("foldloom.tracing.pace.clock", lambda: next(clock))

    def function(x: torch.Tensor) -> torch.Tensor:
        return x / (1 // int(x.numel() - 1))

    batched = fl.batch(function, errors="return")
    inputs = [torch.ones(size) for size in (2, 1, 2)] * 8
    with torch.no_grad():
        for _ in range(12):
            found = batched(inputs)
            assert [isinstance(result, ZeroDivisionError) for result in found] == [False, True, False] * 8
            assert "in example 22" in found[22].__notes__


def test_what_is_of_all_examples_is_raised() -> None:
    """That examples have seen each other's changes says something of all results."""
    log: list[int] = []

    def note(where: list[int], word: int) -> None:
        where += [word]

    def function(word: int) -> float:
        total = (torch.ones(3) * word).sum().item()
        getattr(note, "__call__")(log, word)  # noqa: B004, B009 (so that the code does not show it)
        return total

    expected: Any = fl.one_by_one(function, errors="return")([1, 2, 3])
    try:
        found = fl.batch(function, errors="return")([1, 2, 3])
    except fl.errors.SharedStateError:
        return
    assert found == expected


def test_settings_that_do_not_go_together() -> None:
    with pytest.raises(fl.errors.ArgumentError, match="cannot be stacked"):
        fl.batch(lambda x: x, stack=True, errors="return")
    with pytest.raises(fl.errors.ArgumentError, match='"raise" or "return"'):
        fl.batch(lambda x: x, errors="ignore")  # type: ignore[call-overload]


def test_interrupts_are_not_kept() -> None:
    def function(word: int) -> int:
        if word == 2:
            raise KeyboardInterrupt
        return word

    with pytest.raises(KeyboardInterrupt):
        fl.batch(function, errors="return")([1, 2, 3])
