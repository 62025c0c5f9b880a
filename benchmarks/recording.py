"""What it costs to record: a node with cells, an operation without, and the same operations run eagerly."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import foldloom as fl
from benchmarks.timing import interleaved
from benchmarks.tree_lstm import add_model_options
from benchmarks.tree_lstm_models import TreeLSTM
from benchmarks.trees import Tree, random_trees, read_treebank

Nodes = tuple[int, int]


def add_command(commands: Any) -> None:
    parser = commands.add_parser("recording", description=__doc__, help="cost of recording a node or an operation")
    add_model_options(parser)
    parser.add_argument("--rounds", type=int, default=20)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    trees = random_trees(options.batch)
    vocabulary = 18_000
    if options.sst is not None:
        trees, vocabulary = read_treebank(options.sst)
        random.Random(0).shuffle(trees)
        trees = trees[: options.batch]
    model = TreeLSTM(vocabulary, options.embedding, options.hidden)
    _with_cells(model, trees, options.rounds)
    _without_cells(Operations(options.embedding, options.hidden), trees, options.rounds)


def _best(systems: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least that each took, in microseconds: noise only ever adds."""
    seconds = interleaved({name: _ignoring_round(system) for name, system in systems.items()}, rounds=rounds)
    return {name: 1e6 * min(times) for name, times in seconds.items()}


def _ignoring_round(system: Callable[[], Any]) -> Callable[[int], Any]:
    return lambda _: system()


# --- with cells ------------------------------------------------------------------------------------------------


class _SilentCell(nn.Module):
    """Takes the place of a cell, to see what the program costs by itself."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def __call__(self, *args: Any) -> Any:
        return self.result


def _with_cells(model: TreeLSTM, trees: list[Tree], rounds: int) -> None:
    nodes = sum(1 for tree in trees for _ in tree)
    silent = TreeLSTM(1, 1, 1)
    silent.leaf = silent.merge = _SilentCell((torch.zeros(1), torch.zeros(1)))  # type: ignore[assignment]

    def alone() -> None:
        for tree in trees:
            silent(tree)

    best = _best({"recording": lambda: fl.record(_all(model), trees), "program": alone}, rounds)
    whole, own = best["recording"] / nodes, best["program"] / nodes
    print(f"with cells, {nodes:,} tree nodes, microseconds a node")
    print(f"  recording, all told                  {whole:6.2f}")
    print(f"  of which the program's own Python    {own:6.2f}")
    print(f"  recording itself                     {whole - own:6.2f}")


def _all(model: TreeLSTM) -> Callable[[list[Tree]], Any]:
    return lambda trees: [model(tree) for tree in trees]


# --- without ---------------------------------------------------------------------------------------------------


class Operations:
    """The operations of a Tree-LSTM's nodes, one after the other, with no program around them."""

    leaf_operations = 13
    merge_operations = 18

    def __init__(self, embedding: int, hidden: int) -> None:
        self.embed = nn.Embedding(100, embedding)
        self.leaf_gates, self.merge_gates = nn.Linear(embedding, 3 * hidden), nn.Linear(2 * hidden, 5 * hidden)
        self.classify = nn.Linear(hidden, 5)

    def leaf(self) -> tuple[Tensor, Tensor]:
        i, o, u = self.leaf_gates(self.embed(torch.tensor(3))).chunk(3, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
        functional.cross_entropy(self.classify(h), torch.tensor(1))
        return h, c

    def merge(self, left_h: Tensor, left_c: Tensor, right_h: Tensor, right_c: Tensor) -> tuple[Tensor, Tensor]:
        i, f_left, f_right, o, u = self.merge_gates(torch.cat((left_h, right_h), dim=-1)).chunk(5, dim=-1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * left_c + torch.sigmoid(f_right) * right_c
        h = torch.sigmoid(o) * torch.tanh(c)
        functional.cross_entropy(self.classify(h), torch.tensor(1))
        return h, c

    def run(self, nodes: Nodes) -> int:
        """The operations of so many leaves and merges; how many they were."""
        leaves, merges = nodes
        for _ in range(leaves):
            state = self.leaf()
        for _ in range(merges):
            self.merge(*state, *state)
        return leaves * self.leaf_operations + merges * self.merge_operations


def _without_cells(operations: Operations, trees: list[Tree], rounds: int) -> None:
    count = sum(1 for tree in trees[:16] for _ in tree)
    nodes = (count // 2 + 1, count // 2)

    def recorded() -> float:
        try:
            with fl.batching():
                start = time.perf_counter()
                operations.run(nodes)
                raise _Enough(time.perf_counter() - start)
        except _Enough as enough:
            return enough.seconds

    graph = fl.record(lambda _: operations.run(nodes), 0).graph
    performed = operations.run(nodes)
    numbers = 2 * nodes[0] + nodes[1]
    if graph.node_count + numbers != performed:
        raise AssertionError(f"{performed} operations are not {graph.node_count} nodes and {numbers} numbers")
    recording: list[float] = []
    best = _best({"eager": lambda: operations.run(nodes), "recording": lambda: recording.append(recorded())}, rounds)
    eager, lazy = best["eager"] / performed, 1e6 * min(recording) / performed
    print(f"without cells, {performed:,} operations of a Tree-LSTM, microseconds an operation")
    print(f"  recording                            {lazy:6.2f}")
    print(f"  eager PyTorch                        {eager:6.2f}")
    print(f"  recording / eager                    {lazy / eager:6.2f}")


class _Enough(Exception):  # noqa: N818 (not an error)
    """Ends a recording before anything is computed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds
