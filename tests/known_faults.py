"""Takes the tests that pass by now off the list of known faults: ``python -m tests.known_faults``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

KNOWN_FAULTS = Path(__file__).with_name("known_faults.txt")


class _Mended:
    """Notes known faults that passed."""

    def __init__(self) -> None:
        self.tests: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.failed and "[XPASS(strict)]" in str(report.longrepr):
            self.tests.add(report.nodeid)


def main(paths: list[str]) -> None:
    mended = _Mended()
    pytest.main(["-q", "--no-header", "--tb=no", *paths], plugins=[mended])
    lines = KNOWN_FAULTS.read_text().splitlines(keepends=True)
    left = [line for line in lines if line.rstrip("\n").split("\t")[1] not in mended.tests]
    KNOWN_FAULTS.write_text("".join(left))
    print(f"{len(lines) - len(left)} known faults are mended, {len(left)} are left")


if __name__ == "__main__":
    main(sys.argv[1:])
