"""A batch that runs in parts: who waits for a value waits for what it is made of, and what is left runs with more of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from foldloom.errors import CellError, RecordingError
from foldloom.execution import engine
from foldloom.planning.plans import Plan
from foldloom.tracing.flushing import pending
from foldloom.views.asking import survey_of
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly

torch.manual_seed(0)
STEP, SCORE = nn.Linear(3, 3).double(), nn.Linear(3, 4).double()


def walk(state: torch.Tensor, most: int) -> tuple[torch.Tensor, int]:
    """Goes on until a state says so, and has a loss wherever it was."""
    losses = [F.cross_entropy(SCORE(state), torch.tensor(0))]
    while len(losses) < most and state.sum() < 10:
        state = torch.tanh(STEP(state)) + len(losses)
        losses.append(F.cross_entropy(SCORE(state), torch.tensor(len(losses) % 4)))
    return torch.stack(losses).sum(), len(losses)


def states(count: int) -> list[torch.Tensor]:
    return list(torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))


@contextmanager
def plans_of_parts() -> Iterator[list[Plan]]:
    plans: list[Plan] = []
    prepare = engine.prepare

    def watched(*args: Any) -> Any:
        planned = prepare(*args)
        planned.plan.check()
        plans.append(planned.plan)
        return planned

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "prepare", watched)
        yield plans


def steps(plans: list[Plan], label: str) -> list[int]:
    return [step.size for plan in plans for step in plan.steps if plan.ops[step.op].label == label]


def test_losses_that_nobody_waits_for_are_computed_together_at_the_end() -> None:
    with plans_of_parts() as plans:
        results = fl.batch(walk)(states(5), [2, 4, 6, 3, 5])
    counts = [count for _, count in results]
    assert len(plans) > max(counts) - 1
    assert steps(plans, "cross_entropy") == [sum(counts)]
    # Scores are needed for the losses alone.
    assert steps(plans, "Linear")[-1] == sum(counts)
    assert [steps([plan], "cross_entropy") for plan in plans[:-1]] == [[] for _ in plans[:-1]]


def test_the_law() -> None:
    for most in ([1, 1, 1], [2, 4, 6, 3, 5], [5]):
        check_on_the_fly(
            walk, states(len(most)), most, sources=[*STEP.parameters(), *SCORE.parameters()], records=False
        )


def test_what_is_left_is_computed_too_when_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = fl.one_by_one(walk)(states(6), [6] * 6)
    monkeypatch.setattr(pending, "MOST_PENDING", 10)
    with plans_of_parts() as plans:
        results = fl.batch(walk)(states(6), [6] * 6)
    assert len(steps(plans, "cross_entropy")) > 1
    for (loss, count), (same_loss, same_count) in zip(results, expected, strict=True):
        torch.testing.assert_close(loss, same_loss)
        assert count == same_count


def test_what_can_run_in_the_same_steps_runs_along() -> None:
    """Only the first example asks; the encoder still runs once."""
    encoder = nn.LSTM(3, 3).double()

    def function(rows: torch.Tensor, asks: bool) -> torch.Tensor:
        encoded, _ = encoder(rows)
        return encoded[-1] * 2 if asks and encoded.sum() > -100 else encoded[0].exp()

    rows = [torch.randn(length, 3, dtype=torch.float64) for length in (2, 4, 3)]
    with plans_of_parts() as plans:
        fl.batch(function)(rows, [True, False, False])
    assert steps(plans, "LSTM") == [3]
    assert [len(steps([plan], "exp")) for plan in plans] == [0, 1]
    check_on_the_fly(function, rows, [True, False, False], sources=encoder.parameters(), records=False)


def test_what_few_ask_for_is_asked_for_by_more() -> None:
    """Examples end one after the other, and ask for something else then."""
    name = nn.Linear(3, 5).double()

    def function(state: torch.Tensor, length: int) -> list[int]:
        seen = []
        for _ in range(length):
            state = torch.tanh(STEP(state))
            seen.append(name(state))
            if int(state.argmax()) > 2:
                break
        return torch.stack(seen).argmax(1).tolist()

    examples, lengths = states(8), list(range(1, 9))
    with plans_of_parts() as plans:
        results = fl.batch(function)(examples, lengths)
    assert results == fl.one_by_one(function)(examples, lengths)
    endings = [
        sizes for plan in plans if (sizes := [step.size for step in plan.steps if step.op in _argmax_of_rows(plan)])
    ]
    assert [size for sizes in endings for size in sizes] == [4, 2, 1, 1]


def _argmax_of_rows(plan: Plan) -> list[int]:
    return [n for n, op in enumerate(plan.ops) if op.label == "argmax" and op.outputs[0].ragged]


def test_batching_without_a_function_computes_everything_when_it_is_asked() -> None:
    with plans_of_parts() as plans, fl.batching():
        x = fl.lift(torch.ones(3, dtype=torch.float64))
        nobody_asks, asked = torch.tanh(STEP(x)), SCORE(x)
        float(asked.sum())
        first = len(plans)
    assert first == 1
    assert steps(plans[:1], "tanh") == [1]
    torch.testing.assert_close(nobody_asks + 0, torch.tanh(STEP(torch.ones(3, dtype=torch.float64))))


@pytest.mark.parametrize("asks", [False, True])
def test_an_error_in_what_was_left_says_where(asks: bool) -> None:
    @fl.cell
    def positive(x: torch.Tensor) -> torch.Tensor:
        if bool((x < 0).any()):
            raise ValueError("below zero")
        return x.sqrt()

    def function(number: torch.Tensor) -> Any:
        root = positive(number)
        if asks:
            number = number + int(number > 0)
        return root, number

    with pytest.raises(CellError, match="example 1: below zero"):
        fl.batch(function)([torch.tensor(4.0), torch.tensor(-4.0), torch.tensor(9.0)])


@fl.cell
def small(x: torch.Tensor) -> torch.Tensor:
    if len(x) and bool((x > 5).any()):
        raise ValueError("too much")
    return x + 1


def test_after_a_part_has_failed_what_was_computed_before_can_be_had() -> None:
    with fl.batching():
        one = small(fl.lift(torch.tensor(1.0)))
        assert float(one) == 2
        beside, ten = torch.exp(one), small(fl.lift(torch.tensor(10.0)))
        with pytest.raises(CellError, match="too much"):
            float(ten)
        assert float(one) == 2
        with pytest.raises(CellError, match="too much"):
            float(ten)
        for value in (beside + 1, small(one)):
            with pytest.raises(RecordingError, match="has failed"):
                float(value)
    assert float(one) == 2
    with pytest.raises(CellError, match="too much"):
        float(ten)


def test_handles_of_a_batch_that_failed_do_not_give_what_was_never_computed() -> None:
    def function(x: torch.Tensor, kept: list[torch.Tensor]) -> int:
        kept.extend([x.sin(), small(x)])
        return int(kept[-1])

    kept: list[list[torch.Tensor]] = [[], []]
    with pytest.raises(CellError, match="too much"):
        fl.batch(function)([torch.tensor(0.0), torch.tensor(7.0)], kept)
    assert float(kept[0][1]) == 1
    with pytest.raises(CellError, match="too much"):
        float(kept[1][1])
    with pytest.raises(RecordingError, match="has failed"):
        float(kept[1][0])


def test_a_value_asked_for_without_gradients_takes_none_from_the_others() -> None:
    weight = nn.Parameter(torch.ones(3))
    with fl.batching():
        before = [(weight * torch.tensor([1.0, 2.0, 3.0]) * k).sum() for k in range(1, 4)]
        with torch.no_grad():
            assert float(before[0]) == 6
        after = [(weight * torch.tensor([1.0, 2.0, 3.0]) * k).sum() for k in range(1, 4)]
    torch.stack(before + after).sum().backward()
    assert weight.grad is not None
    torch.testing.assert_close(weight.grad, torch.tensor([12.0, 24.0, 36.0]))


def test_weights_that_change_before_what_was_left_has_run() -> None:
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)

    def function(x: torch.Tensor) -> torch.Tensor:
        scaled = weight.exp() * x
        if float(x.sum()) > -100:
            with torch.no_grad():
                weight.data.add_(0)
                weight.add_(1)
        return scaled

    inputs = states(2)
    expected = fl.one_by_one(function)(inputs)
    with torch.no_grad():
        weight.fill_(1)
    assert_same(fl.batch(function)(inputs), expected)


def test_views_know_who_asked_for_what_was_left_and_where() -> None:
    columns = states(5), [2, 4, 6, 3, 5]
    survey = survey_of(fl.batch(walk, automatic_cells=False), columns, None)
    losses = [n for n, op in enumerate(survey.op_of_node.tolist()) if survey.ops[op].label == "cross_entropy"]
    places = [survey.places[node] for node in losses]
    first = walk.__code__.co_firstlineno
    assert {place.line - first for place in places if place is not None} == {2, 5}
    counts = [count for _, count in fl.one_by_one(walk)(*columns)]
    assert [int((survey.example_of_node[losses] == example).sum()) for example in range(5)] == counts
    assert {int(part) for part in survey.part_of_node[losses]} == {len(survey.demands) - 1}
