"""The adding problem, solved by feed-forward attention: the sum of the two numbers in a long sequence that are marked.

Raffel, Ellis, "Feed-Forward Networks with Attention Can Solve Some Long-Term Memory Problems", ICLR 2016 workshop; the problem is
of Hochreiter, Schmidhuber, "Long Short-Term Memory", 1997.

No row of a sequence waits for another, so all rows of a batch are computed at once. `feed_forward_attention` is the same for
sequences of blocks, whose elements may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from foldloom.models.training import Batch, ForOneExample


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Rows of a number from -1 to 1 and a mark: 1 beside the two numbers to add, -1 at both ends, else 0."""

    rows: npt.NDArray[np.float32]
    target: float = 0.0
    """Half the sum and 1, halved again: from 0 to 1."""


def made_additions(count: int, shortest: int, longest: int, seed: int) -> list[Addition]:
    source = np.random.default_rng(seed)
    return [_made_addition(source, int(source.integers(shortest, longest + 1))) for _ in range(count)]


def _made_addition(source: np.random.Generator, length: int) -> Addition:
    rows = np.zeros((length, 2), np.float32)
    rows[:, 0] = source.uniform(-1, 1, length)
    rows[[0, -1], 1] = -1
    chosen = source.choice(np.arange(1, length - 1), 2, replace=False)
    rows[chosen, 1] = 1
    return Addition(rows, float(0.5 + rows[chosen, 0].sum() / 4))


class AttentionAdder(ForOneExample):
    """The answer for a sequence is a number.

    >>> from foldloom import models
    >>> from foldloom.models.adding import made_additions
    >>> model = models.AttentionAdder().eval()
    >>> len(model.predict(made_additions(3, shortest=5, longest=9, seed=0)))
    3
    """

    def __init__(self, size: int = 100, scorer: int = 32) -> None:
        super().__init__()
        self.read = nn.Sequential(nn.Linear(2, size), nn.LeakyReLU())
        self.score = nn.Sequential(nn.Linear(size, scorer), nn.Tanh(), nn.Linear(scorer, 1))
        self.add = nn.Sequential(nn.Linear(size, size), nn.LeakyReLU(), nn.Linear(size, 1))

    def forward(self, example: Addition) -> tuple[torch.Tensor, float]:
        weight = next(self.parameters())
        states = self.read(torch.as_tensor(example.rows, dtype=weight.dtype, device=weight.device))
        weights = torch.softmax(self.score(states).squeeze(1), 0)
        return self.add(weights @ states).squeeze(0), example.target

    def answer(self, example: Addition) -> torch.Tensor:
        return self(example)[0]  # type: ignore[no-any-return]

    def total_loss(self, results: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        found, targets = results
        return F.mse_loss(found, targets.to(found), reduction="sum")

    def predict(self, batch: Batch) -> list[float]:
        with torch.no_grad():
            numbers: list[float] = self.results(batch)[0].tolist()
        return numbers
