"""One Tree-LSTM, written several ways: the same cells and weights, and the same loss at every node or at the root.

- `TreeLSTM`: for one tree, with cells; Foldloom batches it, and without Foldloom it runs one by one.
- `by_hand`: the strongest level-by-level batching we know how to write by hand.
- `products_alone`: nothing but the matrix products of a training step: the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import foldloom as fl
from benchmarks.trees import Tree


class Leaf(nn.Module):
    def __init__(self, vocabulary: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(vocabulary, embedding, sparse=True)
        self.gates = nn.Linear(embedding, 3 * hidden)

    def forward(self, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gates, candidate = self.gates(self.embed(word)).split((2 * self.hidden, self.hidden), 1)
        input_gate, output_gate = torch.sigmoid(gates).chunk(2, 1)
        cell = input_gate * torch.tanh(candidate)
        return output_gate * torch.tanh(cell), cell


class Merge(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Linear(2 * hidden, 5 * hidden)

    def forward(
        self, left_h: torch.Tensor, left_c: torch.Tensor, right_h: torch.Tensor, right_c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gates, candidate = self.gates(torch.cat((left_h, right_h), 1)).split((4 * self.hidden, self.hidden), 1)
        input_gate, left_gate, right_gate, output_gate = torch.sigmoid(gates).chunk(4, 1)
        cell = input_gate * torch.tanh(candidate)
        cell = torch.addcmul(torch.addcmul(cell, left_gate, left_c), right_gate, right_c)
        return output_gate * torch.tanh(cell), cell


class TreeLSTM(nn.Module):
    """Tai et al. 2015, binary, with a classifier at every node, or at the root alone."""

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, labels: int = 5, *, at_every_node: bool = True
    ) -> None:
        super().__init__()
        self.at_every_node = at_every_node
        self.leaf = fl.cell(Leaf(vocabulary, embedding, hidden))
        self.merge = fl.cell(Merge(hidden))
        self.classify = nn.Linear(hidden, labels)

    def compiled(self) -> TreeLSTM:
        """The same program on the same weights, its cells compiled."""
        twin = TreeLSTM(1, 1, 1, at_every_node=self.at_every_node)
        twin.leaf = fl.cell(self.leaf.function, compile=True)
        twin.merge = fl.cell(self.merge.function, compile=True)
        twin.classify = self.classify
        return twin

    def forward(self, tree: Tree) -> tuple[list[torch.Tensor], np.ndarray]:
        """The state and the label of every node that counts, children before parents."""
        if not self.at_every_node:
            return [self.state(tree)[0]], np.array([tree.label])
        leaf, merge = self.leaf, self.merge
        states: list[torch.Tensor] = []
        labels: list[int] = []

        def visit(tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
            h, c = leaf(tree.word) if tree.left is None else merge(*visit(tree.left), *visit(tree.right))
            states.append(h)
            labels.append(tree.label)
            return h, c

        visit(tree)
        return states, np.array(labels)

    def state(self, tree: Tree) -> tuple[torch.Tensor, torch.Tensor]:
        if tree.left is None:
            return self.leaf(tree.word)  # type: ignore[no-any-return]
        return self.merge(*self.state(tree.left), *self.state(tree.right))  # type: ignore[no-any-return]

    def loss(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.classify(states), labels, reduction="sum")

    def batched_loss(self, result: tuple[fl.Ragged, list[np.ndarray]]) -> torch.Tensor:
        """The loss of what ``fl.batch(model, stack=True)`` returns."""
        states, labels = result
        return self.loss(states.values, torch.from_numpy(np.concatenate(labels)))


# --- by hand -----------------------------------------------------------------------------------------------------


ROOT = 2**15
"""In place of the level of a reader: nobody reads a root. Above all levels, so that roots come last in theirs."""


@dataclass
class FlatTree:
    """One tree as arrays, children before parents."""

    left: np.ndarray
    right: np.ndarray
    word: np.ndarray
    label: np.ndarray
    level: np.ndarray
    reader_level: np.ndarray


def flatten(tree: Tree) -> FlatTree:
    number: dict[int, int] = {}
    left, right, word, label, level = [], [], [], [], []
    for position, node in enumerate(tree):
        number[id(node)] = position
        label.append(node.label)
        word.append(node.word)
        if node.left is None or node.right is None:
            left.append(-1)
            right.append(-1)
            level.append(0)
        else:
            a, b = number[id(node.left)], number[id(node.right)]
            left.append(a)
            right.append(b)
            level.append(1 + max(level[a], level[b]))
    reader_level = np.full(len(level), ROOT, np.int64)
    for position, (a, b) in enumerate(zip(left, right, strict=True)):
        if a >= 0:
            reader_level[a] = reader_level[b] = level[position]
    return FlatTree(
        left=np.array(left),
        right=np.array(right),
        word=np.array(word),
        label=np.array(label),
        level=np.array(level),
        reader_level=reader_level,
    )


@dataclass
class HandPlan:
    words: torch.Tensor
    word_of_leaf: torch.Tensor | None
    """Which of the words each leaf is; None if there is one for each leaf."""
    labels: torch.Tensor
    root_labels: torch.Tensor
    runs: list[list[tuple[int, int]]]
    """For each level, the (reading level, size) of its runs, in order; -1 reads a root."""
    permutations: list[torch.Tensor]
    """For each level above 0, where the children of its nodes stand in its inbox: left, right, left, right, ..."""


def plan_by_hand(trees: Sequence[FlatTree], *, each_word_once: bool = False) -> HandPlan:
    """Nodes sorted by (level, level of the reader), so that what one level sends another is one run."""
    sizes = np.array([len(tree.level) for tree in trees])
    offset = np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.concatenate([tree.left for tree in trees]) + offset
    right = np.concatenate([tree.right for tree in trees]) + offset
    word, label, level, reader_level = (
        np.concatenate([getattr(tree, name) for tree in trees]) for name in ("word", "label", "level", "reader_level")
    )
    order = np.argsort(level * 2**16 + reader_level, kind="stable")
    run_key, run_start, run_size = np.unique(
        (level * 2**16 + reader_level)[order], return_index=True, return_counts=True
    )
    run_level, run_reader = run_key >> 16, run_key & (2**16 - 1)
    # Where each run begins in the inbox of the level that reads it: runs arrive in the order of their own levels.
    by_reader = np.lexsort((run_level, run_reader))
    total = np.cumsum(run_size[by_reader]) - run_size[by_reader]
    first_of_reader = np.searchsorted(run_reader[by_reader], run_reader[by_reader])
    inbox_start = np.empty(len(run_key), np.int64)
    inbox_start[by_reader] = total - total[first_of_reader]
    inbox_position = np.empty(len(order), np.int64)
    inbox_position[order] = np.arange(len(order)) + np.repeat(inbox_start - run_start, run_size)

    level_sizes = np.bincount(level)
    runs: list[list[tuple[int, int]]] = [[] for _ in level_sizes]
    for at, reader, size in zip(run_level.tolist(), run_reader.tolist(), run_size.tolist(), strict=True):
        runs[at].append((reader if reader < ROOT else -1, size))
    inner = order[level_sizes[0] :]
    children = torch.from_numpy(np.stack([inbox_position[left[inner]], inbox_position[right[inner]]], 1).reshape(-1))
    words, word_of_leaf = word[order[: level_sizes[0]]], None
    if each_word_once:
        words, word_of_leaf = np.unique(words, return_inverse=True)
    return HandPlan(
        words=torch.from_numpy(words),
        word_of_leaf=None if word_of_leaf is None else torch.from_numpy(word_of_leaf),
        labels=torch.from_numpy(label[order]),
        root_labels=torch.from_numpy(label[order[reader_level[order] == ROOT]]),
        runs=runs,
        permutations=list(children.split((2 * level_sizes[1:]).tolist())),
    )


def loss_by_hand(model: TreeLSTM, plan: HandPlan) -> torch.Tensor:
    leaf, merge = model.leaf.function, model.merge.function
    hidden = merge.hidden
    inboxes: list[list[torch.Tensor]] = [[] for _ in plan.runs]
    states: list[torch.Tensor] = []

    def deliver(level: int, h: torch.Tensor, c: torch.Tensor) -> None:
        runs = plan.runs[level]
        for (reader, _), rows in zip(runs, torch.cat((h, c), 1).split([size for _, size in runs]), strict=True):
            if reader >= 0:
                inboxes[reader].append(rows)
        if model.at_every_node:
            states.append(h)
        elif runs[-1][0] < 0:
            states.append(h[-runs[-1][1] :])

    states_of_words = leaf(plan.words)
    if plan.word_of_leaf is not None:
        states_of_words = [part.index_select(0, plan.word_of_leaf) for part in states_of_words]
    deliver(0, *states_of_words)
    for level, permutation in enumerate(plan.permutations, 1):
        inbox = inboxes[level][0] if len(inboxes[level]) == 1 else torch.cat(inboxes[level])
        children = inbox.index_select(0, permutation).view(-1, 4 * hidden)
        deliver(level, *merge(*children.split(hidden, 1)))
    return model.loss(torch.cat(states), plan.labels if model.at_every_node else plan.root_labels)


# --- the limit ---------------------------------------------------------------------------------------------------


class ProductsAlone:
    """The matrix products of one training step at the sizes of one batch, into buffers that exist already, with every
    weight gradient as one product."""

    def __init__(self, model: TreeLSTM, plan: HandPlan) -> None:
        embedding, hidden = model.leaf.gates.in_features, model.merge.function.hidden
        sizes = [sum(size for _, size in runs) for runs in plan.runs]
        inner, total = sum(sizes[1:]), sum(sizes)
        self.layers = [
            self._layer(model.leaf.gates.weight, [sizes[0]]),
            self._layer(model.merge.gates.weight, sizes[1:]),
            self._layer(model.classify.weight, [total]),
        ]
        assert (embedding, hidden) == (self.layers[0][1].shape[1], self.layers[2][1].shape[1])
        assert inner == len(self.layers[1][1])

    @staticmethod
    def _layer(weight: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
        rows = sum(sizes)
        made = [
            torch.randn(rows, weight.shape[1]),
            torch.empty(rows, weight.shape[0]),
            torch.empty(rows, weight.shape[1]),
        ]
        return (weight.detach(), *made, torch.empty_like(weight), torch.tensor(sizes))

    def run(self) -> None:
        self.forward()
        self.backward()

    def forward(self) -> None:
        for weight, inputs, outputs, _, _, sizes in self.layers:
            for block_in, block_out in self._blocks(sizes.tolist(), inputs, outputs):
                torch.mm(block_in, weight.t(), out=block_out)

    def backward(self) -> None:
        for weight, inputs, outputs, grad_inputs, grad_weight, sizes in reversed(self.layers):
            for block_out, block_grad in reversed(list(self._blocks(sizes.tolist(), outputs, grad_inputs))):
                torch.mm(block_out, weight, out=block_grad)
            torch.mm(outputs.t(), inputs, out=grad_weight)

    @staticmethod
    def _blocks(sizes: list[int], *tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*[tensor.split(sizes) for tensor in tensors], strict=True)
