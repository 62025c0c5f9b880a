"""Small models that several tests use."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

import foldloom as fl


class Leaf(nn.Module):
    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, hidden)
        self.gates = nn.Linear(hidden, 3 * hidden)

    def forward(self, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, o, u = self.gates(self.embed(word)).chunk(3, 1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Merge(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * hidden, 5 * hidden)

    def forward(
        self, left_h: torch.Tensor, left_c: torch.Tensor, right_h: torch.Tensor, right_c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        i, left, right, o, u = self.gates(torch.cat((left_h, right_h), 1)).chunk(5, 1)
        c = i.sigmoid() * u.tanh() + left.sigmoid() * left_c + right.sigmoid() * right_c
        return o.sigmoid() * c.tanh(), c


class TreeLSTM(nn.Module):
    """A tree is a word (an int) or a pair of trees."""

    def __init__(self, vocabulary: int = 10, hidden: int = 4) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(Leaf(vocabulary, hidden)), fl.cell(Merge(hidden))
        self.double()

    def forward(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return self.leaf(tree)
        return self.merge(*self(tree[0]), *self(tree[1]))


def random_tree(source: random.Random, leaves: int, vocabulary: int = 10) -> Any:
    if leaves == 1:
        return source.randrange(vocabulary)
    split = source.randint(1, leaves - 1)
    return random_tree(source, split, vocabulary), random_tree(source, leaves - split, vocabulary)


def random_trees(count: int, most_leaves: int = 9, seed: int = 0) -> list[Any]:
    source = random.Random(seed)
    return [random_tree(source, source.randint(1, most_leaves)) for _ in range(count)]
