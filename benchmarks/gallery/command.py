"""The programs of ``examples.gallery``: one by one, batched by hand as their authors would otherwise do it, and unchanged under ``fl.batch``.

Programs that learn are timed with backward. Below 1 in the column "batched always", batches are slower than a loop, and `fl.batch` goes on one
by one by itself.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import foldloom as fl
from benchmarks.gallery import networks, samplers, trees
from benchmarks.gallery.figures import keep
from benchmarks.timing import interleaved, machine, median_ratio
from examples.gallery.programs import GALLERY, Program

ONE_BY_ONE, BY_HAND, ALWAYS, AS_USERS = "one by one", "by hand", "batched always", "fl.batch"

HAND_WRITTEN: dict[str, Callable[..., list[Any]]] = {
    "NUTS": samplers.nuts,
    "neural ODE": networks.neural_ode,
    "halting": networks.halting,
    "early exit": networks.early_exit,
    "tree search": networks.tree_search,
    "decoding": samplers.decoding,
    "particle filter": samplers.particle_filter,
    "symbolic regression": trees.symbolic_regression,
    "bug detector": trees.bug_detector,
    "inside algorithm": trees.inside_algorithm,
}


def add_command(commands: Any) -> None:
    parser = commands.add_parser("gallery", description=__doc__, help="samplers, solvers, searches and other programs")
    parser.add_argument("--program", nargs="+", choices=tuple(GALLERY), default=tuple(GALLERY))
    parser.add_argument("--batch", type=int, nargs="+", default=(16, 64, 256))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true", help="for a machine on which other things run")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--write", action="store_true", help="keep the figures, and write the table of docs/gallery.md")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    reports: dict[str, Any] = {"machine": machine()}
    clock = time.process_time if options.processor_time else time.perf_counter
    if not options.json:
        print(f"{'times as fast as one by one':<28} {BY_HAND:>10} {ALWAYS:>16} {AS_USERS:>10} {'pace':>12}")
    for name in options.program:
        for batch in options.batch:
            report = measured(name, batch, options.rounds, clock)
            what = f"{name}, {batch}"
            reports[what] = report
            if not options.json:
                columns = f"{report[BY_HAND]:>10.2f} {report[ALWAYS]:>16.2f} {report[AS_USERS]:>10.2f}"
                print(f"{what:<28} {columns} {report['pace']:>12}", flush=True)
    if options.json:
        print(json.dumps(reports, indent=2))
    if options.write:
        keep(reports)


def taken(program: Program, examples: Sequence[Any], run: Callable[[], list[Any]], learned: list[Tensor]) -> list[Any]:
    """The results of some examples, and gradients of what they learn."""
    if not program.learns:
        with torch.no_grad():
            return run()
    for tensor in learned:
        tensor.grad = None
    losses = run()
    torch.stack(losses).sum().backward()
    return losses


def measured(
    name: str, batch: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float | str]:
    """How many times as fast as one by one a program is, and what `fl.batch` has settled on."""
    torch.manual_seed(0)
    program = GALLERY[name]
    function = program.make()
    examples = program.made_examples(batch, 0)
    learned = program.learned(function, examples)
    batched, always = fl.batch(function), fl.batch(function)

    def watched() -> list[Any]:
        torch.use_deterministic_algorithms(True)  # no clock decides
        try:
            return always(examples)
        finally:
            torch.use_deterministic_algorithms(False)

    ways: dict[str, Callable[[], list[Any]]] = {
        ONE_BY_ONE: lambda: fl.one_by_one(function)(examples),
        BY_HAND: lambda: HAND_WRITTEN[name](function, examples),
        ALWAYS: watched,
        AS_USERS: lambda: batched(examples),
    }
    systems = {way: _turn(program, examples, run, learned) for way, run in ways.items()}
    for _ in range(12 if batch < 8 else 6):
        systems[AS_USERS](0)  # while it tries both ways
    seconds = interleaved(systems, rounds=rounds, clock=clock)
    pace = "; ".join(batched.paces.in_words())
    return {way: median_ratio(seconds[ONE_BY_ONE], seconds[way]) for way in (BY_HAND, ALWAYS, AS_USERS)} | {
        "pace": "one by one" if pace else "in batches"
    }


def _turn(
    program: Program, examples: Sequence[Any], run: Callable[[], list[Any]], learned: list[Tensor]
) -> Callable[[int], None]:
    def turn(_: int) -> None:
        taken(program, examples, run, learned)

    return turn
