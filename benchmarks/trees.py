"""Binary trees with a word at every leaf and a label at every node, made up or read from a treebank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    """The trees of a file in bracket notation, one a line, ``(label word)`` and ``(label left right)``; and the number of
    different words."""
    words: dict[str, int] = {}
    trees = []
    for line in path.read_text(encoding="utf-8").splitlines():
        stack: list[list[Tree]] = [[]]
        labels: list[int] = []
        for token in line.replace("(", " ( ").replace(")", " ) ").split(" "):
            if token == "(":
                stack.append([])
                labels.append(-1)
            elif token == ")":
                children, label = stack.pop(), labels.pop()
                if len(children) == 1:
                    children[0].label = label
                    stack[-1].append(children[0])
                else:
                    stack[-1].append(Tree(label, left=children[0], right=children[1]))
            elif token and labels[-1] < 0:
                labels[-1] = int(token)
            elif token:
                stack[-1].append(Tree(0, word=words.setdefault(token, len(words))))
        trees += stack[0]
    return trees, len(words)
