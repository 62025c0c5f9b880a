"""What the programs of the gallery share: running them, and saying how much faster that is in a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import foldloom as fl


def demonstrate(
    program: Callable[..., Any], made_examples: Callable[[int, int], Sequence[Any]], count: int = 64
) -> Any:
    """Run a program of one example on many, alone and in a batch, and say how much faster the batch is."""
    torch.set_num_threads(1)
    examples = made_examples(count, 0)
    alone, batched = fl.one_by_one(program), fl.batch(program)

    def run(way: Callable[..., Any]) -> Any:
        results = way(examples)
        if isinstance(program, nn.Module) and program.training:
            program.zero_grad()
            torch.stack(results).mean().backward()
        return results

    def seconds(way: Callable[..., Any]) -> float:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            run(way)
            times.append(time.perf_counter() - start)
        return sorted(times)[1]

    for _ in range(2):
        results = run(batched)
    ratio = seconds(alone) / seconds(batched)
    print(f"{type(program).__name__}: {count} examples, batched {ratio:.1f} times as fast as one by one", flush=True)
    return results
