"""How large a step should be: a training step of a Tree-LSTM, with steps of at most so many members."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch

import foldloom as fl
from benchmarks.timing import interleaved, median_ratio
from benchmarks.tree_lstm import Systems, add_model_options

SIZES = (256, 512, 1024, 2048, 4096, None)


def add_command(commands: Any) -> None:
    parser = commands.add_parser("step-size", description=__doc__, help="how large a step should be")
    add_model_options(parser)
    parser.add_argument("--rounds", type=int, default=24)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    systems = Systems(options)

    def training(largest: int | None) -> Callable[[int], float]:
        scheduler = fl.ByDepth(largest_step=largest)
        batches = len(systems.recordings) // options.batch
        planned = [fl.plan(systems.of_round(systems.recordings, number), scheduler) for number in range(batches)]
        return lambda number: systems.step(systems.model.batched_loss(systems.batched.run(planned[number % batches])))

    seconds = interleaved({str(size): training(size) for size in SIZES}, rounds=options.rounds)
    for name, times in seconds.items():
        rate, ratio = options.batch / statistics.median(times), median_ratio(seconds["None"], times)
        print(f"at most {name:>5} members: {rate:>7,.0f} trees/s, {ratio:.3f} times as fast as without a limit")
