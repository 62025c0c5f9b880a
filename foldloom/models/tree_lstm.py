"""The binary Tree-LSTM (Tai, Socher, Manning 2015), with a class for every node of a treebank's trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom.blocks.planner import Planner

State = tuple[torch.Tensor, torch.Tensor]
"""What a node shows, and what it remembers."""


class Leaf(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, embedding, sparse=True)
        self.gates = nn.Linear(embedding, 3 * hidden)

    def forward(self, word: torch.Tensor) -> State:
        gates = self.gates(self.embed(word))
        size = gates.shape[1] // 3
        input_gate, output_gate = torch.sigmoid(gates[:, : 2 * size]).chunk(2, 1)
        memory = input_gate * torch.tanh(gates[:, 2 * size :])
        return output_gate * torch.tanh(memory), memory


class Merge(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(2 * hidden, 5 * hidden)

    def forward(self, left: State, right: State) -> State:
        gates, candidate = self.gates(torch.cat((left[0], right[0]), 1)).split((4 * self.hidden, self.hidden), 1)
        input_gate, left_gate, right_gate, output_gate = torch.sigmoid(gates).chunk(4, 1)
        memory = input_gate * torch.tanh(candidate)
        memory = torch.addcmul(torch.addcmul(memory, left_gate, left[1]), right_gate, right[1])
        return output_gate * torch.tanh(memory), memory


def tree_states(vocabulary: int, embedding: int, hidden: int) -> fb.Block:
    """From a tree, ``(label, word)`` or ``(label, left, right)``, to its state; the metric ``state`` has that of every node."""
    tree = fb.ForwardDeclaration(fb.PyObjectType(), (hidden, hidden))
    leaf = fb.GetItem(1) >> fb.Scalar("int64") >> Leaf(vocabulary, embedding, hidden)
    node = fb.Composition()
    with node.scope():
        merge = fb.Record([(1, tree()), (2, tree())]) >> Merge(hidden)
        state = fb.OneOf(len, {2: leaf, 3: merge}).reads(node.input)
        fb.Metric("state").reads(state[0], node.input[0])
        node.output.reads(state)
    tree.resolve_to(node)
    return node


class TreeLSTM(nn.Module):
    """From trees, or a plan of trees made by ``model.plan``, to the scores and the labels of all their nodes."""

    def __init__(self, vocabulary: int, embedding: int = 300, hidden: int = 150, labels: int = 5) -> None:
        super().__init__()
        self.states = fb.compile(tree_states(vocabulary, embedding, hidden) >> fb.Void())
        self.classify = nn.Linear(hidden, labels)

    @property
    def plan(self) -> Planner:
        return self.states.plan

    def record(self, tree: Any) -> fl.Recording:
        return self.states.record(tree)

    def forward(self, trees: Sequence[Any] | fl.Planned) -> tuple[torch.Tensor, torch.Tensor]:
        states = self.states(trees)[1]["state"]
        return self.classify(states.values), states.labels
