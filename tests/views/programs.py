"""Small programs that the views are tried on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl


class TreeModel(nn.Module):
    """((1, 2), 3) becomes merge(merge(leaf(1), leaf(2)), leaf(3))."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = fl.cell(nn.Embedding(10, 4))
        self.merge = fl.cell(nn.Bilinear(4, 4, 4))
        self.score = fl.cell(nn.Linear(4, 2))

    def forward(self, tree: Any) -> Any:
        return self.score(self.state(tree))

    def state(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return self.leaf(tree)
        return self.merge(self.state(tree[0]), self.state(tree[1]))


TREES: list[Any] = [((1, 2), 3), 4, ((5, (6, 7)), (8, 9))]


class Attention(nn.Module):
    """Scores of all words for all words: no rule takes rows of different number for that."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self.query(words), self.key(words), self.value(words)).mean(0)


def ragged_sentences(count: int = 24) -> list[torch.Tensor]:
    return [torch.randn(3 + number % 20, 8) for number in range(count)]


class Sample:
    """An example that was read from a file together with a tensor that all examples should have in common."""

    def __init__(self, word: int) -> None:
        self.word = word
        self.basis = torch.eye(8, requires_grad=True)


embed, halve = nn.Embedding(100, 8), nn.Linear(8, 8, bias=False)
nn.init.eye_(halve.weight)


def with_forgotten_basis(sample: Sample) -> torch.Tensor:
    return torch.tanh(embed(torch.tensor(sample.word)) @ sample.basis)


def samples(count: int = 12) -> list[Sample]:
    return [Sample(word) for word in range(count)]


def until_small(x: torch.Tensor) -> torch.Tensor:
    while x.norm() > 0.1:
        x = 0.4 * torch.tanh(halve(x))
    return x


def chain(length: int) -> torch.Tensor:
    """Long enough to be told in rounds."""
    x = torch.ones(8)
    for _ in range(length):
        x = torch.tanh(halve(x))
    return x
