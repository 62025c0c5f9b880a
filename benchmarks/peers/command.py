"""Foldloom beside its peers: the same models, weights and data, one run."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.corpora import DATA
from benchmarks.peers import goals, readme, report
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.environments import OWN
from benchmarks.peers.measuring import Field
from benchmarks.peers.tasks import SETUPS, write

WIDE = (
    "one-by-one", "by-hand", "foldloom-on-the-fly", "foldloom-cells", "foldloom-compiled", "foldloom-blocks",
    "dynet-agenda", "geometric",
)  # fmt: skip
"""Who runs the widest models: those that have a way of their own to batch them."""

MODES = {"training": True, "inference": False}


def add_command(commands: Any) -> None:
    parser = commands.add_parser("peers", description=__doc__, help="Foldloom beside its peers")
    parser.add_argument("--task", nargs="+", choices=SETUPS, default=list(SETUPS))
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 25, 64, 256])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA,
        help="a folder with sst, wikiner, ud_ewt and molecules (default: FOLDLOOM_DATA); what it has not is made up",
    )
    parser.add_argument(
        "--goals",
        action="store_true",
        help="measure what the goals need, whatever else is asked, and say which are met",
    )
    parser.add_argument(
        "--shown", action="store_true", help="measure what the README and docs/peers.md show, whatever else is asked"
    )
    parser.add_argument("--json", type=Path, help="where everything that was seen is to be kept")
    parser.add_argument(
        "--add", action="store_true", help="leave in the file of --json what it has of other tasks, batches and threads"
    )
    parser.set_defaults(run=run)
    readme.add_command(commands)


def progress(text: str) -> None:
    print(f"\r\033[K  {text}", end="", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Job:
    """What is measured together."""

    threads: int
    setup: str
    batch: int
    modes: list[bool]
    peers: list[Peer]


def run(options: argparse.Namespace) -> None:
    jobs = _jobs_of_goals(options) if options.goals else _jobs_shown() if options.shown else _jobs_as_asked(options)
    environments = {OWN, *[peer.environment for job in jobs for peer in job.peers]}
    versions = report.installed(sorted(environments)) if options.json else {}
    rows = report.kept(options.json) if options.add else []
    with tempfile.TemporaryDirectory() as folder:
        for threads, of_threads in itertools.groupby(jobs, key=lambda job: job.threads):
            with Field(threads, options.rounds, progress) as field:
                for name, of_setup in itertools.groupby(of_threads, key=lambda job: job.setup):
                    files = write(SETUPS[name], options.data, Path(folder))
                    for job in of_setup:
                        seen = field.measure(files, job.batch, job.modes, job.peers)
                        progress("")
                        print(report.table(files, seen), flush=True)
                        rows = [row for row in rows if row.job not in {new.job for new in seen}] + seen
                        if options.json:  # after each job, so that what was seen outlives an interruption
                            report.keep(options.json, rows, versions)
    if options.goals:
        print(goals.table(rows))


def _jobs_shown() -> list[Job]:
    """All of a task with one thread, and trees with two. Trees of 128 leaves with states of 1,024 take seconds a batch: inference of
    a few, and the widest batch of them is among the goals."""
    small = [*_range_of(1, ("tree-lstm", "tagger", "tagger-characters", "tagger-characters-256", "parser", "weave"))]
    wide = [
        Job(1, setup, batch, [False], [PEERS[name] for name in WIDE])
        for setup in ("iclr-shared", "iclr-different")
        for batch in (1, 16, 64)
    ]
    return [*small, *wide, *_range_of(2, ("tree-lstm",))]


def _range_of(threads: int, setups: Iterable[str]) -> Iterator[Job]:
    """Every peer on some tasks, from one example to many at a time."""
    for setup in setups:
        for batch in (1, 16, 64, 256):
            yield Job(threads, setup, batch, list(MODES.values()), list(PEERS.values()))


def _jobs_as_asked(options: argparse.Namespace) -> list[Job]:
    modes, peers = [MODES[name] for name in options.mode], [PEERS[name] for name in options.peer]
    return [
        Job(threads, setup, batch, modes, peers)
        for threads in options.threads
        for setup in options.task
        for batch in options.batch
        if batch <= SETUPS[setup].count
    ]


def _jobs_of_goals(options: argparse.Namespace) -> list[Job]:
    """Goals on the same task and batch share one measurement."""
    jobs = []
    asked = [goal for goal in goals.GOALS if goal.setup in options.task and goal.threads in options.threads]
    for key in sorted({goal.key for goal in asked}):
        same = [goal for goal in asked if goal.key == key]
        modes = sorted({goal.train for goal in same}, reverse=True)
        jobs.append(Job(*key, modes, [PEERS[name] for name in goals.peers_of(same)]))
    return jobs
