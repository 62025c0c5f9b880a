"""Binary trees with a word at every leaf and a label at every node, made up or read from a treebank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def grow(leaves: int) -> Tree:
        label = source.randrange(labels)
        if leaves == 1:
            return Tree(label, word=source.randrange(vocabulary))
        split = source.randint(1, leaves - 1)
        return Tree(label, left=grow(split), right=grow(leaves - split))

    return [grow(max(2, min(52, round(source.gauss(19, 9))))) for _ in range(count)]


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
