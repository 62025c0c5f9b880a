"""What was seen, as text and as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.environments import EnvironmentMissingError, versions_of
from benchmarks.peers.measuring import MEASURED, Row
from benchmarks.peers.tasks import Files
from benchmarks.timing import machine


def table(files: Files, rows: Sequence[Row]) -> str:
    """Rows of one task and batch size."""
    first = rows[0]
    unit = f"{files.made.examples}/s"
    lines = [
        f"{files.setup.title}; batch {first.batch}, {first.threads} thread(s); load average {max(row.load for row in rows):.1f}"
    ]
    for train in dict.fromkeys(row.train for row in rows):
        lines.append(f"  {'training' if train else 'inference'}, {unit}")
        for row in rows:
            if row.train is train:
                spread = f"   spread {row.spread:>4.0%}" if len(row.seconds) > 1 else ""
                seen = f"{row.rate:>10,.1f}{spread}" if row.status == MEASURED else f"  {row.status}"
                reason = f": {row.reason}" if row.reason else ""
                lines.append(f"    {PEERS[row.peer].title:<40}{seen}{reason}")
    return "\n".join(lines) + "\n"


def installed(environments: Sequence[str]) -> dict[str, dict[str, str]]:
    """The versions in each environment."""
    found = {}
    for environment in environments:
        try:
            found[environment] = versions_of(environment)
        except EnvironmentMissingError as error:
            found[environment] = {"missing": str(error)}
    return found


def kept(path: Path) -> list[Row]:
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def keep(path: Path, rows: Sequence[Row], versions: Mapping[str, Mapping[str, str]]) -> None:
    """Everything, with the machine and the versions it was seen on."""
    here = machine()
    for row in rows:
        row.commit = row.commit or here["commit"]
    content = {"machine": here, "installed": versions, "rows": [asdict(row) for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
