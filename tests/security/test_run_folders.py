"""A run folder of somebody else: nothing in it runs code, and what was changed is refused by name in eval, predict and --resume."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.mutations.kinds import KINDS
from benchmarks.mutations.worker import Worker
from foldloom.cli import commands as cli
from tests.training.small import checkpoints, trained


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("original") / "run", "tagging", {"epochs": "2"}).folder


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same shapes, with other words."""
    return trained(tmp_path_factory.mktemp("foreign") / "run", "tagging", {"epochs": "2", "seed": "7"}).folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["FOLDLOOM_BOMB"],)


def _tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return act


def _first(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def act(tensors: dict[str, torch.Tensor]) -> None:
        name = min(tensors)
        tensors[name] = change(tensors[name]).contiguous()

    return _tensors(act)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


ANY_FILE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "one byte less": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "garbage": lambda path: path.write_bytes(os.urandom(1000)),
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Bomb())),
    "a pickle of torch's": lambda path: torch.save(Bomb(), path),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a pipe": _fifo,
    "a folder": _folder,
    "a link to itself": _loop,
    "/dev/zero": _zeros,
}

WEIGHTS: dict[str, Callable[[Path], object]] = {
    **ANY_FILE,
    "missing": lambda path: path.unlink(),
    "NaN": _first(lambda tensor: torch.full_like(tensor, float("nan"))),
    "infinite": _first(lambda tensor: tensor / 0),
    "another shape": _first(lambda tensor: tensor[:1]),
    "one more dimension": _first(lambda tensor: tensor[None]),
    "another type": _first(lambda tensor: tensor.double()),
    "half": _first(lambda tensor: tensor.half()),
    "whole numbers": _first(lambda tensor: tensor.long()),
    "other numbers": _first(lambda tensor: tensor + 1),
    "a weight less": _tensors(lambda tensors: tensors.pop(min(tensors))),
    "a weight more": _tensors(lambda tensors: tensors.update(more=torch.ones(1))),
    "another name": _tensors(lambda tensors: tensors.update(other=tensors.pop(min(tensors)))),
    "none": _tensors(lambda tensors: tensors.clear()),
    "a huge header": lambda path: path.write_bytes(b"\xff" * 7 + b"\0" + path.read_bytes()[8:]),
    "a header that is no JSON": lambda path: path.write_bytes((4).to_bytes(8, "little") + b"{{{{"),
    "a bit flipped": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\1" + path.read_bytes()[-8:]),
}


