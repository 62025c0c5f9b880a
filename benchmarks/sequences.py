"""A bidirectional LSTM over sequences of different lengths, forward and backward: ours beside torch's own over a packed sequence."""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import foldloom as fl
from benchmarks.timing import interleaved, median_ratio
from foldloom.tracing.rules import lstm
from foldloom.tracing.rules.modules import packed

CASES = {
    "64 sentences, 128 to 50": (64, 25, 128, 50),
    "64 sentences, 128 to 200": (64, 25, 128, 200),
    "64 sentences, 256 to 256": (64, 25, 256, 256),
    "8 sentences, 128 to 200": (8, 25, 128, 200),
    "256 words, 50 to 25": (256, 7, 50, 25),
}
"""How many sequences, how long they are on average, and the sizes of inputs and states."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser("sequences", description=__doc__, help="an LSTM over sequences of different lengths")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    for name, (count, mean, inputs, size) in CASES.items():
        torch.manual_seed(0)
        source = random.Random(0)
        lengths = torch.tensor([max(2, round(source.gauss(mean, mean / 2.5))) for _ in range(count)])
        module = nn.LSTM(inputs, size, bidirectional=True)
        sequences = fl.Ragged(torch.randn(int(lengths.sum()), inputs, requires_grad=True), lengths)
        ways: dict[str, Callable[..., Any]] = {"packed": packed, "ours": lstm.run}

        def step(way: Callable[..., Any], module: nn.LSTM = module, sequences: fl.Ragged = sequences) -> None:
            states, _ = way(module, sequences, None)
            states.values.sum().backward()

        seconds = interleaved({key: lambda _, way=way: step(way) for key, way in ways.items()}, rounds=options.rounds)  # type: ignore[misc]
        told = ", ".join(f"{key} {1000 * statistics.median(times):.1f} ms" for key, times in seconds.items())
        print(f"{name:<26} {told}, {median_ratio(seconds['packed'], seconds['ours']):.2f} times as fast")
