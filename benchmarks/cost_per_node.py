"""Whether the cost of a node stays the same from a thousand nodes to a million: recording, planning, running."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import foldloom as fl
from benchmarks.tree_lstm_models import TreeLSTM
from benchmarks.trees import Tree, random_trees


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "cost-per-node", description=__doc__, help="cost of a node against the number of nodes"
    )
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--most", type=int, default=1_000_000, help="nodes of the largest batch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the figures are to be kept")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = TreeLSTM(1000, options.hidden, options.hidden)
    # No tree twice: what is asked twice is computed once.
    pool = iter(random_trees(options.most // 10, vocabulary=1000))
    print(f"{'nodes':>10} {'steps':>6} {'record':>8} {'plan':>8} {'run':>8} {'total':>8}   microseconds a node")
    totals: list[float] = []
    seen: list[dict[str, float]] = []
    size = 1000
    while size <= options.most:
        trees = [*_about(pool, size)]
        nodes, steps, parts = _measure(model, trees, repeats=max(3, min(30, 300_000 // size)))
        totals.append(sum(parts))
        seen.append(dict(zip(("nodes", "record", "plan", "run", "total"), (nodes, *parts, totals[-1]), strict=True)))
        print(
            f"{nodes:>10,} {steps:>6} {parts[0]:>8.2f} {parts[1]:>8.2f} {parts[2]:>8.2f} {totals[-1]:>8.2f}", flush=True
        )
        size *= 10
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(seen, indent=1) + "\n")
    print(f"from the cheapest to the dearest after the first: {max(totals[1:]) / min(totals):.2f} times")


def _about(pool: Iterator[Tree], nodes: int) -> Iterator[Tree]:
    while nodes > 0:
        tree = next(pool)
        nodes -= sum(1 for _ in tree)
        yield tree


def _measure(model: TreeLSTM, trees: list[Tree], repeats: int) -> tuple[int, int, list[float]]:
    batched = fl.batch(model, stack=True)
    spent: list[list[float]] = []
    for _ in range(repeats):
        moments = [time.perf_counter()]
        recordings = [fl.record(model, tree) for tree in trees]
        moments.append(time.perf_counter())
        planned = fl.plan(recordings)
        moments.append(time.perf_counter())
        model.batched_loss(batched.run(planned)).backward()
        moments.append(time.perf_counter())
        model.zero_grad()
        spent.append([b - a for a, b in pairwise(moments)])
    nodes, steps = sum(recording.graph.node_count for recording in recordings), planned.statistics().steps
    return nodes, steps, [1e6 * statistics.median(column) / nodes for column in zip(*spent, strict=True)]