def _json(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        content = json.loads(path.read_text())
        changed = change(content)
        path.write_text(json.dumps(content if changed is None else changed))

    return act


def _setting(name: str, value: Any) -> Callable[[Path], None]:
    return _json(lambda config: config["fitted"]["settings"].__setitem__(name, value))


def _field(name: str, value: Any) -> Callable[[Path], None]:
    return _json(lambda config: config.__setitem__(name, value))


CONFIG: dict[str, Callable[[Path], object]] = {
    **ANY_FILE,
    "missing": lambda path: path.unlink(),
    "a list": _json(lambda config: []),
    "deep": lambda path: path.write_text("[" * 100_000),
    "large": lambda path: path.write_text("[" + "0," * (1 << 25) + "0]"),
    "no task": _json(lambda config: config.pop("task")),
    "another task": _field("task", "sentiment"),
    "no such task": _field("task", "os.system"),
    "a task that is a list": _field("task", ["tagging"]),
    "fitted to nothing": _field("fitted", {}),
    "fitted to a list": _field("fitted", []),
    "counts that are texts": _field("examples", {"train": "x"}),
    "counts that are huge": _field("examples", {"train": 10**400, "dev": 1, "test": 1}),
    "counts below nothing": _field("examples", {"train": -1, "dev": 1, "test": 1}),
    "text in UTF-16": lambda path: path.write_bytes(path.read_text().encode("utf-16")),
    "quick is a text": _field("quick", "yes"),
    "a huge state": _setting("hidden", 10**9),
    "a large state": _setting("hidden", 4096),
    "no state": _setting("hidden", 0),
    "a text for a number": _setting("hidden", "x"),
    "a list for a number": _setting("hidden", [1]),
    "NaN for a number": _setting("learning_rate", float("nan")),
    "another setting": _setting("evil", 1),
    "another rate": _setting("learning_rate", 0.5),
    "words that are numbers": _json(lambda config: config["fitted"].__setitem__("words", [1, 2])),
    "words twice": _json(lambda config: config["fitted"].__setitem__("words", ["a", "a"])),
    "other words": _json(lambda config: config["fitted"]["words"].reverse()),
    "a word less": _json(lambda config: config["fitted"]["words"].pop()),
    "many words": _json(lambda config: config["fitted"].__setitem__("words", [str(n) for n in range(1_000_000)])),
    "other tags": _json(lambda config: config["fitted"]["tags"].reverse()),
    "a field more": _json(lambda config: config["fitted"].__setitem__("more", 1)),
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert len(last) < 1500, "it tells all of the file"
    return last


@pytest.fixture(autouse=True)
def no_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FOLDLOOM_BOMB", str(tmp_path / "bomb"))
    yield
    assert not (tmp_path / "bomb").exists(), "it ran code"


def commands(folder: Path, lines: Path) -> dict[str, list[str]]:
    return {
        "eval": ["eval", "--run", str(folder)],
        "predict": ["predict", "--run", str(folder), str(lines)],
        "resume": ["train", "--resume", str(folder), "--device", "cpu"],
    }


@pytest.mark.parametrize("change", WEIGHTS)
def test_weights(change: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines").write_text("the dog\n")
    WEIGHTS[change](folder / "model.safetensors")
    for arguments in commands(folder, tmp_path / "lines").values():
        assert "model.safetensors" in refused(arguments, capsys)


@pytest.mark.parametrize("change", CONFIG)
def test_configurations(change: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines").write_text("the dog\n")
    CONFIG[change](folder / "config.json")
    for arguments in commands(folder, tmp_path / "lines").values():
        assert str(folder) in refused(arguments, capsys)


CHECKPOINT = ("manifest.json", "model.safetensors", "training.json", "training.safetensors", "random-0.safetensors")


@pytest.mark.parametrize("name", CHECKPOINT)
@pytest.mark.parametrize("change", ANY_FILE)
def test_checkpoints(change: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in checkpoints(folder):
        ANY_FILE[change](path / name)
    assert name in refused(["train", "--resume", str(folder), "--device", "cpu"], capsys)


def test_pickles_beside_a_checkpoint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Are not looked at."""
    for path in checkpoints(folder):
        for name in (
            "custom_checkpoint_0.pkl",
            "random_states_0.pkl",
            "optimizer.bin",
            "scheduler.bin",
            "pytorch_model.bin",
        ):
            (path / name).write_bytes(pickle.dumps(Bomb()))
    cli.main(["train", "--resume", str(folder), "--device", "cpu"])
    assert "finished" in capsys.readouterr().out


def test_parts_of_another_training(
    folder: Path, foreign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_text("the dog\n")
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(foreign / "checkpoints", folder / "checkpoints")
    assert "belongs to another training" in refused(commands(folder, tmp_path / "lines")["resume"], capsys)
    shutil.copy(foreign / "model.safetensors", folder / "model.safetensors")
    for name in ("eval", "predict"):
        assert "model.safetensors" in refused(commands(folder, tmp_path / "lines")[name], capsys)


LINKS = (".lock", ".model.safetensors.new", ".scores.json.new", ".curves.csv.new", "curves.csv", "scores.json")


@pytest.mark.parametrize(
    "name", [*LINKS, "checkpoints", "tensorboard", "checkpoints/step-99.new", "checkpoints/step-99"]
)
def test_nothing_is_written_through_links(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training goes on in the folder of a stranger, in which links lead to files and checkpoints of others."""
    shutil.rmtree(checkpoints(folder)[-1])
    victim, planted = tmp_path / "victim", folder / name
    shutil.copytree(folder / "checkpoints", victim)
    (victim / "half.new").mkdir()
    (victim / "file").write_text("precious")
    before = {path: path.read_bytes() if path.is_file() else b"" for path in victim.rglob("*")}
    if planted.is_dir():
        shutil.rmtree(planted)
    planted.unlink(missing_ok=True)
    is_file = name in LINKS
    planted.symlink_to(victim / "file" if is_file else victim)
    arguments = ["train", "--resume", str(folder), "--device", "cpu"]
    if is_file and name != ".lock":
        cli.main(arguments)
    else:
        assert str(planted) in refused(arguments, capsys)
    assert {path: path.read_bytes() if path.is_file() else b"" for path in victim.rglob("*")} == before


@pytest.mark.parametrize("kind", ["data", "vectors", "run"])
def test_mutations(kind: str, tmp_path: Path) -> None:
    """A short run of `python -m benchmarks mutations`."""
    with Worker(KINDS[kind], tmp_path) as worker:
        faults = {seed: verdict for seed in range(60) if (verdict := worker.verdict_on(seed, 20)).is_fault}
    assert not faults
