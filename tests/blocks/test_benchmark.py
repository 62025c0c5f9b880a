"""A small run of the benchmark of blocks: that it works, and that what it compares is the same model."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import blocks


def test_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    blocks.add_command(parser.add_subparsers())
    options = parser.parse_args(
        ["blocks", "--hidden", "4", "--embedding", "4", "--batch", "8", "--rounds", "2", "--workers", "1"]
    )
    options.run(options)
    printed = capsys.readouterr().out
    for expected in ("blocks / by hand", "planned in workers", "merging kept recordings"):
        assert expected in printed
