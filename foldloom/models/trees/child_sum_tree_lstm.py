"""The child-sum Tree-LSTM over trees whose nodes have any number of children, with one class for the whole tree.

Tai, Socher, Manning, "Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks", ACL 2015.

A sum does not know which child is which. Nodes of syntax trees therefore say their role in the node above, ``left`` or ``right``,
beside their kind, and both are embedded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from foldloom.data.structures import SyntaxTree
from foldloom.data.vocabulary import Vocabulary
from foldloom.models.training import UNLABELLED, Batch, ForOneExample
from foldloom.tracing import cell

State = tuple[torch.Tensor, torch.Tensor]
"""What a node shows, and what it remembers."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node by the numbers of its kind and its role, and those below it."""

    kind: int
    role: int = 0
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelledTree:
    root: Node
    label: int = UNLABELLED


def kinds_of(tree: SyntaxTree) -> Iterator[str]:
    """For the vocabulary of `numbered`: the kinds of nodes, and names and constants, which if frequent are kinds of their own."""
    for node in tree:
        yield node.kind
        if node.text is not None:
            yield f"{node.kind} {node.text}"


def numbered(tree: SyntaxTree, kinds: Vocabulary, roles: Vocabulary) -> Node:
    """A syntax tree as the model takes it."""
    kind = kinds.get(f"{tree.kind} {tree.text}")
    if kind is None:
        kind = kinds[tree.kind]
    return Node(kind, roles[tree.role], tuple([numbered(child, kinds, roles) for child in tree.children]))


class ReadNode(nn.Module):
    """What a node is by itself, as what it adds to the gates of its state."""

    def __init__(self, kinds: int, roles: int, embedding: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.kind, self.role = nn.Embedding(kinds, embedding), nn.Embedding(roles, embedding)
        self.dropout, self.gates = nn.Dropout(dropout), nn.Linear(embedding, 4 * hidden)

    def forward(self, kind: torch.Tensor, role: torch.Tensor) -> torch.Tensor:
        return self.gates(self.dropout(self.kind(kind) + self.role(role)))  # type: ignore[no-any-return]


class Leaf(nn.Module):
    def forward(self, gates: torch.Tensor) -> State:
        input_gate, output_gate, candidate, _ = gates.chunk(4, 1)
        memory = input_gate.sigmoid() * candidate.tanh()
        return output_gate.sigmoid() * memory.tanh(), memory


class Sum(nn.Module):
    """A state from what the node is and the states of its children, however many: one step for all nodes of equally many."""

    def __init__(self, hidden: int, dropout: float) -> None:
        super().__init__()
        self.from_sum = nn.Linear(hidden, 3 * hidden, bias=False)
        self.forget = nn.Linear(hidden, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, gates: torch.Tensor, children: list[State]) -> State:
        shown = torch.stack([child for child, _ in children], 1)
        remembered = torch.stack([child for _, child in children], 1)
        size = shown.shape[2]
        input_gate, output_gate, candidate = (gates[:, : 3 * size] + self.from_sum(shown.sum(1))).chunk(3, 1)
        # Every child has a forget gate of its own, which sees that child alone.
        kept = torch.sigmoid(gates[:, 3 * size :].unsqueeze(1) + self.forget(shown)) * remembered
        memory = input_gate.sigmoid() * self.dropout(candidate.tanh()) + kept.sum(1)
        return output_gate.sigmoid() * memory.tanh(), memory


class ChildSumTreeLSTM(ForOneExample):
    """The answer for a tree is the probability of each label.

    >>> from foldloom import models
    >>> from foldloom.models.trees.child_sum_tree_lstm import LabelledTree, Node
    >>> tree = LabelledTree(Node(kind=0, children=(Node(kind=1, role=1), Node(kind=2, role=2))))
    >>> model = models.ChildSumTreeLSTM(kinds=3, roles=3, labels=4).eval()
    >>> model.predict([tree]).shape
    torch.Size([1, 4])
    """

    def __init__(
        self,
        kinds: int,
        roles: int,
        labels: int,
        *,
        embedding: int = 64,
        hidden: int = 128,
        dropout: float = 0.1,
        recurrent_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.read = cell(ReadNode(kinds, roles, embedding, hidden, dropout))
        self.leaf, self.sum = cell(Leaf()), cell(Sum(hidden, recurrent_dropout))
        self.dropout, self.classify = nn.Dropout(dropout), nn.Linear(hidden, labels)

    def forward(self, example: LabelledTree) -> tuple[torch.Tensor, int]:
        return self.state(example.root)[0], example.label

    def state(self, node: Node) -> State:
        gates = self.read(node.kind, node.role)
        if not node.children:
            return self.leaf(gates)  # type: ignore[no-any-return]
        return self.sum(gates, [self.state(child) for child in node.children])  # type: ignore[no-any-return]

    def probabilities(self, states: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.classify(self.dropout(states)), -1)

    def answer(self, example: LabelledTree) -> torch.Tensor:
        return self.probabilities(self(example)[0])

    def total_loss(self, results: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        states, labels = results
        scores = self.classify(self.dropout(states))
        return F.cross_entropy(scores, labels.to(scores.device), ignore_index=UNLABELLED, reduction="sum")

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return self.probabilities(self.results(batch)[0])
