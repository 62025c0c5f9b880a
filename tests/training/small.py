"""Trainings of a few seconds, for tests in this process and in others."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from foldloom.tasks import TASKS
from foldloom.training import Run, train

ALIKE = {
    "sentiment": {"dropout": "0", "recurrent_dropout": "0", "batch": "27"},
    "tagging": {"dropout": "0", "forgetting": "0", "batch": "30", "epochs": "2"},
}
"""Settings with which several processes compute what one does: nothing is drawn at random. Batches do not divide evenly."""


def small_run(folder: Path, task: str = "sentiment", written: Mapping[str, str] | None = None) -> Run:
    return Run.new(folder, task, settings=TASKS[task].defaults(quick=True).changed(written or {}), quick=True)


def trained(folder: Path, task: str = "sentiment", written: Mapping[str, str] | None = None, **options: Any) -> Run:
    run = small_run(folder, task, written)
    assert train(run, device="cpu", progress=False, **options)
    return run


def curve(folder: Path) -> list[dict[str, str]]:
    with (folder / "curves.csv").open(newline="") as file:
        return [{name: text for name, text in row.items() if name != "seconds"} for row in csv.DictReader(file)]


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))


def final_weights(folder: Path) -> dict[str, bytes]:
    """Those of the last step, which is not always the best."""
    checkpoint = checkpoints(folder)[-1]
    return {name: array.tobytes() for name, array in load_file(checkpoint / "model.safetensors").items()}
