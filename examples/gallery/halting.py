"""A recurrent network that thinks about each input as long as it needs to: the parity of a vector of signs.

Graves, "Adaptive Computation Time for Recurrent Neural Networks", arXiv 2016.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.gallery.common import demonstrate

SIZE = 16


@dataclass(slots=True)
class Signs:
    inputs: list[Tensor]
    parities: list[float]
    """After each input, whether there was an odd number of ones so far."""


class AdaptiveComputationTime(nn.Module):
    def __init__(self, hidden: int = 96, longest: int = 12, epsilon: float = 0.05, price: float = 0.01) -> None:
        super().__init__()
        self.cell = nn.GRUCell(SIZE + 1, hidden)
        self.halt = nn.Linear(hidden, 1)
        self.answer = nn.Linear(hidden, 1)
        self.longest, self.epsilon, self.price = longest, epsilon, price

    def ponder(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The state after an input, a mean over the steps weighted by their probabilities of being the last; and what they cost."""
        total, mean, steps, flag = torch.zeros(()), torch.zeros_like(state), 0, torch.ones(1)
        while True:
            state = self.cell(torch.cat([x, flag]), state)
            probability = torch.sigmoid(self.halt(state)).squeeze(0)
            steps, flag = steps + 1, torch.zeros(1)
            if steps == self.longest or total + probability >= 1 - self.epsilon:
                remainder = 1 - total
                return mean + remainder * state, steps + remainder
            total, mean = total + probability, mean + probability * state

    def forward(self, signs: Signs) -> Tensor:
        state, loss = torch.zeros(self.cell.hidden_size), torch.zeros(())
        for x, parity in zip(signs.inputs, signs.parities, strict=True):
            state, cost = self.ponder(x, state)
            logit = self.answer(state).squeeze(0)
            loss = loss + F.binary_cross_entropy_with_logits(logit, torch.tensor(parity)) + self.price * cost
        return loss / len(signs.inputs)


def made_examples(count: int, seed: int) -> list[Signs]:
    source, examples = random.Random(seed), []
    for _ in range(count):
        rows = [[source.choice((-1.0, 0.0, 1.0)) for _ in range(SIZE)] for _ in range(source.randint(1, 6))]
        odd = [sum(sum(value == 1.0 for value in row) for row in rows[: n + 1]) % 2 for n in range(len(rows))]
        examples.append(Signs([torch.tensor(row) for row in rows], [float(value) for value in odd]))
    return examples


if __name__ == "__main__":
    demonstrate(AdaptiveComputationTime(), made_examples)
