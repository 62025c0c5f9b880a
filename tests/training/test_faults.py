"""Power cuts, kills, damaged checkpoints, full disks: a training goes on, or says in one line why it cannot."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks import faults
from foldloom.cli import commands as cli
from foldloom.errors import RunError
from foldloom.training import Run, train
from foldloom.training.saving.locking import locked
from foldloom.training.tensorboard import NAME
from foldloom.training.trainer import Trainer
from tests.training.small import checkpoints, final_weights, small_run, trained

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing happened to."""
    return trained(tmp_path_factory.mktemp("whole") / "run", checkpoint_every=3).folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def resumed(folder: Path) -> bool:
    return train(Run.at(folder), resume=True, device="cpu", checkpoint_every=3)


def said(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """By a command that fails: one line, after what it says it is doing."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    *doing, last = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert last.startswith("foldloom: ")
    assert not any("Traceback" in line for line in doing)
    return last


def test_power_cuts(tmp_path: Path) -> None:
    """At six moments of fifty that the command tries."""
    faults._train(tmp_path / "whole", "sentiment")
    wanted = faults.outcome(tmp_path / "whole")
    for end in faults.power_cuts(tmp_path / "cuts", "sentiment", 6, random.Random(1)):
        faults.go_on(end, "sentiment", wanted)


@pytest.mark.parametrize("task", ["sentiment", "adding"])
def test_kills(task: str, tmp_path: Path) -> None:
    faults._train(tmp_path / "whole", task)
    wanted = faults.outcome(tmp_path / "whole")
    for end in faults.kills(tmp_path / "kills", task, 5, random.Random(2)):
        faults.go_on(end, task, wanted)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors", "training.json", "random-0.json"])
@pytest.mark.parametrize("damage", ["removed", "empty", "cut", "flipped"])
def test_a_damaged_checkpoint(
    name: str, damage: str, whole: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one before is gone on from, and that is said."""
    before, newest = checkpoints(copied)
    path = newest / name
    content = path.read_bytes()
    flipped = content[:99] + bytes([content[99] ^ 1]) + content[100:]
    path.write_bytes({"cut": content[: len(content) // 2], "flipped": flipped}.get(damage, b""))
    if damage == "removed":
        path.unlink()
    assert resumed(copied)
    told = capsys.readouterr().out
    assert str(path) in told
    assert f"going on from {before.name}, the one before" in told
    assert final_weights(copied) == final_weights(whole)


def test_all_checkpoints_are_damaged(copied: Path) -> None:
    for path in checkpoints(copied):
        (path / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"no checkpoint of .* can be gone on from: .*step-24.*step-21.*Train anew"):
        resumed(copied)


def test_two_at_once(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = f"import sys; from pathlib import Path; from foldloom.training.saving.locking import locked\nwith locked(Path({str(copied)!r})): print('locked', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert f"another process trains in {copied} just now" in said(["train", "--resume", str(copied)], capsys)
        other.kill()
    with locked(copied):
        pass
    cli.main(["train", "--resume", str(copied)])
    assert "finished" in capsys.readouterr().out


def test_the_best_weights_are_gone(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copied / "model.safetensors").unlink()
    for arguments in (["train", "--resume", str(copied)], ["eval", "--run", str(copied)]):
        assert "has no model.safetensors" in said(arguments, capsys)


def test_weights_that_are_no_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are never kept: the checkpoint before them stays."""
    original = Trainer._step

    def spoiled(self: Trainer, batch: Sequence[int], stop: bool) -> tuple[float, bool]:
        answer = original(self, batch, stop)
        if self.progress.steps == 9:
            with torch.no_grad():
                next(self.model.parameters()).view(-1)[0] = float("nan")
        return answer

    monkeypatch.setattr(Trainer, "_step", spoiled)
    with pytest.raises(RunError, match=r"the weight '.*' is infinite or no number after step 9.*learning_rate="):
        train(small_run(tmp_path), device="cpu", progress=False, checkpoint_every=3)
    monkeypatch.undo()
    assert [path.name for path in checkpoints(tmp_path)] == ["step-6", "step-8"]
    assert train(Run.at(tmp_path), resume=True, device="cpu", progress=False)


def test_a_first_score_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    scores = iter([float("nan"), 0.25, 0.125])
    monkeypatch.setattr(type(run.task), "scores", lambda *_: {"accuracy": next(scores)})
    assert train(run, device="cpu", progress=False)
    assert json.loads((tmp_path / "scores.json").read_text()) == {"epoch": 2, "dev": {"accuracy": 0.25}}


def test_no_score_is_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    monkeypatch.setattr(type(run.task), "scores", lambda *_: {"accuracy": float("nan")})
    assert train(run, device="cpu", progress=False)
    assert json.loads((tmp_path / "scores.json").read_text())["dev"] == {"accuracy": None}
    assert run.model() is not None


def test_a_disk_that_is_full(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At any write: one line, no half a file, and it goes on when there is room again."""
    original = os.fsync
    for room in (1, 8, 20, 33):
        folder, left = tmp_path / str(room), iter(range(room))

        def fsync(number: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            original(number)

        monkeypatch.setattr(os, "fsync", fsync)
        arguments = ["--device", "cpu", "--checkpoint-every", "3"]
        line = said(["train", "sentiment", "--quick", "--folder", str(folder), *arguments], capsys)
        assert "No space left on device (make room on the disk)" in line
        monkeypatch.undo()
        if (folder / "config.json").exists():
            cli.main(["train", "--resume", str(folder), *arguments])
            assert final_weights(folder) == final_weights(whole)


def test_folders_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none"), Path("/dev/null")):
        line = said(["train", "adding", "--quick", "--folder", str(folder)], capsys)
        assert "cannot write" in line
        assert "--folder FOLDER" in line or "/proc" in line


def test_a_worker_of_a_loader_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: Any) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr(Trainer, "_step", killed)
    assert "worker (pid 7) is killed" in said(["train", "adding", "--quick", "--folder", str(tmp_path)], capsys)


def test_tensorboard(whole: Path) -> None:
    """The file is read by protocol buffers of the same layout."""
    content = (whole / NAME).read_bytes()
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, members in {
        "Value": [("tag", 1, kinds.TYPE_STRING), ("simple_value", 2, kinds.TYPE_FLOAT)],
        "Summary": [("value", 1, "Value")],
        "Event": [("wall_time", 1, kinds.TYPE_DOUBLE), ("step", 2, kinds.TYPE_INT64), ("summary", 5, "Summary")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind in members:
            added = message.field.add(name=field, number=number, label=3 if field == "value" else 1)
            added.type = kinds.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                added.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    event_class: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Event"))
    found = {}
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        event = event_class.FromString(content[12 : 12 + length])
        found.update({(event.step, value.tag): value.simple_value for value in event.summary.value})
        content = content[16 + length :]
    assert {tag for _, tag in found} == {"loss/train", "dev/accuracy", "dev/binary_accuracy"}
    assert (24, "loss/train") in found
