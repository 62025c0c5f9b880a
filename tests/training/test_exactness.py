"""A training that was killed, or stopped, or shared among processes, is the training that it would have been."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from foldloom.cli import commands as cli
from foldloom.errors import RunError
from foldloom.training import Run, train
from foldloom.training.trainer import Trainer
from tests.training.small import ALIKE, checkpoints, curve, final_weights, small_run, trained

ROOT = Path(__file__).parent.parent.parent
STEPS = 8
"""Of an epoch of the small training."""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing happened to."""
    return trained(tmp_path_factory.mktemp("whole"), checkpoint_every=3).folder


def assert_same_training(one: Path, other: Path) -> None:
    assert final_weights(one) == final_weights(other)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert curve(one) == curve(other)
    assert (one / "scores.json").read_text() == (other / "scores.json").read_text()


def test_killed_and_resumed(whole: Path, tmp_path: Path) -> None:
    """In the second epoch, two steps after the last checkpoint; with dropout, whose numbers go on as if nothing had been. What was
    being written just then does no harm."""
    ended = python("-m", "tests.training.killed", str(tmp_path), "11")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [path.name for path in checkpoints(tmp_path)] == ["step-8", "step-9"]
    assert 9 % STEPS
    half_written = tmp_path / "checkpoints" / "step-12.new"
    half_written.mkdir()
    (half_written / "model.safetensors").write_bytes(b"half")
    resumed = python(
        "-m", "foldloom", "train", "sentiment", "--resume", str(tmp_path), "--device", "cpu", "--checkpoint-every", "3"
    )
    assert resumed.returncode == 0, resumed.stderr
    assert_same_training(tmp_path, whole)


def test_killed_before_there_was_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    small_run(tmp_path).save_config()
    assert train(Run.at(tmp_path), resume=True, device="cpu", progress=False, checkpoint_every=3)
    assert_same_training(tmp_path, whole)


@pytest.mark.parametrize("steps", [3, STEPS])
def test_stopped_and_resumed(whole: Path, tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By Ctrl-C in the middle of an epoch, and in its last step."""

    def interrupted(self: Trainer, batch: Sequence[int], stop: bool) -> tuple[float, bool]:
        if self.progress.steps == steps - 2:
            os.kill(os.getpid(), signal.SIGINT)  # too late for this step: the next one is the last
        return original(self, batch, stop)

    original, before = Trainer._step, signal.getsignal(signal.SIGINT)
    arguments = ["train", "sentiment", "--device", "cpu"]
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_step", interrupted)
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--quick", "--folder", str(tmp_path)])
    assert ended.value.code == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert [path.name for path in checkpoints(tmp_path)] == [f"step-{steps}"]
    cli.main([*arguments, "--resume", str(tmp_path)])
    assert_same_training(tmp_path, whole)


def test_two_processes(tmp_path: Path) -> None:
    """The curve of one process with the same batches, which do not divide evenly; sparse gradients and clipped ones."""
    ended = python(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tests.training.two_processes",
        str(tmp_path / "two"),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    for task, written in ALIKE.items():
        alone = trained(tmp_path / "one" / task, task, written).folder
        rows, others = curve(tmp_path / "two" / task), curve(alone)
        assert len(rows) == len(others) >= 3
        for row, other in zip(rows, others, strict=True):
            assert float(row.pop("loss")) == pytest.approx(float(other.pop("loss")), rel=1e-6)
            assert row == other
    with pytest.raises(RunError, match="begun by 2 processes, and 1 cannot go on with it exactly"):
        train(Run.at(tmp_path / "two" / "tagging"), resume=True, device="cpu", progress=False)
