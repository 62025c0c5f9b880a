"""Finding 2: what was given is there: to read it waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from tests.never_wrong.checking import check, flushes

WEIGHT = torch.nn.Parameter(torch.randn(9, 9, dtype=torch.float64))
NAMES = "abcdefghi"
WORDS = [torch.tensor(numbers) for numbers in ([3, 1, 4], [1, 5], [6, 2, 5, 3], [3, 1, 4])]


def transitions(x: torch.Tensor) -> torch.Tensor:
    """The score of a path, as CRFs compute it."""
    score = WEIGHT[0, x[0]]
    for before, after in zip(x[:-1], x[1:], strict=True):  # noqa: RUF007
        score = score + WEIGHT[before, after]
    return score


def by_number(x: torch.Tensor) -> Any:
    return [WEIGHT[word.item()] for word in x if word.item() != 1]


def matched(x: torch.Tensor) -> str:
    match x[0].item():
        case 3:
            return "three"
        case 1 | 5:
            return "odd"
    return "other"


READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item of a place": lambda x: WEIGHT[x[0].item()] * 2,  # type: ignore[index]
    "item of the last place": lambda x: WEIGHT[x[-1].item()] * 2,  # type: ignore[index]
    "int of a place": lambda x: WEIGHT[int(x[1])] * 2,
    "float of a place": lambda x: WEIGHT[0] * float(x[1]),
    "equality": lambda x: WEIGHT[0] if x[0] == 3 else WEIGHT[1] * 2,
    "inequality": lambda x: WEIGHT[0] if x[0] != 3 else WEIGHT[1] * 2,
    "order": lambda x: WEIGHT[0] if x[0] < 3 else WEIGHT[1] * 2,
    "order of two places": lambda x: WEIGHT[0] if x[0] >= x[1] else WEIGHT[1] * 2,
    "truth": lambda x: WEIGHT[0] * 2 if x[0] else WEIGHT[1],
    "indices of a weight": lambda x: WEIGHT[x[0], x[1]] * 2,
    "indices of a weight as numbers": lambda x: WEIGHT[x[0].item(), x[1].item()] * 2,  # type: ignore[index]
    "transitions": transitions,
    "words by number": by_number,
    "match": matched,
    "data as a list": lambda x: [WEIGHT[n] * 2 for n in x.data.tolist()],
    "a list": lambda x: [WEIGHT[n] * 2 for n in x.tolist()],
    "a slice as a list": lambda x: [WEIGHT[n] * 2 for n in x[1:].tolist()],
    "detached as a list": lambda x: [WEIGHT[n] * 2 for n in x.detach().tolist()],
    "on the CPU as a list": lambda x: [WEIGHT[n] * 2 for n in x.cpu().tolist()],
    "reversed as a list": lambda x: [WEIGHT[n] * 2 for n in x.flip(0).tolist()],
    "viewed as a list": lambda x: [WEIGHT[n] * 2 for n in x.view(-1, 1).squeeze(1).tolist()],
    "unbound": lambda x: [WEIGHT[n.item()] * 2 for n in x.unbind()],  # type: ignore[index]
    "split": lambda x: [WEIGHT[n.item()] * 2 for n in x.split(1)],
    "iterated": lambda x: [WEIGHT[int(n)] * 2 for n in x],
    "numpy": lambda x: [WEIGHT[n] * 2 for n in x.numpy().tolist()],
    "asarray": lambda x: [WEIGHT[n] * 2 for n in np.asarray(x).tolist()],
    "range": lambda x: [WEIGHT[n] * 2 for n in range(x[0])],
    "index of a list": lambda x: (NAMES[x[0]], WEIGHT[x[0]] * 2),
    "key of a dict": lambda x: {x[0].item(): WEIGHT[0] * 2},
    "formatted": lambda x: (f"{x[0].item()}", WEIGHT[0] * 2),
    "printed": lambda x: (str(x), repr(x[0]), WEIGHT[0] * 2),
    "shape": lambda x: (x.shape, len(x), x.size(0), x.numel(), WEIGHT[: len(x)] * 2),
    "in": lambda x: (3 in x, WEIGHT[0] * 2),
}


@pytest.mark.parametrize(
    "name",
    list(READS),
)
def test_reads_of_what_was_given(name: str) -> None:
    """A recording refuses to wait, so it takes what waits for nothing."""
    function = READS[name]
    fl.record(function, WORDS[0])
    assert flushes(function, WORDS) == 0
    check(function, WORDS, sources=[WEIGHT])


def test_reads_within_a_structure_that_was_given() -> None:
    def function(given: dict[str, Any]) -> torch.Tensor:
        return WEIGHT[given["words"][0].item()] * float(given["scale"])

    given = [{"words": words, "scale": torch.tensor(float(n))} for n, words in enumerate(WORDS)]
    fl.record(function, given[0])
    check(function, given, sources=[WEIGHT])


def test_reads_of_a_constant_of_the_program() -> None:
    table = torch.tensor([2, 0, 1])

    def function(x: torch.Tensor) -> torch.Tensor:
        return WEIGHT[table[0].item()] * WEIGHT[table[1], table[2]] * torch.tensor([1, 2])[0].item()  # type: ignore[index]

    fl.record(function, WORDS[0])
    check(function, WORDS, sources=[WEIGHT])


def test_reads_of_a_weight() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return WEIGHT[0] * WEIGHT[1, 1].item() if WEIGHT[0, 0] < 100 else WEIGHT[2]

    fl.record(function, WORDS[0])
    check(function, WORDS, sources=[WEIGHT])
