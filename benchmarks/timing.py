"""Side by side in one process: every system takes its turn in every round, and medians are compared."""

from __future__ import annotations

import gc
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch


def interleaved(
    systems: dict[str, Callable[[int], Any]],
    *,
    rounds: int,
    warm_up: int = 2,
    progress: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds taken by ``system(round)`` for each system and round.

    Systems leave caches and the heap in different states for whoever comes next, so every round has another order.
    """
    names = list(systems)
    shown = progress and sys.stderr.isatty()
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warm_up, rounds):
        order.shuffle(names)
        for name in names:
            gc.collect()
            start = clock()
            systems[name](number % rounds)
            if number >= 0:
                seconds[name].append(clock() - start)
        if shown:
            print(f"\r  round {number + 1}/{rounds}", end="", flush=True, file=sys.stderr)
    if shown:
        print("\r" + " " * 30 + "\r", end="", flush=True, file=sys.stderr)
    return seconds


def median_ratio(slow: list[float], fast: list[float]) -> float:
    """How many times as fast the second is: the median over rounds of the ratio within a round."""
    return statistics.median(s / f for s, f in zip(slow, fast, strict=True))


def machine() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": commit.stdout.strip(),
        "load average": os.getloadavg()[0],
    }
