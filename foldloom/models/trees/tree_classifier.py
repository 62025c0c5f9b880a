"""A class for every node of a tree, whatever makes the states: what the recursive networks over treebanks have in common.

A tree is ``(label, word)`` or ``(label, child, child, ...)``, words and labels by their numbers; a label of -1 is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from foldloom import blocks as fb
from foldloom.blocks.compiler.planner import Planner
from foldloom.data.structures import Expression, Tree
from foldloom.data.vocabulary import Vocabulary
from foldloom.graph.ragged import Ragged
from foldloom.graph.recording import Recording
from foldloom.models.training import UNLABELLED, Batch, Trainable, last_rows

NumberedTree = tuple[Any, ...]


def numbered(tree: Tree, words: Vocabulary, labels: Vocabulary) -> NumberedTree:
    """A tree of a treebank as the models take it."""
    done: list[NumberedTree] = []
    for node in tree:  # children first, and without recursion: trees may be deeper than Python's stack
        below: Sequence[Any] = [words[node.word]] if node.word is not None else _taken(done, len(node.children))
        done.append((labels[node.label], *below))
    return done[0]


def _taken(done: list[Any], count: int) -> list[Any]:
    """The last ones, off a stack."""
    taken = done[len(done) - count :]
    del done[len(done) - count :]
    return taken


def numbered_expression(expression: Expression, tokens: Vocabulary) -> NumberedTree:
    """An expression as its brackets have it, ``(operator (left right))``: operators are words as the numbers are.

    A part's label is 0 if its value is negative, 1 if it is zero and 2 if it is positive; operators by themselves have none.
    """
    done: list[NumberedTree] = []
    for part in expression:
        if part.operator is None:
            done.append((part.sign + 1, tokens[str(part.value)]))
        else:
            left, right = _taken(done, 2)
            done.append((part.sign + 1, (UNLABELLED, tokens[part.operator]), (UNLABELLED, left, right)))
    return done[0]


def tokens_of(expression: Expression) -> Iterator[str]:
    """For the vocabulary of `numbered_expression`."""
    return (part.operator or str(part.value) for part in expression)


def children_of(tree: NumberedTree) -> int:
    return 0 if isinstance(tree[1], int) else len(tree) - 1


def tree_state(leaf: nn.Module, merge: nn.Module, state: Any, arity: int, *, collects: bool) -> fb.Block:
    """From a tree to its state, by ``leaf`` of a word and ``merge`` of ``arity`` states, zeros for children that are missing.

    If it ``collects``, the metric ``state`` has what every node shows: its state, or of several parts the first.
    """
    tree = fb.ForwardDeclaration(fb.PyObjectType(), state)
    cases = {0: fb.GetItem(1) >> fb.Scalar("int64") >> leaf}
    node = fb.Composition()
    with node.scope():
        for count in range(1, arity + 1):
            present = [fb.GetItem(number) >> tree() for number in range(1, count + 1)]
            missing = [fb.Zeros(state) for _ in range(arity - count)]
            cases[count] = fb.AllOf(*present, *missing) >> merge
        given = fb.OneOf(children_of, cases).reads(node.input)
        if collects:
            fb.Metric("state").reads(given[0] if isinstance(state, tuple) else given, node.input[0])
        node.output.reads(given)
    tree.resolve_to(node)
    return node


class TreeClassifier(Trainable):
    """From trees, or a plan of trees made by ``model.plan``, to the scores and the labels of all their nodes.

    The answer for a tree is the probability of each label at its root.
    """

    def __init__(
        self, leaf: nn.Module, merge: nn.Module, state: Any, labels: int, *, dropout: float = 0.0, arity: int = 2
    ) -> None:
        super().__init__()
        several = isinstance(state, tuple)
        self.states = fb.compile(tree_state(leaf, merge, state, arity, collects=True) >> fb.Void())
        self.dropout, self.classify = nn.Dropout(dropout), nn.Linear(state[0] if several else state, labels)
        # Training looks at every node, an answer at the root alone. It has no weights of its own, and so no place among the modules.
        root = tree_state(leaf, merge, state, arity, collects=False) >> (fb.GetItem(0) if several else fb.Identity())
        answer = fb.compile(root >> nn.Sequential(self.dropout, self.classify, nn.Softmax(1)))
        self.__dict__["_answer"] = answer

    @property
    def plan(self) -> Planner:
        return self.states.plan

    def record_each(self, examples: Sequence[NumberedTree]) -> list[Recording]:
        return self.states.record_each(examples)

    def results(self, batch: Batch) -> fb.MetricRows:
        rows: fb.MetricRows = self.states(batch)[1]["state"]
        return rows

    @property
    def one_example(self) -> Callable[[NumberedTree], tuple[list[torch.Tensor], npt.NDArray[np.int64]]]:
        return self._states_of

    def _states_of(self, tree: NumberedTree) -> tuple[list[torch.Tensor], npt.NDArray[np.int64]]:
        states, labels = zip(*self.states.one_example(tree)[1]["state"], strict=True)
        return list(states), np.array(labels)

    def gathered(self, stacked: tuple[Ragged, list[npt.NDArray[np.int64]]]) -> fb.MetricRows:
        states, labels = stacked
        return fb.MetricRows(states.values, states.lengths, torch.from_numpy(np.concatenate(labels)))

    def forward(self, trees: Batch) -> tuple[torch.Tensor, Any]:
        rows = self.results(trees)
        return self.classify(self.dropout(rows.values)), rows.labels

    def total_loss(self, results: fb.MetricRows) -> torch.Tensor:
        assert isinstance(results.labels, torch.Tensor), "labels are numbers"
        scores = self.classify(self.dropout(results.values))
        labels = results.labels.to(scores.device)
        return F.cross_entropy(scores, labels, ignore_index=UNLABELLED, reduction="sum")

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            rows = self.results(batch)
            return torch.softmax(self.classify(self.dropout(last_rows(rows.values, rows.lengths))), 1)

    def to_export(self) -> fb.Model:
        answer: fb.Model = self.__dict__["_answer"]
        return answer.to(self.classify.weight.dtype)
