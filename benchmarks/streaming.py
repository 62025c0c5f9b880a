"""Streams: occupancy and time beside closed batches, memory over many examples, and what failing examples cost.

python -m benchmarks streaming              # lengths log-uniform from 10 to 1,000, against batches of 64
python -m benchmarks streaming --memory     # resident memory after 100,000 examples and after 1,000,000
python -m benchmarks streaming --poison     # 1 % of 100,000 examples raise, in Python, in a cell and in an operation
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import foldloom as fl


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "streaming", description=__doc__, help="streams beside closed batches, memory, failures"
    )
    parser.add_argument("--examples", type=int, help="(1,920; 1,000,000; 100,000)")
    parser.add_argument("--size", type=int, default=256, help="of the states (256)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--memory", action="store_true")
    which.add_argument("--poison", action="store_true")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    (_memory if options.memory else _poison if options.poison else _lengths)(options)


class Walker(nn.Module):
    """A recurrent cell that decides after each step whether to go on: no batch can be planned ahead."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.cell, self.head = nn.LSTMCell(size, size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor, steps: int) -> torch.Tensor:
        h = c = torch.zeros(self.size)
        for _ in range(steps):
            h, c = self.cell(x, (h, c))
            x = torch.tanh(self.head(h))
            if x[0] > 2:
                break
        total: torch.Tensor = h.sum()
        return total


# ---- Lengths


def _lengths(options: argparse.Namespace) -> None:
    model, draw = Walker(options.size), random.Random(0)
    count = options.examples or 1920
    steps = [int(10 ** draw.uniform(1, 3)) for _ in range(count)]
    inputs = [torch.randn(options.size) for _ in range(count)]
    batched = fl.batch(model)
    occupancy = 0.0

    def in_batches() -> list[torch.Tensor]:
        with torch.no_grad():
            return [
                result
                for first in range(0, count, options.width)
                for result in batched(inputs[first : first + options.width], steps[first : first + options.width])
            ]

    def in_a_stream() -> list[torch.Tensor]:
        nonlocal occupancy
        results = fl.stream(model, inputs, steps, width=options.width)
        found = list(results)
        occupancy = results.statistics().occupancy
        return found

    seconds: dict[str, list[float]] = {"batches": [], "a stream": []}
    for number in range(options.rounds):
        found = []
        for name, call in (("batches", in_batches), ("a stream", in_a_stream))[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            found.append(call())
            seconds[name].append(time.perf_counter() - start)
        torch.testing.assert_close(*found)
    print(f"{count} examples of 10 to 1,000 steps (log-uniform), {sum(steps)} steps, states of {options.size}")
    for name, times in seconds.items():
        print(f"{name:>10}: {statistics.median(times):.2f} s")
    ratio = statistics.median(seconds["a stream"]) / statistics.median(seconds["batches"])
    print(f"a stream of width {options.width} takes {ratio:.2f} of the time; its mean occupancy is {occupancy:.3f}")


# ---- Memory


def _resident() -> float:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _memory(options: argparse.Namespace) -> None:
    count = options.examples or 1_000_000
    weight = nn.Parameter(torch.randn(16, 16) / 4)

    def function(x: torch.Tensor) -> Any:
        steps = 0
        while steps < 3 and x.norm() > 0.1:
            x, steps = torch.tanh(x @ weight), steps + 1
        return x, steps

    draw = torch.Generator().manual_seed(0)
    inputs = (torch.randn(16, generator=draw) for _ in range(count))
    results = fl.stream(function, inputs, width=options.width * 4)
    start = time.perf_counter()
    at_a_tenth = 0.0
    for number, _ in enumerate(results, 1):
        if number == count // 10:
            at_a_tenth = _resident()
            print(f"after {number} examples ({time.perf_counter() - start:.0f} s): {at_a_tenth:.0f} MB", flush=True)
    now = _resident()
    print(f"after {count} examples ({time.perf_counter() - start:.0f} s): {now:.0f} MB, {now / at_a_tenth - 1:+.1%}")
    print(f"forgotten {results.statistics().renewals} times")


# ---- Poison


class _Fragile(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.table, self.step = nn.Embedding(100, size), nn.Linear(size, size)
        self.bounded = fl.cell(_bounded)

    def forward(self, word: int, poison: str, at: int) -> torch.Tensor:
        x = self.table(torch.tensor(word))
        for number in range(4):
            if number == at and poison == "python":
                raise KeyError(word)
            if number == at and poison == "operator":
                x = x + self.table(torch.tensor(1000 + word))
            x = torch.tanh(self.step(x))
            x = self.bounded(x + 1000 if number == at and poison == "cell" else x)
            if number % 2 and x[0] > 10:
                break
        total: torch.Tensor = x.sum()
        return total


def _bounded(rows: torch.Tensor) -> torch.Tensor:
    if bool((rows > 100).any()):
        raise ArithmeticError("too large")
    return rows * 1.5


def _poison(options: argparse.Namespace) -> None:
    count = options.examples or 100_000
    model, draw = _Fragile(options.size), random.Random(0)
    words = [draw.randrange(100) for _ in range(count)]
    at = [draw.randrange(4) for _ in range(count)]
    kinds = itertools.cycle(("python", "operator", "cell"))
    poisoned = set(draw.sample(range(count), count // 100))
    poison = [next(kinds) if number in poisoned else "no" for number in range(count)]
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    last: dict[str, list[Any]] = {}

    def results(kinds: list[str]) -> Iterator[Any]:
        return fl.stream(model, words, kinds, at, width=options.width * 4, errors="return")

    for number in range(options.rounds):
        for name, kinds_now in (("without", ["no"] * count), ("with", poison))[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            last[name] = list(results(kinds_now))
            seconds[name].append(time.perf_counter() - start)
    errors = {number: result for number, result in enumerate(last["with"]) if isinstance(result, Exception)}
    assert errors.keys() == poisoned
    assert all(f"in example {number}" in error.__notes__ for number, error in errors.items())
    assert all(any(".py:" in note for note in error.__notes__) for error in errors.values())
    torch.testing.assert_close(
        *[[r for n, r in enumerate(last[name]) if n not in poisoned] for name in ("with", "without")]
    )
    slower = statistics.median(seconds["with"]) / statistics.median(seconds["without"]) - 1
    for name, times in seconds.items():
        print(f"{name:>8} poison: {statistics.median(times):.2f} s")
    print(
        f"{len(errors)} of {count} examples raised, each with its number and a line; all other results are equal; {slower:+.1%} of time"
    )
