"""The sentiment of a phrase and of each of its parts, where words multiply each other's meaning.

Socher, Perelygin, Wu, Chuang, Manning, Ng, Potts, "Recursive Deep Models for Semantic Compositionality Over a Sentiment
Treebank", EMNLP 2013: the recursive neural tensor network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import SENTIMENTS, WORDS, Phrase, demonstrate, made_phrases


class RecursiveTensorNetwork(nn.Module):
    def __init__(self, words: int = WORDS, size: int = 20, labels: int = SENTIMENTS) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.linear = nn.Linear(2 * size, size)
        self.tensor = nn.Parameter(torch.randn(size, 2 * size, 2 * size) * 0.05)
        self.classify = nn.Linear(size, labels)

    def compose(self, left: Tensor, right: Tensor) -> Tensor:
        both = torch.cat([left, right])
        # Slice k of the tensor gives a quadratic form of both vectors, the k-th entry of what they have in common.
        return torch.tanh(both @ self.tensor @ both + self.linear(both))

    def forward(self, phrase: Phrase) -> Tensor:
        """The summed loss of the sentiments of all parts."""
        losses: list[Tensor] = []

        def visit(part: Phrase) -> Tensor:
            if part.parts is None:
                vector = torch.tanh(self.embed(torch.tensor(part.word)))
            else:
                left, right = part.parts
                vector = self.compose(visit(left), visit(right))
            losses.append(F.cross_entropy(self.classify(vector), torch.tensor(part.sentiment)))
            return vector

        visit(phrase)
        return torch.stack(losses).sum()


def made_examples(count: int, seed: int) -> list[Phrase]:
    return made_phrases(count, seed)


def main() -> None:
    demonstrate(RecursiveTensorNetwork, made_examples)


if __name__ == "__main__":
    main()
