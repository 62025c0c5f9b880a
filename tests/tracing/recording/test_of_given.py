"""Masks, places and lengths that follow from given whole numbers are there at once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, flushes, steps_run

LENGTHS = (5, 2, 7, 3)


def sentences() -> list[Tensor]:
    return [torch.arange(length) % 4 for length in LENGTHS]


def weight() -> nn.Parameter:
    return nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3))


def test_a_mask_that_is_asked_about_much_later() -> None:
    table = weight()

    def score(words: Tensor) -> Tensor:
        mask = torch.ones_like(words.unsqueeze(1), dtype=torch.uint8)
        state = table[words[0]]
        for _ in range(40):
            state = torch.tanh(state)
        assert mask[0].all()
        return state[: int(mask.long().sum()) % 3]

    assert flushes(score, sentences()) == 0
    check(score, sentences(), sources=[table])


def test_numbers_of_an_iteration_asked_for_much_later() -> None:
    table = weight()

    def score(words: Tensor) -> Tensor:
        state = table[0]
        for word in words.view(1, -1)[0]:
            for _ in range(20):
                state = torch.tanh(state)
            state = state + table[word] if word.item() > 1 else state
        return state

    assert flushes(score, sentences()) == 0
    check(score, sentences(), sources=[table])


def test_rearranged_numbers_take_no_steps() -> None:
    assert steps_run(lambda words: words.unsqueeze(0).view(-1) != 0, sentences()) == 0


@pytest.mark.parametrize("view", [lambda x: x[None], lambda x: x.view(1, -1), lambda x: x.detach(), lambda x: x[1:2]])
def test_views_follow_changes_of_either(view: Any) -> None:
    def change(words: Tensor, table: Tensor) -> Any:
        seen = view(words)
        before = table[words].sum()
        seen += 1
        words[0] = 3
        return before, table[words % 4].sum(), seen, words

    def program() -> Program:
        return Program(change, [sentences(), [torch.eye(4, dtype=torch.float64)] * 4])

    check_program(program)


def test_new_masks_are_changed_for_themselves() -> None:
    def change(words: Tensor) -> Any:
        mask = words != 0
        same = mask.view(1, -1)
        mask[0] = True
        kept = mask.clone()
        same &= False
        return words, mask, same, kept, words.long(), kept.sum() + words.sum()

    check_program(lambda: Program(change, [sentences()]))


def test_tensors_made_inside_stand_beside_given_ones() -> None:
    def places(words: Tensor) -> Any:
        last = torch.LongTensor(1).fill_(len(words) - 1)
        same = last.type_as(words)
        same[0] = 0
        return words[last], last, same, same is last

    check(places, sentences())


def test_recordings_compute_it_each_time() -> None:
    def count(words: Tensor) -> Tensor:
        return (words != 0).sum()

    planned = fl.plan([fl.record(count, words) for words in sentences()])
    assert [int(found) for found in fl.batch(count).run(planned)] == [int(count(words)) for words in sentences()]


def test_masks_of_bytes_choose() -> None:
    def choose(words: Tensor, x: Tensor) -> Tensor:
        mask = (words[:2] != 0).to(torch.uint8)
        for step in range(2):
            x = torch.where(mask[step], torch.tanh(x), x * 2)
        return x

    xs = [torch.linspace(-1, 1, 3, dtype=torch.float64, requires_grad=True) for _ in LENGTHS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(choose, sentences(), xs, sources=xs)
        assert flushes(choose, sentences(), xs) == 0
