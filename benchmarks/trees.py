"""Binary trees with a word at every leaf and a label at every node, made up or read from a treebank."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foldloom.data import SentimentReader, Vocabulary
from foldloom.data import Tree as LabelledTree


@dataclass(slots=True)
class Tree:
    """A leaf has a word; any other tree has both a left and a right one."""

    label: int
    word: int = -1
    left: Tree | None = None
    right: Any = None

    def __iter__(self) -> Iterator[Tree]:
        """All nodes, children before parents."""
        pending = [self]
        backwards: list[Tree] = []
        while pending:
            tree = pending.pop()
            backwards.append(tree)
            if tree.left is not None and tree.right is not None:
                pending += (tree.left, tree.right)
        return reversed(backwards)


def random_trees(count: int, vocabulary: int = 18_000, labels: int = 5, seed: int = 0) -> list[Tree]:
    """Trees with as many leaves as English sentences have words (19 on average), split at random places."""
    source = random.Random(seed)
    return [random_tree(source, max(2, min(52, round(source.gauss(19, 9)))), vocabulary, labels) for _ in range(count)]


def random_tree(source: random.Random, leaves: int, vocabulary: int, labels: int) -> Tree:
    label = source.randrange(labels)
    if leaves == 1:
        return Tree(label, word=source.randrange(vocabulary))
    split = source.randint(1, leaves - 1)
    left, right = (random_tree(source, part, vocabulary, labels) for part in (split, leaves - split))
    return Tree(label, left=left, right=right)


def read_treebank(path: Path) -> tuple[list[Tree], int]:
    """The trees of a sentiment treebank, and the number of different words."""
    trees = list(SentimentReader(path))
    words = Vocabulary.of(word for tree in trees for word in tree.words)

    def numbered(tree: LabelledTree) -> Tree:
        if tree.word is not None:
            return Tree(int(tree.label), word=words[tree.word])
        left, right = tree.children
        return Tree(int(tree.label), left=numbered(left), right=numbered(right))

    return [numbered(tree) for tree in trees], len(words)


def as_arrays(trees: Sequence[Tree]) -> dict[str, np.ndarray]:
    """Trees to be kept in a file: for each node its label, its word and its children, which come before it in its tree, or -1."""
    columns: dict[str, list[int]] = {name: [] for name in ("label", "word", "left", "right", "size")}
    for tree in trees:
        number = {id(node): position for position, node in enumerate(tree)}
        for node in tree:
            columns["label"].append(node.label)
            columns["word"].append(node.word)
            columns["left"].append(number.get(id(node.left), -1))
            columns["right"].append(number.get(id(node.right), -1))
        columns["size"].append(len(number))
    return {name: np.array(column) for name, column in columns.items()}


def from_arrays(arrays: Mapping[str, np.ndarray]) -> list[Tree]:
    label, word, left, right = (arrays[name].tolist() for name in ("label", "word", "left", "right"))
    trees, start = [], 0
    for size in arrays["size"].tolist():
        nodes: list[Tree] = []
        for at in range(start, start + size):
            if left[at] < 0:
                nodes.append(Tree(label[at], word=word[at]))
            else:
                nodes.append(Tree(label[at], left=nodes[left[at]], right=nodes[right[at]]))
        trees.append(nodes[-1])
        start += size
    return trees
