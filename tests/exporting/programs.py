"""Models to export, each with examples made up from a seed, of shapes that no other seed need have."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom import models

WORDS, LETTERS, TAGS = 30, 26, 4


@dataclass(frozen=True)
class Exported:
    """``make`` gives a model; ``example`` makes one up."""

    make: Callable[[], fb.Model]
    example: Callable[[random.Random], Any]

    def examples(self, count: int, seed: int) -> list[Any]:
        source = random.Random(seed)
        return [self.example(source) for _ in range(count)]


class Leaf(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.embed, self.gates = nn.Embedding(WORDS, size), nn.Linear(size, 2 * size)

    def forward(self, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        memory, shown = self.gates(self.embed(word)).tanh().chunk(2, 1)
        return shown * memory, memory


class Merge(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * size, 5 * size)

    def forward(self, left: Any, right: Any) -> tuple[torch.Tensor, torch.Tensor]:
        i, f, g, o, u = self.gates(torch.cat((left[0], right[0]), 1)).chunk(5, 1)
        memory = i.sigmoid() * u.tanh() + f.sigmoid() * left[1] + g.sigmoid() * right[1]
        return o.sigmoid() * memory.tanh(), memory


def binary_tree_lstm() -> fb.Model:
    """A score for the root, and with the label of each node what the node shows."""
    tree = fb.ForwardDeclaration(fb.PyObjectType(), (6, 6))
    leaf = fb.GetItem(1) >> fb.Scalar("int64") >> Leaf(6)
    node = fb.Composition()
    with node.scope():
        merge = fb.Record([(1, tree()), (2, tree())]) >> Merge(6)
        state = fb.OneOf(len, {2: leaf, 3: merge}).reads(node.input)
        fb.Metric("shown").reads(state[0], node.input[0])
        node.output.reads(state)
    tree.resolve_to(node)
    return fb.compile(node >> fb.GetItem(0) >> nn.Linear(6, 5))


def labelled_tree(source: random.Random, leaves: int | None = None) -> Any:
    leaves = source.randint(1, 14) if leaves is None else leaves
    if leaves == 1:
        return source.randrange(5), source.randrange(WORDS)
    split = source.randint(1, leaves - 1)
    return source.randrange(5), labelled_tree(source, split), labelled_tree(source, leaves - split)


class Forget(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.from_word, self.from_child = nn.Linear(size, size), nn.Linear(size, size, bias=False)

    def forward(self, word: torch.Tensor, child: Any) -> torch.Tensor:
        return torch.sigmoid(self.from_word(word) + self.from_child(child[0])) * child[1]


class Gather(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.from_word, self.from_children = nn.Linear(size, 3 * size), nn.Linear(size, 3 * size, bias=False)

    def forward(self, word: torch.Tensor, shown: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        i, o, u = (self.from_word(word) + self.from_children(shown)).chunk(3, 1)
        memory = i.sigmoid() * u.tanh() + kept
        return o.sigmoid() * memory.tanh(), memory


def child_sum_tree_lstm() -> fb.Model:
    """Tai, Socher, Manning 2015: any number of children, each with a forget gate of its own."""
    tree = fb.ForwardDeclaration(fb.PyObjectType(), (6, 6))
    node = fb.Composition()
    with node.scope():
        word = (fb.GetItem("word") >> fb.Scalar("int64") >> nn.Embedding(WORDS, 6)).reads(node.input)
        children = (fb.GetItem("children") >> fb.Map(tree())).reads(node.input)
        shown = (fb.Map(fb.GetItem(0)) >> fb.Sum()).reads(children)
        kept = (fb.Record((fb.Broadcast(), fb.Identity())) >> fb.ZipWith(Forget(6)) >> fb.Sum()).reads(word, children)
        node.output.reads(fb.Function(Gather(6)).reads(word, shown, kept))
    tree.resolve_to(node)
    return fb.compile(node >> fb.GetItem(0))


def dependency_tree(source: random.Random, depth: int = 0) -> Any:
    children = source.choice((0, 0, 1, 2, 3, 5)) if depth < 4 else 0
    return {
        "word": source.randrange(WORDS),
        "children": [dependency_tree(source, depth + 1) for _ in range(children)],
    }


class Recurrent(nn.Module):
    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, size)

    def forward(self, element: torch.Tensor, state: Any) -> Any:
        shown, memory = self.cell(element, state)
        return shown, (shown, memory)


def turned(back: bool) -> fb.Block:
    return fb.Slice(step=-1) if back else fb.Identity()


def states(inputs: int, size: int, back: bool) -> fb.Block:
    """What a recurrent network shows along a sequence, and the state that it leaves it in."""
    return turned(back) >> fb.RNN(Recurrent(inputs, size), initial_state=fb.Zeros((size, size)))


def run(inputs: int, size: int, *, back: bool) -> fb.Block:
    return states(inputs, size, back) >> fb.GetItem(0) >> turned(back)


def last(inputs: int, size: int, *, back: bool) -> fb.Block:
    return states(inputs, size, back) >> fb.GetItem(1) >> fb.GetItem(0)


def character_tagger() -> fb.Model:
    """A score for each tag of each word: known words by a table, all others by their letters (Ling et al. 2015)."""
    letter = fb.InputTransform(lambda letter: ord(letter) - ord("a")) >> fb.Scalar("int64") >> nn.Embedding(LETTERS, 4)
    spelled = fb.Map(letter) >> fb.AllOf(last(4, 3, back=False), last(4, 3, back=True)) >> fb.Concat()
    known = fb.Scalar("int64") >> nn.Embedding(WORDS, 6)
    word = fb.OneOf(lambda word: isinstance(word, str), {True: spelled, False: known})
    both = fb.AllOf(run(6, 5, back=False), run(6, 5, back=True)) >> fb.ZipWith(fb.Concat() >> nn.Linear(10, TAGS))
    return fb.compile(fb.Map(word) >> both)


def sentence(source: random.Random) -> Any:
    def word() -> Any:
        letters = "".join(chr(ord("a") + source.randrange(LETTERS)) for _ in range(source.randint(0, 7)))
        return source.randrange(WORDS) if source.random() < 0.5 else letters

    return [word() for _ in range(source.randint(0, 8))]


def molecule(source: random.Random) -> Any:
    def vector(size: int) -> list[float]:
        return [source.gauss(0, 1) for _ in range(size)]

    atoms = source.randint(0, 5)
    return {
        "atoms": [vector(3) for _ in range(atoms)],
        "pairs": [[vector(2) for _ in range(atoms)] for _ in range(atoms)],
    }


def vectors(source: random.Random) -> Any:
    return [[source.gauss(0, 3) for _ in range(3)] for _ in range(source.randint(0, 12))]


EXPORTED = {
    "binary Tree-LSTM": Exported(binary_tree_lstm, labelled_tree),
    "child-sum Tree-LSTM": Exported(child_sum_tree_lstm, dependency_tree),
    "tagger with characters": Exported(character_tagger, sentence),
    "weave": Exported(lambda: fb.compile(models.weave_convolution(3, 2, size=4)), molecule),
    "feed-forward attention": Exported(
        lambda: fb.compile(fb.Map(fb.Vector(3)) >> models.feed_forward_attention(3, hidden=4)), vectors
    ),
}


class TreeOfCells(nn.Module):
    """Code that calls cells, as the README has it."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(Leaf(size)), fl.cell(Merge(size))

    def forward(self, tree: Any) -> Any:
        return tree_of_cells(self, tree)


def tree_of_cells(model: Any, tree: Any) -> Any:
    return model.leaf(tree) if isinstance(tree, int) else model.merge(model(tree[0]), model(tree[1]))


class PlainChildSum(nn.Module):
    """Plain operations over any number of children: rows of different numbers, no cell, no block."""

    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.embed, self.forget = nn.Embedding(WORDS, size), nn.Linear(size, size)

    def forward(self, tree: Any) -> torch.Tensor:
        word = self.embed(torch.tensor(tree["word"]))
        if not tree["children"]:
            return torch.tanh(word)
        children = torch.stack([self(child) for child in tree["children"]])
        weights = torch.softmax(children @ self.forget.weight[0], dim=0)
        return torch.tanh(word + weights @ children + (torch.sigmoid(self.forget(children)) * children).mean(0))


def plain_tree(source: random.Random, leaves: int | None = None) -> Any:
    leaves = source.randint(1, 12) if leaves is None else leaves
    if leaves == 1:
        return source.randrange(WORDS)
    split = source.randint(1, leaves - 1)
    return plain_tree(source, split), plain_tree(source, leaves - split)
