"""Figures of the README and the docs, from what `python -m benchmarks peers` has kept."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import goals
from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.environments import OWN, ROOT
from benchmarks.peers.measuring import MEASURED, UNWRITTEN, Row
from benchmarks.peers.tasks import SETUPS

RESULTS = ROOT / "benchmarks" / "results"
README_SETUP = "tree-lstm"
README_PEERS = (
    "one-by-one", "by-hand", "foldloom-on-the-fly", "foldloom-cells", "foldloom-compiled-kept", "dynet-agenda", "geometric", "jax",
)  # fmt: skip
"""The README has a small table; docs/peers.md has all."""


def add_command(commands: Any) -> None:
    parser = commands.add_parser("peers-readme", description=__doc__, help="write what peers has seen into the docs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a folder with what the commands have kept")
    parser.add_argument("--root", type=Path, default=ROOT, help="where README.md and docs are")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    write_all(options.results, options.root)


def write_all(results: Path, root: Path) -> None:
    """What has not been measured stays as it is."""
    from benchmarks.peers import plots  # matplotlib is asked for where something is drawn, not for every benchmark

    pictures, page = root / "docs" / "peers", root / "docs" / "peers.md"
    if seen := _kept(results / "peers.json"):
        rows = [Row(**row) for row in seen["rows"]]
        plots.draw_rates(rows, pictures)
        shown = rates([row for row in rows if row.peer in README_PEERS], README_SETUP, 1, True)
        fill(root / "README.md", "peers", f"{shown}\n\n{where(seen['machine'], rows)}")
        fill(page, "rates", f"{all_rates(rows)}\n\n{where(seen['machine'], rows)}")
    if seen := _kept(results / "peers-goals.json"):
        rows = [Row(**row) for row in seen["rows"]]
        fill(page, "goals", f"{goals.table(rows)}\n\n{where(seen['machine'], rows)}")
    if costs := _kept(results / "cost-per-node.json"):
        plots.draw_costs(costs, pictures)


def _kept(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def fill(path: Path, name: str, text: str) -> None:
    """Replace what stands between the two marks of a name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{path} has no place for {name!r}: write {begin} and {end} where its figures belong")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def where(machine: dict[str, Any], rows: Sequence[Row]) -> str:
    commits = " and ".join(dict.fromkeys(row.commit or machine["commit"] for row in rows))
    spreads = [row.spread for row in rows if len(row.seconds) > 1]
    return (
        f"Seen on {machine['cores']} cores ({machine['processor']}), Python {machine['python']}, torch {machine['torch']}, "
        f"commit {commits}, load average {max(row.load for row in rows):.1f} at most. The middle half of the rounds of a peer spans "
        f"{statistics.median(spreads):.0%} of its figure, typically."
    )


def rates(rows: Sequence[Row], setup: str, threads: int, train: bool) -> str:
    """Examples a second, a line for each peer and a column for each batch size."""
    chosen = [row for row in rows if (row.setup, row.threads, row.train) == (setup, threads, train)]
    batches = sorted({row.batch for row in chosen})
    lines = [f"| | {' | '.join(f'batch {batch}' for batch in batches)} |", "|---" * (len(batches) + 1) + "|"]
    for name in dict.fromkeys(row.peer for row in chosen):
        of_peer = {row.batch: row for row in chosen if row.peer == name}
        if PEERS[name].environment == OWN and all(row.status == UNWRITTEN for row in of_peer.values()):
            continue  # a way of writing other models
        cells = [_cell(of_peer[batch]) if batch in of_peer else "" for batch in batches]
        lines.append(f"| {PEERS[name].title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    return f"{row.rate:,.0f}" if row.status == MEASURED else row.status


def all_rates(rows: Sequence[Row]) -> str:
    parts = []
    for setup, threads, train in dict.fromkeys((row.setup, row.threads, row.train) for row in rows):
        mode = "training" if train else "inference"
        title = f"**{SETUPS[setup].title}; {mode}, {threads} thread{'s' if threads > 1 else ''}**"
        parts.append(f"{title}\n\n{rates(rows, setup, threads, train)}")
    return "\n\n".join(parts)
