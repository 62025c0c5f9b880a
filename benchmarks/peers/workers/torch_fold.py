"""torchfold: ``python -m benchmarks.peers.workers.torch_fold depth``.

Version 0.1.0 is of 2018, and names parts of PyTorch that are gone since: what it needs of them is given to it here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchfold import torchfold

from benchmarks.peers.protocol import Batch, Given, serve
from benchmarks.peers.workers.torch_base import TorchProgram, set_tree_weights
from benchmarks.trees import Tree, from_arrays


class TorchOf2018:
    """Today's torch, but for the module that tensors were then of."""

    tensor = SimpleNamespace(_TensorBase=Tensor)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


torchfold.torch = TorchOf2018()


class Model(nn.Module):
    """The operations of the fold, by their names."""

    def __init__(self, words: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(words, embedding, sparse=True)
        self.leaf_gates = nn.Linear(embedding, 3 * hidden)
        self.merge_gates = nn.Linear(2 * hidden, 5 * hidden)
        self.classify = nn.Linear(hidden, 5)

    def leaf(self, word: Tensor) -> tuple[Tensor, Tensor]:
        gates, candidate = self.leaf_gates(self.embed(word)).split((2 * self.hidden, self.hidden), 1)
        i, o = torch.sigmoid(gates).chunk(2, 1)
        c = i * torch.tanh(candidate)
        return o * torch.tanh(c), c

    def merge(self, left_h: Tensor, left_c: Tensor, right_h: Tensor, right_c: Tensor) -> tuple[Tensor, Tensor]:
        gates, candidate = self.merge_gates(torch.cat((left_h, right_h), 1)).split((4 * self.hidden, self.hidden), 1)
        i, left, right, o = torch.sigmoid(gates).chunk(4, 1)
        c = torch.addcmul(torch.addcmul(i * torch.tanh(candidate), left, left_c), right, right_c)
        return o * torch.tanh(c), c


class Trees(TorchProgram):
    """Every batch is folded as it comes."""

    model: Model

    def __init__(self, given: Given) -> None:
        sizes = given.sizes
        model = Model(sizes["words"], sizes["embedding"], sizes["hidden"])
        set_tree_weights(
            given, embed=model.embed, leaf=model.leaf_gates, merge=model.merge_gates, classify=model.classify
        )
        self.start(model, given)
        self.at_every_node = bool(sizes["at_every_node"])
        self.trees = from_arrays(given.data)

    def batch_loss(self, batch: Batch) -> Tensor:
        fold = torchfold.Fold()
        shown: list[Any] = []
        labels: list[int] = []

        def visit(tree: Tree) -> Any:
            if tree.left is None:
                state = fold.add("leaf", tree.word).split(2)
            else:
                state = fold.add("merge", *visit(tree.left), *visit(tree.right)).split(2)
            if self.at_every_node:
                shown.append(state[0])
                labels.append(tree.label)
            return state

        for number in batch:
            state = visit(self.trees[number])
            if not self.at_every_node:
                shown.append(state[0])
                labels.append(self.trees[number].label)
        states, right = fold.apply(self.model, [shown, labels])
        return F.cross_entropy(self.model.classify(states), right, reduction="sum")


if __name__ == "__main__":
    serve({"tree-lstm": Trees})
