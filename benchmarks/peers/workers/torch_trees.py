"""The Tree-LSTM in PyTorch: one by one, batched by hand, and the matrix products alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.peers.protocol import Batch, Given
from benchmarks.peers.workers.torch_base import TorchProgram, set_weights
from benchmarks.tree_lstm_models import ProductsAlone, TreeLSTM, flatten, loss_by_hand, plan_by_hand
from benchmarks.trees import Tree, from_arrays


def tree_model(given: Given) -> TreeLSTM:
    sizes = given.sizes
    model = TreeLSTM(sizes["words"], sizes["embedding"], sizes["hidden"], at_every_node=bool(sizes["at_every_node"]))
    leaf, merge = model.leaf.function, model.merge.function
    modules = {
        "embed": leaf.embed,
        "leaf.gates": leaf.gates,
        "merge.gates": merge.gates,
        "classify": model.classify,
    }
    set_weights(modules, given.weights)
    return model


class TreeProgram(TorchProgram):
    model: TreeLSTM

    def __init__(self, given: Given) -> None:
        self.start(tree_model(given), given)
        self.trees = from_arrays(given.data)


class TreesOneByOne(TreeProgram):
    """The modules applied node by node; a tree's states are scored together."""

    def batch_loss(self, batch: Batch) -> Tensor:
        return torch.stack([self.tree_loss(self.trees[number]) for number in batch]).sum()

    def tree_loss(self, tree: Tree) -> Tensor:
        leaf, merge = self.model.leaf.function, self.model.merge.function
        states: list[Tensor] = []
        labels: list[int] = []

        def visit(tree: Tree) -> tuple[Tensor, Tensor]:
            if tree.left is None:
                state: tuple[Tensor, Tensor] = leaf(torch.tensor([tree.word]))
            else:
                state = merge(*visit(tree.left), *visit(tree.right))
            states.append(state[0])
            labels.append(tree.label)
            return state

        visit(tree)
        first = 0 if self.model.at_every_node else -1
        return self.model.loss(torch.cat(states[first:]), torch.tensor(labels[first:]))


class TreesByHand(TreeProgram):
    """Trees were made arrays once; batches of them are planned as they come."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.flat = [flatten(tree) for tree in self.trees]

    def batch_loss(self, batch: Batch) -> Tensor:
        return loss_by_hand(self.model, plan_by_hand([self.flat[number] for number in batch]))


class TreesByHandFromObjects(TreeProgram):
    """Trees are made arrays and planned as they come."""

    def batch_loss(self, batch: Batch) -> Tensor:
        return loss_by_hand(self.model, plan_by_hand([flatten(self.trees[number]) for number in batch]))


class TreeProducts(TreesByHand):
    """The limit of what can be reached, not a way to reach it."""

    products: tuple[ProductsAlone, ...] = ()

    def expect(self, batches: Sequence[Batch], *, train: bool) -> None:
        # A few batches stand for all: each has buffers for everything that it computes.
        plans = [plan_by_hand([self.flat[number] for number in batch]) for batch in batches[:4]]
        self.products = tuple([ProductsAlone(self.model, plan) for plan in plans])
        self.next = itertools.cycle(self.products)

    def loss(self, batch: Batch, *, train: bool) -> float:
        if not self.products:
            return super().loss(batch, train=train)
        products = next(self.next)
        products.forward()
        if train:
            products.backward()
        return 0.0


WAYS: dict[str, Callable[[Given], TreeProgram]] = {
    "one-by-one": TreesOneByOne,
    "by-hand": TreesByHand,
    "by-hand-from-objects": TreesByHandFromObjects,
    "products": TreeProducts,
}
