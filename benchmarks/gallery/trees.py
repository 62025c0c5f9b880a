"""Programs over trees and charts for a batch by hand: level by level with index bookkeeping, or padded."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from examples.gallery.bug_detector import KINDS, NAMES, BugDetector, Function
from examples.gallery.inside_algorithm import Grammar
from examples.gallery.symbolic_regression import FUNCTIONS, Fitness, Formula, Individual


def symbolic_regression(program: Fitness, individuals: Sequence[Individual]) -> list[Tensor]:
    """From the leaves up: at each height, the formulas with one function together."""
    groups: dict[tuple[int, str], list[tuple[int, ...]]] = defaultdict(list)
    given: list[Tensor] = []
    rows = 0
    place: list[tuple[tuple[int, str], int]] = []

    def add(formula: Formula, constants: Tensor) -> tuple[int, int]:
        """The height of a formula and its number."""
        nonlocal rows
        parts = [add(part, constants) for part in formula.of]
        height = 1 + max((height for height, _ in parts), default=-1)
        number = rows
        rows += 1
        if not parts:
            given.append(program.x if formula.name == "x" else constants[formula.number].expand(len(program.x)))
            place.append(((0, ""), len(given) - 1))
        else:
            key = (height, formula.name)
            place.append((key, len(groups[key])))
            groups[key].append(tuple(number for _, number in parts))
        return height, number

    roots = [add(*individual)[1] for individual in individuals]
    order = [(0, ""), *sorted(groups)]
    first = {}
    total = 0
    for key in order:
        first[key] = total
        total += len(given) if key == (0, "") else len(groups[key])
    row = [first[key] + number for key, number in place]
    levels: list[tuple[int, list[tuple[int, str]]]] = []
    for key in order[1:]:
        if not levels or levels[-1][0] != key[0]:
            levels.append((key[0], []))
        levels[-1][1].append(key)
    values = torch.stack(given)
    for _, keys in levels:
        computed = [values]
        for key in keys:
            operands = torch.tensor([[row[number] for number in parts] for parts in groups[key]])
            computed.append(FUNCTIONS[key[1]](*(values[column] for column in operands.unbind(1))))
        values = torch.cat(computed)
    return list((values[[row[number] for number in roots]] - program.y).square().mean(1))


def bug_detector(program: BugDetector, examples: Sequence[Function]) -> list[Tensor]:
    """From the leaves up: all nodes of one height together, their first children, then their second."""
    kinds: list[int] = []
    names: list[int] = []
    children: list[list[int]] = []
    by_height: dict[int, list[int]] = defaultdict(list)

    def add(node: ast.AST) -> tuple[int, int]:
        parts = [add(child) for child in ast.iter_child_nodes(node)]
        number = len(kinds)
        kinds.append(KINDS[type(node).__name__])
        names.append(sum(node.id.encode()) % NAMES if isinstance(node, ast.Name) else NAMES)
        children.append([number for _, number in parts])
        height = 1 + max((height for height, _ in parts), default=-1)
        by_height[height].append(number)
        return height, number

    roots = [add(example.tree)[1] for example in examples]
    row = [0] * len(kinds)
    table = F.pad(program.name.weight, (0, 0, 0, 1))  # nothing for nodes without a name
    vectors = torch.empty(0, program.decide.in_features)
    for height in range(len(by_height)):
        nodes = sorted(by_height[height], key=lambda number: -len(children[number]))
        for place, number in enumerate(nodes, len(vectors)):
            row[number] = place
        x = program.kind(torch.tensor([kinds[n] for n in nodes])) + table[torch.tensor([names[n] for n in nodes])]
        h, c = program.read(x)
        for position in range(len(children[nodes[0]])):
            read = torch.tensor([row[children[n][position]] for n in nodes if len(children[n]) > position])
            further = program.read(vectors[read], (h[: len(read)], c[: len(read)]))
            h, c = (torch.cat([new, old[len(read) :]]) for new, old in zip(further, (h, c), strict=True))
        vectors = torch.cat([vectors, h])
    logits = program.decide(vectors[[row[number] for number in roots]]).squeeze(1)
    labels = torch.tensor([float(example.is_wrong) for example in examples])
    return list(F.binary_cross_entropy_with_logits(logits, labels, reduction="none"))


def inside_algorithm(program: Grammar, sentences: Sequence[list[int]]) -> list[Tensor]:
    """All spans of one width of all sentences together, padded to the longest sentence."""
    words = pad_sequence([torch.tensor(words) for words in sentences], batch_first=True)
    lengths = torch.tensor([len(words) for words in sentences])
    symbols, longest = len(program.symbols), words.shape[1]
    emits = program.word(program.symbols).log_softmax(1)
    rules = program.binary(program.symbols).log_softmax(1)  # [parent, left * right]
    # by_start[width - 1][:, i] is the span of this width that starts at i
    by_start = [emits.T[words]]
    for width in range(2, longest + 1):
        starts = longest - width + 1
        left = torch.stack([by_start[k - 1][:, :starts] for k in range(1, width)], 2)
        right = torch.stack([by_start[width - k - 1][:, k : k + starts] for k in range(1, width)], 2)
        pairs = (left.unsqueeze(4) + right.unsqueeze(3)).logsumexp(2)  # [sentence, start, left, right]
        by_start.append((rules + pairs.view(*pairs.shape[:2], 1, symbols * symbols)).logsumexp(3))
    whole = torch.stack([spans[:, 0] for spans in by_start], 1)[torch.arange(len(sentences)), lengths - 1]
    start = program.start(program.symbols).squeeze(1).log_softmax(0)
    return list(-(start + whole).logsumexp(1) / lengths)
