"""What was seen, as text and as a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.environments import OWN, EnvironmentMissingError, versions_of
from benchmarks.peers.measuring import MEASURED, Row
from benchmarks.peers.tasks import Files
from benchmarks.timing import machine


def table(files: Files, rows: Sequence[Row]) -> str:
    """Rows of one task and batch size."""
    first = rows[0]
    unit = f"{files.made.examples}/s"
    lines = [f"{files.setup.title}; batch {first.batch}, {first.threads} thread(s)"]
    for train in dict.fromkeys(row.train for row in rows):
        lines.append(f"  {'training' if train else 'inference'}, {unit}")
        for row in rows:
            if row.train is train:
                seen = f"{row.rate:>10,.1f}" if row.status == MEASURED else f"  {row.status}"
                reason = f": {row.reason}" if row.reason else ""
                lines.append(f"    {PEERS[row.peer].title:<40}{seen}{reason}")
    return "\n".join(lines) + "\n"


def keep(path: Path, rows: Sequence[Row], environments: Sequence[str]) -> None:
    """Everything, with the machine and the versions it was seen on."""
    installed = {}
    for environment in (OWN, *environments):
        try:
            installed[environment] = versions_of(environment)
        except EnvironmentMissingError as error:
            installed[environment] = {"missing": str(error)}
    content = {"machine": machine(), "installed": installed, "rows": [asdict(row) for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
