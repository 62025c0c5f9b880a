"""A transformer that reads sentences of any length and stops at the first layer that is sure of its answer.

Xin, Tang, Lee, Yu, Lin, "DeeBERT: Dynamic Early Exiting for Accelerating BERT Inference", ACL 2020.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from examples.gallery.common import demonstrate

WORDS = 1_000


class EarlyExitTransformer(nn.Module):
    def __init__(self, size: int = 128, heads: int = 4, depth: int = 8, classes: int = 3, sure: float = 0.55) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(WORDS, size), nn.Embedding(128, size)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(size, heads, 4 * size, dropout=0.0, batch_first=True) for _ in range(depth)]
        )
        self.exits = nn.ModuleList([nn.Linear(size, classes) for _ in range(depth)])
        self.sure = sure

    def forward(self, words: list[int]) -> tuple[Tensor, int]:
        """Log-probabilities of the classes, and the layer that gave them."""
        x = self.embed(torch.tensor(words)) + self.position(torch.arange(len(words)))
        for number, (layer, leave) in enumerate(zip(self.layers, self.exits, strict=True)):
            x = layer(x)
            log_probabilities = leave(x[0]).log_softmax(0)
            if log_probabilities.max().exp() > self.sure:
                return log_probabilities, number
        return log_probabilities, len(self.layers) - 1


def made_examples(count: int, seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(WORDS) for _ in range(source.randint(4, 48))] for _ in range(count)]


if __name__ == "__main__":
    demonstrate(EarlyExitTransformer().eval(), made_examples)
