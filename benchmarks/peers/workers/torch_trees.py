"""The Tree-LSTM in PyTorch: one by one, batched by hand, and the matrix products alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.corpora import phrase_of
from benchmarks.peers.protocol import Batch, Given
from benchmarks.peers.workers.torch_base import TorchProgram, set_tree_weights, set_weights
from benchmarks.tree_lstm_models import ProductsAlone, TreeLSTM, flatten, loss_by_hand, plan_by_hand
from benchmarks.trees import Tree, from_arrays
from examples import tree_lstm as plain
from examples.common import Phrase


def tree_model(given: Given) -> TreeLSTM:
    sizes = given.sizes
    model = TreeLSTM(sizes["words"], sizes["embedding"], sizes["hidden"], at_every_node=bool(sizes["at_every_node"]))
    leaf, merge = model.leaf.function, model.merge.function
    set_tree_weights(given, embed=leaf.embed, leaf=leaf.gates, merge=merge.gates, classify=model.classify)
    return model


class TreeProgram(TorchProgram):
    model: TreeLSTM

    def __init__(self, given: Given) -> None:
        self.start(tree_model(given), given)
        self.trees = from_arrays(given.data)


class TreesOneByOne(TreeProgram):
    """The modules applied node by node; the states of a tree are scored together, which is faster than one at a time."""

    def batch_loss(self, batch: Batch) -> Tensor:
        return torch.stack([self.tree_loss(self.trees[number]) for number in batch]).sum()

    def tree_loss(self, tree: Tree) -> Tensor:
        leaf, merge = self.model.leaf.function, self.model.merge.function
        states: list[Tensor] = []
        labels: list[int] = []

        def visit(tree: Tree) -> tuple[Tensor, Tensor]:
            if tree.left is None or tree.right is None:
                state: tuple[Tensor, Tensor] = leaf(torch.tensor([tree.word]))
            else:
                state = merge(*visit(tree.left), *visit(tree.right))
            states.append(state[0])
            labels.append(tree.label)
            return state

        visit(tree)
        first = 0 if self.model.at_every_node else -1
        return self.model.loss(torch.cat(states[first:]), torch.tensor(labels[first:]))


class RootSentiment(plain.TreeLSTM):
    """The plain program, judging nothing but the whole."""

    def forward(self, phrase: Phrase) -> Tensor:
        return F.cross_entropy(self.classify(self.state(phrase)[0]), torch.tensor(phrase.sentiment))

    def state(self, phrase: Phrase) -> plain.State:
        if phrase.parts is None:
            state: plain.State = self.leaf(self.embed(torch.tensor(phrase.word)))
            return state
        merged: plain.State = self.merge(*[self.state(part) for part in phrase.parts])
        return merged


class PlainTrees(TorchProgram):
    """A program for one tree in plain PyTorch."""

    def __init__(self, given: Given) -> None:
        sizes = given.sizes
        program = plain.TreeLSTM if sizes["at_every_node"] else RootSentiment
        model = program(sizes["words"], sizes["embedding"], sizes["hidden"])
        model.embed.sparse = True
        set_weights(dict(model.named_children()), given.weights)
        self.start(model, given)
        self.phrases = [phrase_of(tree) for tree in from_arrays(given.data)]

    def batch_loss(self, batch: Batch) -> Tensor:
        return torch.stack([self.model(self.phrases[number]) for number in batch]).sum()


class TreesByHand(TreeProgram):
    """Trees were made arrays once; batches of them are planned as they come."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.flat = [flatten(tree) for tree in self.trees]

    def batch_loss(self, batch: Batch) -> Tensor:
        return loss_by_hand(self.model, plan_by_hand([self.flat[number] for number in batch]))


class TreesByHandWordsOnce(TreesByHand):
    """What is computed of a word alone is computed once for the batch, as Foldloom does it."""

    def batch_loss(self, batch: Batch) -> Tensor:
        return loss_by_hand(self.model, plan_by_hand([self.flat[number] for number in batch], each_word_once=True))


class TreesByHandCompiled(TreesByHand):
    """What is computed at a level of inner nodes is compiled, for any number of them. Leaves are not: their table has sparse gradients,
    which torch.compile does not know."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.model.merge.function.compile(dynamic=True)


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


PLAIN: dict[str, Callable[[Given], TorchProgram]] = {
    "one-by-one": TreesOneByOne,
    "by-hand": TreesByHand,
    "by-hand-words-once": TreesByHandWordsOnce,
    "by-hand-compiled": TreesByHandCompiled,
    "by-hand-from-objects": TreesByHandFromObjects,
    "products": TreeProducts,
}
