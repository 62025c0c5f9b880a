"""How closely two sentences are related, from their dependency trees, where a word has any number of dependents.

Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015:
the child-sum Tree-LSTM, and its comparison of two sentences by a distribution over scores from 1 to 5.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.common import WORDS, Dependent, demonstrate, made_dependency_tree

SCORES = 5
State = tuple[Tensor, Tensor]


@dataclass(slots=True)
class Pair:
    first: Dependent
    second: Dependent
    score: float
    """From 1, unrelated, to 5, of the same words."""


class ChildSumTreeLSTM(nn.Module):
    def __init__(self, words: int = WORDS, embedding: int = 32, hidden: int = 32, compared: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, embedding)
        self.from_word = nn.Linear(embedding, 3 * hidden)
        self.from_children = nn.Linear(hidden, 3 * hidden, bias=False)
        self.forget_from_word = nn.Linear(embedding, hidden)
        self.forget_from_child = nn.Linear(hidden, hidden, bias=False)
        self.compare = nn.Linear(2 * hidden, compared)
        self.score = nn.Linear(compared, SCORES)

    def encode(self, tree: Dependent) -> State:
        word = self.embed(torch.tensor(tree.word))
        gates = self.from_word(word)
        kept: Tensor | None = None
        if tree.children:
            children = [self.encode(child) for child in tree.children]
            hs, cs = torch.stack([h for h, _ in children]), torch.stack([c for _, c in children])
            gates = gates + self.from_children(hs.sum(0))
            # Every child has a forget gate of its own, which sees that child alone.
            kept = (torch.sigmoid(self.forget_from_word(word) + self.forget_from_child(hs)) * cs).sum(0)
        i, o, u = gates.chunk(3)
        c = i.sigmoid() * u.tanh()
        if kept is not None:
            c = c + kept
        return o.sigmoid() * c.tanh(), c

    def forward(self, pair: Pair) -> Tensor:
        """The divergence between the predicted distribution over scores and one whose mean is the true score."""
        (first, _), (second, _) = self.encode(pair.first), self.encode(pair.second)
        compared = torch.sigmoid(self.compare(torch.cat([first * second, (first - second).abs()])))
        return F.kl_div(F.log_softmax(self.score(compared), dim=0), target_distribution(pair.score), reduction="sum")


def target_distribution(score: float) -> Tensor:
    """The two whole scores around the true one, weighted so that their mean is the true one."""
    distribution = torch.zeros(SCORES)
    below = min(int(score), SCORES - 1)
    distribution[below - 1] = below + 1 - score
    distribution[below] = score - below
    return distribution


def made_examples(count: int, seed: int) -> list[Pair]:
    source = random.Random(seed)
    pairs = []
    for _ in range(count):
        first = made_dependency_tree(source)
        second = changed(source, first, source.random()) if source.random() < 0.7 else made_dependency_tree(source)
        ours, theirs = ({node.word for node in tree.in_order()} for tree in (first, second))
        pairs.append(Pair(first, second, 1 + 4 * len(ours & theirs) / len(ours | theirs)))
    return pairs


def changed(source: random.Random, tree: Dependent, how_much: float) -> Dependent:
    """The tree with some words replaced and some dependents left out."""
    word = source.randrange(WORDS) if source.random() < how_much / 2 else tree.word
    before, after = (
        [changed(source, child, how_much) for child in children if source.random() > how_much / 4]
        for children in (tree.before, tree.after)
    )
    return Dependent(word, tree.relation, before, after)


def main() -> None:
    demonstrate(ChildSumTreeLSTM, made_examples)


if __name__ == "__main__":
    main()
