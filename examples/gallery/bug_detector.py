"""Bugs in Python: whether somewhere in a function the two sides of a comparison were swapped, read off its syntax tree.

Allamanis, Barr, Devanbu, Sutton, "A Survey of Machine Learning for Big Code and Naturalness", ACM Computing Surveys 2018.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json.decoder
import random
import statistics
import string
import textwrap
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from examples.gallery.common import demonstrate

KINDS = {
    kind: number
    for number, kind in enumerate(sorted(kind.__name__ for kind in vars(ast).values() if isinstance(kind, type)))
}
NAMES = 256


@dataclass(slots=True)
class Function:
    tree: ast.AST
    is_wrong: bool


class BugDetector(nn.Module):
    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.kind, self.name = nn.Embedding(len(KINDS), size), nn.Embedding(NAMES, size)
        self.read = nn.LSTMCell(size, size)
        self.decide = nn.Linear(size, 1)

    def encode(self, node: ast.AST) -> Tensor:
        """A node is what its children are, read from left to right."""
        x = self.kind(torch.tensor(KINDS[type(node).__name__]))
        if isinstance(node, ast.Name):
            x = x + self.name(torch.tensor(sum(node.id.encode()) % NAMES))
        h, c = self.read(x)
        for child in ast.iter_child_nodes(node):
            h, c = self.read(self.encode(child), (h, c))
        return h

    def forward(self, function: Function) -> Tensor:
        logit = self.decide(self.encode(function.tree)).squeeze(0)
        return F.binary_cross_entropy_with_logits(logit, torch.tensor(float(function.is_wrong)))


def made_examples(count: int, seed: int) -> list[Function]:
    """Functions of the standard library; in every other one a comparison has its sides swapped."""
    found = []
    for module in (ast, inspect, json.decoder, random, statistics, string, textwrap):
        for part in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(part, ast.FunctionDef) and 10 < len(list(ast.walk(part))) < 200 and comparisons(part):
                found.append(part)
    source, functions = random.Random(seed), []
    for number in range(count):
        tree = copy.deepcopy(source.choice(found))
        if number % 2:
            compare = source.choice(comparisons(tree))
            compare.left, compare.comparators = compare.comparators[0], [compare.left]
        functions.append(Function(tree, bool(number % 2)))
    return functions


def comparisons(tree: ast.AST) -> list[ast.Compare]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Compare) and len(node.ops) == 1]


if __name__ == "__main__":
    demonstrate(BugDetector(), made_examples)
