"""What several nodes ask alike is computed once, and nobody can tell by the numbers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.graph.recording import merge_recordings
from foldloom.planning.cse import _first_of_equals, shared
from tests.law import assert_same

WORDS = [[1, 2, 1], [2, 2, 3], [1, 1, 1, 1]]


class Sums(nn.Module):
    """Adds up what a cell makes of each word."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        table = nn.Embedding(5, 3, dtype=torch.float64)
        self.read = fl.cell(nn.Sequential(table, nn.Linear(3, 3, dtype=torch.float64), nn.Dropout(dropout)))
        self.add = fl.cell(lambda x, y: torch.sin(x) * y)

    def forward(self, words: list[int]) -> Any:
        state = self.read(words[0])
        for word in words[1:]:
            state = self.add(state, self.read(word))
        return state


def rows_of(planned: Any, label: str) -> int:
    plan = planned.plan
    return sum(step.size for step in plan.steps if plan.ops[step.op].label == label)


def planned(model: nn.Module) -> Any:
    return fl.plan([fl.record(model, words) for words in WORDS])


@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.ByAgenda(), fl.OneByOne()])
def test_values_and_gradients(scheduler: fl.Scheduler) -> None:
    model = Sums()
    results = []
    for run in (fl.one_by_one(model), fl.batch(model, scheduler=scheduler)):
        model.zero_grad()
        outputs = run(WORDS)
        torch.stack(outputs).square().sum().backward()
        results.append((outputs, [parameter.grad for parameter in model.parameters()]))
    assert_same(results[1], results[0])


def test_a_word_is_computed_once() -> None:
    assert rows_of(planned(Sums()), "Sequential") == 3  # words 1, 2 and 3


def test_what_is_made_of_equal_words_is_equal() -> None:
    # 1 1 begins both the first example's last pair and the third: sin(1) * 1 is asked for once.
    model = Sums()
    recordings = [fl.record(model, words) for words in ([1, 1, 2], [1, 1, 3], [2, 1])]
    assert rows_of(fl.plan(recordings), "<lambda>") == 4
    assert_same(fl.batch(model).run(fl.plan(recordings)), fl.one_by_one(model)([[1, 1, 2], [1, 1, 3], [2, 1]]))


@pytest.mark.parametrize("training", [True, False])
def test_random_numbers_are_drawn_for_each(training: bool) -> None:
    # Recorded in one mode, run in the other: what draws when it is trained is never shared.
    model = Sums(dropout=0.5).train(training)
    assert rows_of(planned(model), "Sequential") == 10


def test_functions_that_draw() -> None:
    def noisy(word: int) -> Any:
        return nn.functional.dropout(model.weight[word], 0.5)

    model = nn.Embedding(3, 64)
    torch.manual_seed(0)
    one, other = fl.batch(noisy)([1, 1])
    assert not torch.equal(one, other)


def test_drawing_that_nobody_could_know_of_is_refused() -> None:
    model = Sums()
    plan = planned(model)
    model.read.function[2].p = 0.5
    with pytest.raises(fl.errors.CellError, match="drew none when it was recorded draws them now"):
        fl.batch(model).run(plan)


def test_words_on_the_fly() -> None:
    table, weight = nn.Embedding(5, 3), nn.Linear(3, 2)

    def scores(words: list[int]) -> Any:
        return sum(torch.tanh(weight(table(torch.tensor(word)))) for word in words)

    counts = fl.batch(scores)
    assert_same(counts(WORDS), fl.one_by_one(scores)(WORDS))
    plan = fl.plan([fl.record(scores, words) for words in WORDS])
    assert rows_of(plan, "tanh") == 3


def test_tensors_and_fractions_are_not_compared() -> None:
    double = fl.cell(lambda x: 2 * x)
    for values in ([0.5, 0.5, 0.5], [torch.ones(2)] * 3, [np.ones(2)] * 3):
        recordings = [fl.record(double, value) for value in values]
        assert fl.plan(recordings).statistics().nodes == 3


def test_few_repetitions_are_left_alone() -> None:
    double = fl.cell(lambda x: 2 * x)
    recording = merge_recordings([fl.record(double, number) for number in [*range(50), 7]])
    assert shared(recording).recording is recording


def test_each_example_has_results_of_its_own() -> None:
    double = fl.cell(lambda x: 2 * x)
    one, other = fl.batch(double)([4, 4])
    one += 1
    assert (one.item(), other.item()) == (9, 8)


@pytest.mark.parametrize("spread", [5, 10**12])
def test_first_of_equals(spread: int) -> None:
    rng = random.Random(spread)
    keys = [rng.choice([0, spread, -spread, spread // 2, 3]) for _ in range(40)]
    assert _first_of_equals(np.array(keys)).tolist() == [keys.index(key) for key in keys]


def test_within_one_example_nothing_is_looked_for() -> None:
    table = fl.cell(nn.Embedding(5, 3))
    recording = fl.record(lambda words: [table(word) for word in words], [1, 2, 1, 1])
    assert not fl.plan([recording]).shared_ops
    assert fl.plan([recording, recording]).shared_ops
