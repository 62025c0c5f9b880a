"""Files changed at random and read: no traceback, no hang, no deed of the file's."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.mutations.kinds import KINDS
from benchmarks.mutations.worker import Verdict, Worker


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("mutations", description=__doc__, help="files changed at random, and read")
    parser.add_argument("--kind", required=True, metavar="KIND", help="what is changed; an unknown one lists all")
    parser.add_argument("--seed", type=int, default=0, help="of the first mutation; each next one has the next")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--show", action="store_true", help="print what comes of each")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    if options.kind not in KINDS:
        sys.exit(f"there is no kind {options.kind!r}; there are {', '.join(sorted(KINDS))}")
    verdicts = {}
    with tempfile.TemporaryDirectory() as folder, Worker(KINDS[options.kind], Path(folder)) as worker:
        for seed in range(options.seed, options.seed + options.count):
            verdicts[seed] = worker.verdict_on(seed)
            if options.show or verdicts[seed].is_fault:
                print(f"seed {seed}: {verdicts[seed].kind}, {verdicts[seed].detail}", flush=True)
    print(report(options.kind, verdicts))
    sys.exit(any(verdict.is_fault for verdict in verdicts.values()))


def report(kind: str, verdicts: dict[int, Verdict]) -> str:
    lines = []
    sorts = Counter(f"{v.kind}: {_without_numbers(v.detail)}" for v in verdicts.values() if v.is_fault)
    lines += [f"{count} x {sort}" for sort, count in sorts.most_common(40)]
    counts = Counter(verdict.kind for verdict in verdicts.values())
    faults = sum(verdict.is_fault for verdict in verdicts.values())
    lines.append(
        f"{len(verdicts)} mutations of kind {kind}: {counts['fine']} read, {counts['refused']} refused in one line, {faults} faults"
    )
    return "\n".join(lines)


def _without_numbers(detail: str) -> str:
    return re.sub(r"\d+", "N", detail)[:200]
