"""A training step of a Tree-LSTM with a loss at every node: one by one, by hand, Foldloom, and the matrix products alone."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import foldloom as fl
from benchmarks.timing import interleaved, machine, median_ratio
from benchmarks.tree_lstm_models import ProductsAlone, TreeLSTM, flatten, loss_by_hand, plan_by_hand
from benchmarks.trees import Tree, random_trees, read_treebank

ONE_BY_ONE = "one by one"
BY_HAND = "by hand"
BY_HAND_WORDS_ONCE = "by hand, each word once"
BY_HAND_AFRESH = "by hand, flattening"
FOLDLOOM = "foldloom"
FOLDLOOM_AFRESH = "foldloom, recording"
FOLDLOOM_COMPILED = "foldloom, compiled cells"
FOLDLOOM_COMPILED_AFRESH = "foldloom, compiled cells, recording"
PRODUCTS = "matrix products alone"


def add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hidden", type=int, default=150)
    parser.add_argument("--embedding", type=int, default=300)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--sst", type=Path, help="a treebank in bracket notation, such as SST's train.txt; default: random trees"
    )


def add_command(commands: Any) -> None:
    parser = commands.add_parser("tree-lstm", description=__doc__, help="training step of a Tree-LSTM")
    add_model_options(parser)
    parser.add_argument(
        "--rounds", type=int, default=0, help="default: about 6,000 trees for each system, 16 rounds at least"
    )
    parser.add_argument(
        "--no-memory", action="store_true", help="leave out peak memory, which runs each system in a process of its own"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--peak-memory-of", choices=(BY_HAND, FOLDLOOM), help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


class Systems:
    """One model, several ways to train it. Each system is a function of the round, which picks the batch."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.size = options.batch
        trees, vocabulary = self._trees(options)
        self.trees = trees
        self.model = TreeLSTM(vocabulary, options.embedding, options.hidden)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batched = fl.batch(self.model, stack=True)
        self.compiled = fl.batch(self.model.compiled(), stack=True)
        self.recordings = [fl.record(self.model, tree) for tree in trees]
        self.flat = [flatten(tree) for tree in trees]
        self.products = [ProductsAlone(self.model, plan_by_hand(self.of_round(self.flat, n))) for n in range(4)]

    @staticmethod
    def _trees(options: argparse.Namespace) -> tuple[list[Tree], int]:
        count = 8 * max(64, options.batch)
        if options.sst is None:
            return random_trees(count), 18_000
        trees, vocabulary = read_treebank(options.sst)
        random.Random(0).shuffle(trees)
        return trees[:count], vocabulary

    def of_round(self, items: list[Any], number: int) -> list[Any]:
        start = number % (len(items) // self.size) * self.size
        return items[start : start + self.size]

    def step(self, loss: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def foldloom(self, number: int) -> float:
        planned = fl.plan(self.of_round(self.recordings, number))
        return self.step(self.model.batched_loss(self.batched.run(planned)))

    def foldloom_compiled(self, number: int) -> float:
        planned = fl.plan(self.of_round(self.recordings, number))
        return self.step(self.model.batched_loss(self.compiled.run(planned)))

    def foldloom_compiled_afresh(self, number: int) -> float:
        return self.step(self.model.batched_loss(self.compiled(self.of_round(self.trees, number))))

    def foldloom_afresh(self, number: int) -> float:
        return self.step(self.model.batched_loss(self.batched(self.of_round(self.trees, number))))

    def by_hand(self, number: int) -> float:
        return self.step(loss_by_hand(self.model, plan_by_hand(self.of_round(self.flat, number))))

    def by_hand_words_once(self, number: int) -> float:
        return self.step(loss_by_hand(self.model, plan_by_hand(self.of_round(self.flat, number), each_word_once=True)))

    def by_hand_afresh(self, number: int) -> float:
        flat = [flatten(tree) for tree in self.of_round(self.trees, number)]
        return self.step(loss_by_hand(self.model, plan_by_hand(flat)))

    def one_by_one(self, number: int) -> float:
        """A few trees of the batch: all of them would take minutes."""
        trees = self.of_round(self.trees, number)[: self.alone(self.size)]
        return self.step(self.model.batched_loss(fl.one_by_one(self.model, stack=True)(trees)))

    @staticmethod
    def alone(size: int) -> int:
        return min(16, size)

    def products_alone(self, number: int) -> None:
        self.products[number % 4].run()


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    systems = Systems(options)
    if options.peak_memory_of:
        print(_peak_memory(systems, options.peak_memory_of))
        return
    losses = _first_losses(systems)
    rounds = options.rounds or max(16, 6000 // options.batch)
    by_name: dict[str, Callable[[int], Any]] = {
        ONE_BY_ONE: systems.one_by_one,
        BY_HAND: systems.by_hand,
        BY_HAND_WORDS_ONCE: systems.by_hand_words_once,
        FOLDLOOM: systems.foldloom,
        BY_HAND_AFRESH: systems.by_hand_afresh,
        FOLDLOOM_AFRESH: systems.foldloom_afresh,
        FOLDLOOM_COMPILED: systems.foldloom_compiled,
        FOLDLOOM_COMPILED_AFRESH: systems.foldloom_compiled_afresh,
        PRODUCTS: systems.products_alone,
    }
    seconds = interleaved(by_name, rounds=rounds, progress=not options.json)
    trees = dict.fromkeys(by_name, options.batch)
    trees[ONE_BY_ONE] = systems.alone(options.batch)
    per_tree = {name: [second / trees[name] for second in times] for name, times in seconds.items()}
    report = {
        "machine": machine(),
        "options": {key: str(value) for key, value in vars(options).items() if key != "run"},
        "first loss": losses,
        "trees/s": {name: 1 / statistics.median(times) for name, times in per_tree.items()},
        "ratios": {
            "foldloom / by hand": median_ratio(per_tree[BY_HAND], per_tree[FOLDLOOM]),
            "foldloom / by hand, each word once": median_ratio(per_tree[BY_HAND_WORDS_ONCE], per_tree[FOLDLOOM]),
            "foldloom / by hand, recording and flattening afresh": median_ratio(
                per_tree[BY_HAND_AFRESH], per_tree[FOLDLOOM_AFRESH]
            ),
            "foldloom, compiled cells / by hand": median_ratio(per_tree[BY_HAND], per_tree[FOLDLOOM_COMPILED]),
            "foldloom, compiled cells / by hand, recording and flattening afresh": median_ratio(
                per_tree[BY_HAND_AFRESH], per_tree[FOLDLOOM_COMPILED_AFRESH]
            ),
            "foldloom / one by one": median_ratio(per_tree[ONE_BY_ONE], per_tree[FOLDLOOM]),
            "foldloom / matrix products alone": median_ratio(per_tree[PRODUCTS], per_tree[FOLDLOOM]),
            "by hand / matrix products alone": median_ratio(per_tree[PRODUCTS], per_tree[BY_HAND]),
        },
        "milliseconds of a step": _split(systems, rounds=min(rounds, 24)),
        "plan": str(fl.plan(systems.of_round(systems.recordings, 0)).statistics()),
    }
    if not options.no_memory:
        report["peak memory, MB"] = {name: _peak_memory_apart(name) for name in (BY_HAND, FOLDLOOM)}
    print(json.dumps(report, indent=2) if options.json else _table(report))


def _first_losses(systems: Systems) -> dict[str, float]:
    """All systems start from the same weights, so their first losses agree."""
    rate, systems.optimizer.param_groups[0]["lr"] = systems.optimizer.param_groups[0]["lr"], 0.0
    losses = {
        BY_HAND: systems.by_hand(0),
        BY_HAND_WORDS_ONCE: systems.by_hand_words_once(0),
        FOLDLOOM: systems.foldloom(0),
        FOLDLOOM_AFRESH: systems.foldloom_afresh(0),
        FOLDLOOM_COMPILED: systems.foldloom_compiled(0),
    }
    systems.optimizer.param_groups[0]["lr"] = rate
    for name, loss in losses.items():
        if abs(loss - losses[BY_HAND]) > 1e-4 * abs(losses[BY_HAND]):
            raise AssertionError(f"{name} starts at a loss of {loss}, by hand at {losses[BY_HAND]}: not the same model")
    return losses


def _split(systems: Systems, rounds: int) -> dict[str, float]:
    """Where a step of Foldloom spends its time."""
    spent: dict[str, list[float]] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = function()
        spent.setdefault(name, []).append(1000 * (time.perf_counter() - start))
        return result

    for number in range(rounds):
        trees = systems.of_round(systems.trees, number)
        timed("recording", partial(_record_all, systems.model, trees))
        planned = timed("planning", partial(fl.plan, systems.of_round(systems.recordings, number)))
        results = timed("forward", partial(systems.batched.run, planned))
        loss = timed("loss", partial(systems.model.batched_loss, results))
        systems.optimizer.zero_grad()
        timed("backward", loss.backward)
        timed("update", systems.optimizer.step)
    return {name: statistics.median(times) for name, times in spent.items()}


def _record_all(model: TreeLSTM, trees: list[Tree]) -> list[fl.Recording]:
    return [fl.record(model, tree) for tree in trees]


def _peak_memory(systems: Systems, name: str) -> float:
    """By how many megabytes a few steps raise the most memory that the process ever had."""

    def peak() -> float:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    step = systems.by_hand if name == BY_HAND else systems.foldloom
    for number in range(6):
        step(number)
    return peak() - before


def _peak_memory_apart(name: str) -> float:
    command = [sys.executable, "-m", "benchmarks", *sys.argv[1:], "--peak-memory-of", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _table(report: dict[str, Any]) -> str:
    options = report["options"]
    data = "treebank" if options["sst"] != "None" else "random"
    lines = [
        f"Tree-LSTM, {data} trees, embedding {options['embedding']}, hidden {options['hidden']}, batch {options['batch']}, "
        f"{options['threads']} thread(s); {report['plan']}",
        "",
    ]
    for section in ("trees/s", "ratios", "milliseconds of a step", "peak memory, MB"):
        if section in report:
            lines.append(section)
            digits = 2 if section == "ratios" else 0 if section == "trees/s" else 1
            lines += [f"  {name:<70} {value:>10,.{digits}f}" for name, value in report[section].items()]
    return "\n".join(lines)
