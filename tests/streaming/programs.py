"""Programs for streams: they wait, branch, fail, change values in place and keep them for long."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

ENDINGS = ("no", "no", "no", "no", "python", "operator", "caught", "view", "in place")


class Walker(nn.Module):
    """Goes as many steps as its example says; at one of them something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.step = nn.Embedding(10, 4), nn.Linear(4, 4)
        self.seen: Any = None

    def forward(self, word: int, length: int, event: str, at: int) -> Any:
        self.seen = word
        h = self.table(torch.tensor(word))
        rows, base = [h], torch.stack([h, h * 2, h * 3])
        for number in range(length):
            if number == at:
                h = self.happens(event, word, h, base)
            h = torch.tanh(self.step(h)) + base[number % 3]
            rows.append(h)
            if number % 3 == 2 and float(h.sum()) > 100:
                break
            if number % 4 == 1:
                h = h + torch.stack(rows)[::2].sum(0) * 0.01
        return {"h": h, "rows": rows, "seen": self.seen}

    def happens(self, event: str, word: int, h: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        if event == "python":
            raise KeyError(word)
        if event == "operator":
            return h + self.table(torch.tensor(10 + word))
        if event == "caught":
            try:
                return h + self.table(torch.tensor(10 + word))
            except IndexError:
                return h + 1
        if event == "view":
            base[1] += 1
            return h + base.sum(0)
        if event == "in place":
            h = h * 1
            return h.mul_(2)
        return h


def examples(count: int, seed: int = 0, *, length: int = 40) -> list[list[Any]]:
    draw = random.Random(seed)
    rows = [
        (draw.randrange(10), int(length ** draw.random()), draw.choice(ENDINGS), draw.randrange(10))
        for _ in range(count)
    ]
    return [list(column) for column in zip(*rows, strict=True)]


def check(found: list[Any], expected: list[Any]) -> None:
    """The same results and exceptions."""
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        if isinstance(other, Exception):
            assert isinstance(one, type(other)), (number, one, other)
            assert f"in example {number}" in one.__notes__
            assert any(".py:" in note for note in one.__notes__)
        else:
            torch.testing.assert_close(one, other)
