"""A class for every node of a tree (Tai, Socher, Manning 2015)."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from foldloom.lazy import cell
from foldloom.models.tree_lstm import Leaf, Merge, State
from foldloom.tasks.task import Task

Tree = tuple[Any, ...]
"""``(label, word)`` or ``(label, left, right)``."""

LABELS = 5


class LabelLoss(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.classify = nn.Linear(hidden, LABELS)

    def forward(self, shown: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.classify(shown), label, reduction="none")


class TreeLSTM(nn.Module):
    def __init__(self, words: int, embedding: int = 64, hidden: int = 64) -> None:
        super().__init__()
        self.leaf, self.merge = cell(Leaf(words, embedding, hidden)), cell(Merge(hidden))
        self.label_loss = cell(LabelLoss(hidden))

    def forward(self, tree: Tree) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        self._visit(tree, losses)
        return torch.stack(losses).sum()

    def _visit(self, tree: Tree, losses: list[torch.Tensor]) -> State:
        if len(tree) == 2:
            state: State = self.leaf(tree[1])
        else:
            state = self.merge(self._visit(tree[1], losses), self._visit(tree[2], losses))
        losses.append(self.label_loss(state[0], tree[0]))
        return state


class TreeLSTMTask(Task):
    name = "tree-lstm"
    description = "a class for every node of binary trees"
    words = 1_000

    def model(self) -> nn.Module:
        return TreeLSTM(self.words)

    def made_examples(self, count: int, seed: int) -> list[Tree]:
        """As many leaves as English sentences have words, split at random places."""
        source = random.Random(seed)
        return [self._grown(source, max(2, round(source.gauss(12, 5)))) for _ in range(count)]

    def _grown(self, source: random.Random, leaves: int) -> Tree:
        label = source.randrange(LABELS)
        if leaves == 1:
            return (label, source.randrange(self.words))
        split = source.randint(1, leaves - 1)
        return (label, self._grown(source, split), self._grown(source, leaves - split))
