"""The probability of a sentence under a grammar: all its parses, added up from shorter spans to longer ones.

Baker, "Trainable grammars for speech recognition", 1979 (the inside algorithm); Kim, Dyer, Rush, "Compound Probabilistic Context-Free
Grammars for Grammar Induction", ACL 2019 (with networks for the rules).
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from examples.gallery.common import demonstrate

WORDS = 200


class Grammar(nn.Module):
    def __init__(self, symbols: int = 16, size: int = 32) -> None:
        super().__init__()
        self.symbols = nn.Parameter(torch.randn(symbols, size))
        self.start = nn.Linear(size, 1)
        self.binary = nn.Linear(size, symbols * symbols)
        self.word = nn.Linear(size, WORDS)

    def forward(self, words: list[int]) -> Tensor:
        """Minus the log-probability of a sentence, for each of its words."""
        emits = self.word(self.symbols).log_softmax(1)  # [symbols, WORDS]
        rules = self.binary(self.symbols).log_softmax(1).view(3 * (len(self.symbols),))  # parent, left, right
        spans = {(n, n + 1): emits[:, word] for n, word in enumerate(words)}
        for width in range(2, len(words) + 1):
            for i in range(len(words) - width + 1):
                j = i + width
                splits = [spans[i, k].unsqueeze(1) + spans[k, j].unsqueeze(0) for k in range(i + 1, j)]
                pairs = torch.stack(splits).logsumexp(0)  # [left, right]
                spans[i, j] = (rules + pairs).flatten(1).logsumexp(1)
        start = self.start(self.symbols).squeeze(1).log_softmax(0)
        return -(start + spans[0, len(words)]).logsumexp(0) / len(words)


def made_examples(count: int, seed: int) -> list[list[int]]:
    source = random.Random(seed)
    return [[source.randrange(WORDS) for _ in range(source.randint(3, 14))] for _ in range(count)]


if __name__ == "__main__":
    demonstrate(Grammar(), made_examples)
