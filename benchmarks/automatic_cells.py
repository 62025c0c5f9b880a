"""The programs of ``examples``, which know of no batch: one by one, batched operation by operation, and batched with automatic cells."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import foldloom as fl
from benchmarks.timing import interleaved, machine, median_ratio
from examples.programs import PROGRAMS

WITHOUT, WITH = "operations", "automatic cells"


def add_command(commands: Any) -> None:
    parser = commands.add_parser(
        "automatic-cells", description=__doc__, help="plain programs, with automatic cells and without"
    )
    parser.add_argument("--program", nargs="+", choices=tuple(PROGRAMS), default=tuple(PROGRAMS))
    parser.add_argument("--batch", type=int, nargs="+", default=(16, 64))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor-time", action="store_true", help="for a machine on which other things run")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    reports: dict[str, Any] = {"machine": machine()}
    clock = time.process_time if options.processor_time else time.perf_counter
    if not options.json:
        print(f"{'times as fast as one by one':<44} {WITHOUT:>12} {WITH:>16}")
    for name in options.program:
        for batch in options.batch:
            for training in (True, False):
                ratios = measured(name, batch, training, options.rounds, clock)
                what = f"{name}, {'training' if training else 'inference'}, batch {batch}"
                reports[what] = ratios
                if not options.json:
                    print(f"{what:<44} {ratios[WITHOUT]:>12.2f} {ratios[WITH]:>16.2f}", flush=True)
    if options.json:
        print(json.dumps(reports, indent=2))


def measured(
    name: str, batch: int, training: bool, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """How many times as fast as one by one a program is."""
    torch.manual_seed(0)
    program = PROGRAMS[name]
    model = program.model()
    examples: Sequence[Any] = program.made_examples(batch, 0)

    def step(run: Callable[..., Any]) -> Callable[[int], None]:
        def take(_: int) -> None:
            with torch.set_grad_enabled(training):
                loss = run(examples).sum()
                if training:
                    model.zero_grad()
                    loss.backward()

        return take

    systems = {
        "one by one": step(fl.one_by_one(model, stack=True)),
        WITHOUT: step(fl.batch(model, stack=True, automatic_cells=False)),
        WITH: step(fl.batch(model, stack=True)),
    }
    seconds = interleaved(systems, rounds=rounds, clock=clock)
    return {way: median_ratio(seconds["one by one"], seconds[way]) for way in (WITHOUT, WITH)}
