"""An exported Tree-LSTM for sentiment: how long exporting takes, how large the file is, and how fast it answers.

Beside it the same model in PyTorch, one by one (plain recursion, no Foldloom in it) and batched by Foldloom. All start from trees: recording
and planning are part of every answer.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import foldloom as fl
from benchmarks.timing import interleaved, machine, median_ratio
from benchmarks.trees import Tree, random_trees, read_treebank
from foldloom.models import TreeLSTM
from foldloom.runtime import Model

BATCHES = (1, 25, 256)


def add_command(commands: Any) -> None:
    parser = commands.add_parser("export", description=__doc__, help="an exported model against PyTorch")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, metavar="N")
    parser.add_argument("--embedding", type=int, default=300)
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--sst", type=Path, metavar="FILE", help="trees of a sentiment treebank; made up without")
    parser.add_argument("--threads", type=int, default=1)
    parser.set_defaults(run=run)


def numbered(tree: Tree) -> tuple[Any, ...]:
    if tree.left is None:
        return tree.label, tree.word
    return tree.label, numbered(tree.left), numbered(tree.right)


def one_by_one(model: TreeLSTM) -> Callable[[Any], torch.Tensor]:
    """The same in plain PyTorch, with the weights of the model."""
    cells: Any = model.states.cells
    leaf, merge = cells["Leaf"].function, cells["Merge"].function

    def state(tree: Any) -> Any:
        return leaf(torch.tensor([tree[1]])) if len(tree) == 2 else merge(state(tree[1]), state(tree[2]))

    return lambda tree: torch.softmax(model.classify(state(tree)[0]), 1)[0]


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    trees, words = (random_trees(2048), 18_000) if options.sst is None else read_treebank(options.sst)
    examples = [numbered(tree) for tree in trees]
    model = TreeLSTM(words, options.embedding, options.hidden).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sentiment.onnx"
        start = time.perf_counter()
        fl.export(model, path)
        seconds = time.perf_counter() - start
        weights = sum(parameter.nbytes for parameter in model.parameters())
        print(f"exported in {seconds:.1f} s; {path.stat().st_size:,} bytes, of which weights {weights:,}")
        exported = Model(path, threads=options.threads)
    with torch.no_grad():
        for batch in options.batches:
            _compare(model, exported, examples, batch, options.rounds)
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))


def _compare(model: TreeLSTM, exported: Model, examples: Sequence[Any], batch: int, rounds: int) -> None:
    alone = one_by_one(model)
    # A round answers so many examples that it takes long enough to be timed.
    calls = max(1, 32 // batch)

    def batches(number: int) -> list[list[Any]]:
        first = number * calls * batch
        return [[examples[(first + call * batch + n) % len(examples)] for n in range(batch)] for call in range(calls)]

    systems: dict[str, Callable[[int], Any]] = {
        "one by one": lambda number: [[alone(example) for example in examples] for examples in batches(number)],
        "Foldloom": lambda number: [model.predict(examples) for examples in batches(number)],
        "ONNX file": lambda number: [exported(examples) for examples in batches(number)],
    }
    seconds = interleaved(systems, rounds=rounds)
    rates = {name: calls * batch / statistics.median(times) for name, times in seconds.items()}
    told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    onnx = seconds["ONNX file"]
    print(
        f"batch {batch}: trees/s: {told}; the file is {median_ratio(seconds['one by one'], onnx):.1f} times as fast as one by one, "
        f"{median_ratio(seconds['Foldloom'], onnx):.2f} times as fast as Foldloom"
    )
