"""The N-ary Tree-LSTM, binary unless said otherwise, with a class for every node of a treebank's trees.

Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015;
dropout of the candidates (*recurrent dropout*) as Looks, Herreshoff, Hutchins, Norvig, ICLR 2017, have it from
Semeniuta, Severyn, Barth, "Recurrent Dropout without Memory Loss", COLING 2016.
"""

from __future__ import annotations

import numpy.typing as npt
import torch
from torch import nn

from foldloom.models.training import set_vectors
from foldloom.models.trees.tree_classifier import TreeClassifier

State = tuple[torch.Tensor, torch.Tensor]
"""What a node shows, and what it remembers."""


class StateOfVector(nn.Module):
    def __init__(self, size: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout, self.gates = nn.Dropout(dropout), nn.Linear(size, 3 * hidden)

    def forward(self, vector: torch.Tensor) -> State:
        gates = self.gates(self.dropout(vector))
        size = gates.shape[1] // 3
        input_gate, output_gate = torch.sigmoid(gates[:, : 2 * size]).chunk(2, 1)
        memory = input_gate * torch.tanh(gates[:, 2 * size :])
        return output_gate * torch.tanh(memory), memory


class Leaf(StateOfVector):
    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, dropout: float = 0.0, *, sparse: bool = True
    ) -> None:
        super().__init__(embedding, hidden, dropout)
        self.embed = nn.Embedding(vocabulary, embedding, sparse=sparse)

    def forward(self, word: torch.Tensor) -> State:
        return super().forward(self.embed(word))


class Merge(nn.Module):
    def __init__(self, hidden: int, dropout: float = 0.0, arity: int = 2) -> None:
        super().__init__()
        self.hidden, self.dropout = hidden, nn.Dropout(dropout)
        self.gates = nn.Linear(arity * hidden, (3 + arity) * hidden)

    def forward(self, *children: State) -> State:
        gates = self.gates(torch.cat([shown for shown, _ in children], 1))
        gates, candidate = gates.split((gates.shape[1] - self.hidden, self.hidden), 1)
        input_gate, *child_gates, output_gate = torch.sigmoid(gates).split(self.hidden, 1)
        memory = input_gate * self.dropout(torch.tanh(candidate))
        for gate, (_, remembered) in zip(child_gates, children, strict=True):
            memory = torch.addcmul(memory, gate, remembered)
        return output_gate * torch.tanh(memory), memory


class TreeLSTM(TreeClassifier):
    """``sparse`` says whether gradients of words are: of many words they should be, and few optimisers take them.

    >>> from foldloom import models
    >>> examples = [(1, (0, 3), (2, 4)), (2, 5)]  # (label, left, right), or (label, word)
    >>> model = models.TreeLSTM(vocabulary=9, labels=3).eval()
    >>> model.predict(examples).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int = 300,
        hidden: int = 150,
        labels: int = 5,
        *,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        arity: int = 2,
        vectors: npt.ArrayLike | None = None,
        sparse: bool = True,
    ) -> None:
        leaf = Leaf(vocabulary, embedding, hidden, dropout, sparse=sparse)
        merge = Merge(hidden, recurrent_dropout, arity)
        super().__init__(leaf, merge, (hidden, hidden), labels, dropout=dropout, arity=arity)
        if vectors is not None:
            set_vectors(self, vectors)
