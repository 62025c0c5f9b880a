"""SPINN: a Tree-LSTM on a stack, with an LSTM that tracks stack and buffer and learns to predict what to do next.

Bowman, Gauthier, Rastogi, Gupta, Manning, Potts, "A Fast Unified Model for Parsing and Sentence Understanding", ACL 2016. Here
over one sentence at a time, with a class for each phrase that it builds.

Examples are trees as those of `foldloom.models.trees.tree_classifier`, all of two children.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from foldloom.models.training import UNLABELLED, Batch, ForOneExample, last_rows, total_cross_entropy
from foldloom.models.trees.tree_classifier import NumberedTree
from foldloom.models.trees.tree_lstm import State
from foldloom.tracing import cell, lift

SHIFT, REDUCE = 0, 1


class Word(nn.Module):
    def __init__(self, vocabulary: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embed, self.dropout = nn.Embedding(vocabulary, 2 * hidden), nn.Dropout(dropout)
        # A word is a state as it is. From vectors as large as tables begin with, trees are learned by heart and not by what they mean.
        nn.init.normal_(self.embed.weight, std=0.15)

    def forward(self, word: torch.Tensor) -> State:
        shown, memory = self.dropout(self.embed(word)).chunk(2, 1)
        return torch.tanh(shown), memory


class Track(nn.LSTMCell):
    """Sees the front of the buffer and the two uppermost phrases of the stack."""

    def __init__(self, hidden: int, size: int) -> None:
        super().__init__(3 * hidden, size)

    def forward(self, front: torch.Tensor, top: torch.Tensor, below: torch.Tensor, state: State) -> State:  # type: ignore[override]
        return super().forward(torch.cat((front, top, below), 1), state)


class Reduce(nn.Module):
    """Two phrases as one, by a Tree-LSTM that knows what has been tracked."""

    def __init__(self, hidden: int, tracking: int, dropout: float) -> None:
        super().__init__()
        self.gates, self.dropout = nn.Linear(2 * hidden + tracking, 5 * hidden), nn.Dropout(dropout)

    def forward(self, left: State, right: State, tracked: torch.Tensor) -> State:
        gates = self.gates(torch.cat((left[0], right[0], tracked), 1))
        input_gate, left_gate, right_gate, output_gate, candidate = gates.chunk(5, 1)
        memory = input_gate.sigmoid() * self.dropout(candidate.tanh())
        memory = memory + left_gate.sigmoid() * left[1] + right_gate.sigmoid() * right[1]
        return output_gate.sigmoid() * memory.tanh(), memory


@dataclass(frozen=True, slots=True)
class Reading:
    """The states of phrases, words among them, in the order in which they are built; what was tracked before each of them; and
    what is right."""

    phrases: Any
    labels: Any
    tracked: Any
    transitions: Any


class SPINN(ForOneExample):
    """The answer for a sentence is the probability of each label.

    ``parsing`` weighs the loss of predicted transitions. With ``own_transitions`` the model goes the way it predicts and not that of
    the tree it is given, of which it then sees the words alone.

    >>> from foldloom import models
    >>> examples = [(1, (0, 3), (2, 4)), (2, 5)]  # (label, left, right), or (label, word)
    >>> model = models.SPINN(vocabulary=9, labels=3, hidden=8, tracking=4, classifier=8).eval()
    >>> model.predict(examples).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        vocabulary: int,
        labels: int,
        *,
        hidden: int = 64,
        tracking: int = 32,
        classifier: int = 64,
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        parsing: float = 0.3,
        own_transitions: bool = False,
    ) -> None:
        super().__init__()
        self.hidden, self.tracking = hidden, tracking
        self.parsing, self.own_transitions = parsing, own_transitions
        self.word, self.track = cell(Word(vocabulary, hidden, dropout)), cell(Track(hidden, tracking))
        self.reduce = cell(Reduce(hidden, tracking, recurrent_dropout))
        self.predict_transition = nn.Linear(tracking, 2)
        self.classify = nn.Sequential(
            nn.Linear(hidden, classifier), nn.ReLU(), nn.Dropout(dropout), nn.Linear(classifier, labels)
        )

    @property
    def can_record(self) -> bool:
        return not self.own_transitions

    def forward(self, tree: NumberedTree) -> Reading:
        nodes = _children_first(tree)
        words = [self.word(node[1]) for node in nodes if len(node) == 2]
        weight = self.predict_transition.weight
        nothing, untracked = (
            lift(torch.zeros(size, dtype=weight.dtype, device=weight.device)) for size in (self.hidden, self.tracking)
        )
        tracking: State = (untracked, untracked)
        buffer, stack = words[::-1], list[State]()
        phrases, tracked, transitions = [], [], []
        for node in nodes:
            seen = [buffer[-1][0] if buffer else nothing]
            seen += [stack[-depth][0] if len(stack) >= depth else nothing for depth in (1, 2)]
            tracking = self.track(*seen, tracking)
            transition = self._choose(tracking[0], len(buffer), len(stack)) if self.own_transitions else len(node) - 2
            if transition == SHIFT:
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(self.reduce(left, right, tracking[0]))
            phrases.append(stack[-1][0])
            tracked.append(tracking[0])
            transitions.append(len(node) - 2)
        # A phrase that was built another way than the tree's has no label but that of the whole sentence.
        labels = [UNLABELLED if self.own_transitions else node[0] for node in nodes[:-1]]
        return Reading(phrases, np.array([*labels, tree[0]]), tracked, np.array(transitions))

    def _choose(self, tracked: torch.Tensor, buffer: int, stack: int) -> int:
        if stack < 2:
            return SHIFT
        return int(self.predict_transition(tracked).argmax()) if buffer else REDUCE

    def probabilities(self, phrases: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.classify(phrases), -1)

    def answer(self, tree: NumberedTree) -> torch.Tensor:
        return self.probabilities(self(tree).phrases[-1])

    def total_loss(self, results: Reading) -> torch.Tensor:
        of_labels = total_cross_entropy(self.classify(results.phrases.values), results.labels)
        # Of the ways that it goes by itself it does not know which are right.
        if self.own_transitions:
            return of_labels
        scores = self.predict_transition(results.tracked.values)
        return of_labels + self.parsing * total_cross_entropy(scores, results.transitions)

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            phrases = self.results(batch).phrases
            return self.probabilities(last_rows(phrases.values, phrases.lengths))


def _children_first(tree: NumberedTree) -> list[NumberedTree]:
    pending, backwards = [tree], []
    while pending:
        node = pending.pop()
        backwards.append(node)
        if len(node) == 3:
            pending += node[1:]
    return backwards[::-1]
