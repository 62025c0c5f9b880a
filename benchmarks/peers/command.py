"""Foldloom beside its peers: the same models, weights and data, one run."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.corpora import DATA
from benchmarks.peers import report
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.measuring import Field
from benchmarks.peers.tasks import SETUPS, write

MODES = {"training": True, "inference": False}


def add_command(commands: Any) -> None:
    parser = commands.add_parser("peers", description=__doc__, help="Foldloom beside its peers")
    parser.add_argument("--task", nargs="+", choices=SETUPS, default=list(SETUPS))
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 25, 64, 256])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA,
        help="a folder with sst, wikiner, ud_ewt and molecules (default: FOLDLOOM_DATA); what it has not is made up",
    )
    parser.add_argument("--json", type=Path, help="where everything that was seen is to be kept")
    parser.set_defaults(run=run)


def progress(text: str) -> None:
    print(f"\r\033[K  {text}", end="", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    rows = []
    peers = [PEERS[name] for name in options.peer]
    modes = [MODES[name] for name in options.mode]
    with tempfile.TemporaryDirectory() as folder:
        written = {name: write(SETUPS[name], options.data, Path(folder)) for name in options.task}
        for threads in options.threads:
            with Field(threads, options.rounds, progress) as field:
                for files in written.values():
                    for batch in options.batch:
                        seen = field.measure(files, batch, modes, peers)
                        progress("")
                        print(report.table(files, seen), flush=True)
                        rows += seen
    if options.json:
        report.keep(options.json, rows, sorted({peer.environment for peer in peers}))
