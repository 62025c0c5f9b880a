"""What `python -m benchmarks gallery --write` has kept, as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.peers.environments import ROOT
from benchmarks.peers.readme import fill
from examples.gallery.programs import GALLERY

RESULTS = ROOT / "benchmarks" / "results" / "gallery.json"
PAGE = ROOT / "docs" / "gallery.md"
HEAD = """| times as fast as one by one, in batches of | 16 | 64 | 256 |
|---|---|---|---|
"""
BATCHES = (16, 64, 256)


def keep(reports: dict[str, Any]) -> None:
    """Add what was measured to what has been before, and write the table."""
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    machine = reports["machine"]
    kept |= {what: {**report, "machine": machine} for what, report in reports.items() if what != "machine"}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    fill(PAGE, "figures", f"{table(GALLERY)}\n\n{where()}")


def table(names: Iterable[str]) -> str:
    kept = json.loads(RESULTS.read_text())
    return HEAD + "\n".join(_row(name, kept) for name in names)


def where() -> str:
    """What the figures were seen on."""
    machines = [report["machine"] for report in json.loads(RESULTS.read_text()).values()]
    commits = sorted({machine["commit"] for machine in machines})
    first = machines[0]
    return (
        f"Seen on {first['cores']} cores ({first['processor']}), one thread, Python {first['python']}, torch {first['torch']}, "
        f"commit {' and '.join(commits)}."
    )


def _row(name: str, kept: dict[str, Any]) -> str:
    cells = []
    for batch in BATCHES:
        report = kept.get(f"{name}, {batch}")
        cells.append(_cell(report) if report else "")
    return f"| {name} | {' | '.join(cells)} |"


def _cell(report: dict[str, Any]) -> str:
    """Under `fl.batch`; in brackets by hand; and what it would be if a batch that does not pay went on."""
    told = f"**{report['fl.batch']:.1f}** ({report['by hand']:.1f})"
    return f"{told}, always batched {report['batched always']:.2f}" if report["pace"] == "one by one" else told
