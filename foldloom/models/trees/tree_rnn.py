"""Recursive networks whose nodes have one vector: the plain one and the tensor network.

Socher, Lin, Ng, Manning, "Parsing Natural Scenes and Natural Language with Recursive Neural Networks", ICML 2011;
Socher, Perelygin, Wu, Chuang, Manning, Ng, Potts, "Recursive Deep Models for Semantic Compositionality Over a Sentiment
Treebank", EMNLP 2013.
"""

from __future__ import annotations

import numpy.typing as npt
import torch
from torch import nn

from foldloom.models.training import set_vectors
from foldloom.models.trees.tree_classifier import TreeClassifier


class Word(nn.Module):
    def __init__(self, vocabulary: int, size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, size, sparse=True)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)

    def forward(self, word: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.embed(word))


class Compose(nn.Module):
    """Two vectors as one, by one layer."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * size, size)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(torch.cat((left, right), 1)))


class ComposeByTensor(nn.Module):
    """Two vectors as one, by one layer and a quadratic form for each number of the result."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(2 * size, size)
        self.tensor = nn.Parameter(torch.empty(size, 2 * size, 2 * size).uniform_(-1, 1) / (4 * size))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        both = torch.cat((left, right), 1)
        # One product for all forms: [batch, 2 size] by [2 size, size * 2 size].
        halves = (both @ self.tensor.flatten(0, 1).t()).view(len(both), -1, both.shape[1])
        return torch.tanh(torch.bmm(halves, both.unsqueeze(2)).squeeze(2) + self.linear(both))


class _RecursiveNetwork(TreeClassifier):
    compose: type[nn.Module]

    def __init__(
        self,
        vocabulary: int,
        size: int = 30,
        labels: int = 5,
        *,
        dropout: float = 0.0,
        vectors: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(Word(vocabulary, size), self.compose(size), size, labels, dropout=dropout)
        if vectors is not None:
            set_vectors(self, vectors)


class TreeRNN(_RecursiveNetwork):
    """The plain recursive network: a phrase is a layer over the vectors of its two parts.

    >>> from foldloom import models
    >>> examples = [(1, (0, 3), (2, 4)), (2, 5)]  # (label, left, right), or (label, word)
    >>> model = models.TreeRNN(9, 8, labels=3).eval()
    >>> model.predict(examples).shape
    torch.Size([2, 3])
    """

    compose = Compose


class RecursiveTensorNetwork(_RecursiveNetwork):
    """The recursive network with a tensor, by which the parts of a phrase act on each other.

    >>> from foldloom import models
    >>> examples = [(1, (0, 3), (2, 4)), (2, 5)]  # (label, left, right), or (label, word)
    >>> model = models.RecursiveTensorNetwork(9, 8, labels=3).eval()
    >>> model.predict(examples).shape
    torch.Size([2, 3])
    """

    compose = ComposeByTensor
