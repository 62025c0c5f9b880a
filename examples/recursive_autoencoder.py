"""The sentiment of a sentence whose tree is not known: the two neighbours that can best be rebuilt merge first.

Socher, Pennington, Huang, Ng, Manning, "Semi-Supervised Recursive Autoencoders for Predicting Sentiment Distributions",
EMNLP 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import SENTIMENTS, WORDS, demonstrate, made_phrases


@dataclass(slots=True)
class Review:
    words: list[int]
    sentiment: int


@dataclass(slots=True)
class Node:
    vector: Tensor
    words: int


@dataclass(slots=True)
class Merger:
    """What two neighbours would become, and how badly they could be rebuilt from it."""

    node: Node
    error: Tensor


class RecursiveAutoencoder(nn.Module):
    def __init__(self, words: int = WORDS, size: int = 24, labels: int = SENTIMENTS, rebuilding: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, size)
        self.encode = nn.Linear(2 * size, size)
        self.decode = nn.Linear(size, 2 * size)
        self.classify = nn.Linear(size, labels)
        self.rebuilding = rebuilding

    def merge(self, left: Node, right: Node) -> Merger:
        both = torch.cat([left.vector, right.vector])
        vector = torch.tanh(self.encode(both))
        # Of unit length: else the error could be made small by making all vectors small.
        vector = vector / vector.norm()
        error_left, error_right = (self.decode(vector) - both).square().chunk(2)
        words = left.words + right.words
        error = (left.words * error_left.sum() + right.words * error_right.sum()) / words
        return Merger(Node(vector, words), error)

    def forward(self, review: Review) -> Tensor:
        sentiment = torch.tensor(review.sentiment)
        nodes = [Node(vector, 1) for vector in self.embed(torch.tensor(review.words))]
        mergers = [self.merge(left, right) for left, right in pairwise(nodes)]
        losses = [F.cross_entropy(self.classify(node.vector), sentiment) for node in nodes]
        while mergers:
            best = int(torch.stack([merger.error for merger in mergers]).argmin())
            merged = mergers[best]
            losses.append(
                self.rebuilding * merged.error
                + (1 - self.rebuilding) * F.cross_entropy(self.classify(merged.node.vector), sentiment)
            )
            nodes[best : best + 2] = [merged.node]
            # The merger itself and those of its two neighbours make way for those of the new node.
            first, last = max(best - 1, 0), min(best + 1, len(nodes) - 1)
            mergers[first : best + 2] = [self.merge(nodes[at], nodes[at + 1]) for at in range(first, last)]
        return torch.stack(losses).mean()


def made_examples(count: int, seed: int) -> list[Review]:
    phrases = made_phrases(count, seed)
    return [Review([part.word for part in phrase if part.parts is None], phrase.sentiment) for phrase in phrases]


def main() -> None:
    demonstrate(RecursiveAutoencoder, made_examples)


if __name__ == "__main__":
    main()
