"""The command that trains the models of the literature, and the page that it writes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from benchmarks import quality
from foldloom.tasks import TASKS

SMALL = quality.Experiment(
    name="small",
    model="a model",
    corpus="made up",
    task="adding",
    settings={"sequences": "64", "shortest": "4", "longest": "9", "epochs": "1"},
    scores={"solved": "percent", "mean error": "number"},
    published="never",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(quality, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(quality, "PAGE", tmp_path / "results.md")
    monkeypatch.setattr(quality, "EXPERIMENTS", (SMALL,))
    return tmp_path


def options(folder: Path, *seeds: int, page: bool = False) -> argparse.Namespace:
    return argparse.Namespace(only=["small"], seeds=seeds, runs=folder / "runs", page=page)


def test_what_has_a_record_is_not_trained_again(folder: Path) -> None:
    quality.run(options(folder, 0))
    path = SMALL.record_of(0)
    record = json.loads(path.read_text())
    assert (record["seed"], record["examples"]["train"]) == (0, 64)
    assert record["command"].endswith("--set epochs=1 --threads 1 --seed 0")
    assert set(record["scores"]) >= {"solved", "mean error"}
    changed = {**record, "scores": {"solved": 0.25, "mean error": 0.5}}
    path.write_text(json.dumps(changed))
    quality.run(options(folder, 0, 1))
    assert json.loads(path.read_text()) == changed
    assert json.loads(SMALL.record_of(1).read_text())["seed"] == 1


def test_the_page_is_made_of_records_alone(folder: Path) -> None:
    quality.RECORDS.mkdir()
    for seed, solved in enumerate((0.25, 0.75)):
        record = {
            "seed": seed,
            "scores": {"solved": solved, "mean error": 0.125},
            "examples": {"train": 1_000, "dev": 2, "test": 3},
            "parameters": 4_000,
            "processor seconds": 60 * (seed + 1) if seed else None,
            "machine": {"cores": 2, "python": "3.11", "torch": "2"},
        }
        SMALL.record_of(seed).write_text(json.dumps(record))
    quality.run(options(folder, 0, 1, 2, page=True))
    page = (folder / "results.md").read_text()
    scores = "solved **50.0** % (25.0 to 75.0); mean error **0.125** (0.125 to 0.125)"
    assert f"| a model | made up | {scores} | 0, 1 | never | 2.0 |" in page
    assert "1,000 examples to learn from" in page


def test_an_interrupted_training_goes_on(folder: Path) -> None:
    quality.run(options(folder, 0))
    SMALL.record_of(0).unlink()
    quality.run(options(folder, 0))
    assert json.loads(SMALL.record_of(0).read_text())["processor seconds"] is None


def test_missing_data_is_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = quality.Experiment(
        name="missing", model="", corpus="", task="tagging", source="no such folder", scores={}, published=""
    )
    quality.run_experiment(missing, 0, folder / "run")
    assert "skipped" in capsys.readouterr().out


def test_settings_of_experiments_are_those_of_their_tasks() -> None:
    for experiment in quality.EXPERIMENTS:
        settings = TASKS[experiment.task].defaults().changed(experiment.written_settings(1))
        assert settings.seed == 1
