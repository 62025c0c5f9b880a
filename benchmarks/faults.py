"""A small training that power cuts and kills end at random moments, and that goes on each time: to the same weights, bit for bit."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file

from benchmarks.power_cuts import Disk, before_each_change, watched
from foldloom.tasks import TASKS
from foldloom.training import Run, train

CHECKPOINT_EVERY = 3


def add_command(commands: Any) -> None:
    parser = commands.add_parser("faults", description=__doc__, help="trainings that are cut off, and go on")
    parser.add_argument("--cuts", type=int, default=50, help="of the power: what was not synced is lost")
    parser.add_argument("--kills", type=int, default=200, help="half before a change of files, half at any time")
    parser.add_argument("--task", choices=TASKS, default="sentiment")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        _train(whole, options.task)
        wanted, draw = outcome(whole), random.Random(options.seed)
        failed = 0
        for name, ends in (
            ("power cuts", power_cuts(Path(folder) / "cuts", options.task, options.cuts, draw)),
            ("kills", kills(Path(folder) / "kills", options.task, options.kills, draw)),
        ):
            ended = Counter(_in_a_child(partial(go_on, end, options.task, wanted)) for end in ends)
            failed += sum(ended.values()) - ended[0]
            print(f"{name}: {sum(ended.values())}, of which {ended[0]} went on to the same weights", flush=True)
    if failed:
        sys.exit(1)


def _train(folder: Path, task: str) -> None:
    settings = TASKS[task].defaults(quick=True).changed({"epochs": "2"})
    run = Run.new(folder, task, settings=settings, quick=True)
    assert train(run, device="cpu", progress=False, checkpoint_every=CHECKPOINT_EVERY)


def _begin_or_go_on(folder: Path, task: str) -> None:
    """With a training that something may have happened to. If nothing of it is on the disk, it begins."""
    if (folder / "config.json").exists():
        assert train(Run.at(folder), resume=True, device="cpu", progress=False, checkpoint_every=CHECKPOINT_EVERY)
    else:
        _train(folder, task)


def outcome(folder: Path) -> dict[str, Any]:
    """The last weights, the best ones, and their scores."""
    last = max((folder / "checkpoints").glob("step-*[0-9]"), key=lambda path: int(path.name.removeprefix("step-")))
    return {
        **{name: array.tobytes() for name, array in load_file(last / "model.safetensors").items()},
        "best": (folder / "model.safetensors").read_bytes(),
        "scores": (folder / "scores.json").read_text(),
    }


def checkpoints(folder: Path) -> int:
    return len(list((folder / "checkpoints").glob("step-*[0-9]")))


def go_on(folder: Path, task: str, wanted: dict[str, Any]) -> None:
    _begin_or_go_on(folder, task)
    assert outcome(folder) == wanted, f"{folder} came to other weights"


def power_cuts(folder: Path, task: str, count: int, draw: random.Random) -> list[Path]:
    """What is left of a training by power cuts before changes of files that are drawn at random. All checkpoints must be left but the
    one that is being written."""
    seen = changes_of(folder / "counted", task)
    moments = set(draw.sample(range(seen), min(count, seen)))
    disk, ends = Disk(folder / "training"), list[Path]()
    disk.folder.mkdir(parents=True)
    number = iter(range(sys.maxsize))

    def watch() -> None:
        if next(number) in moments:
            ends.append(folder / f"cut-{len(ends)}")
            disk.left(ends[-1], names_first=len(ends) % 2 == 0)
            assert checkpoints(ends[-1] / "run") >= checkpoints(disk.folder / "run") - 1, (
                f"{ends[-1]} has lost checkpoints"
            )

    with watched(disk), before_each_change(watch):
        _train(disk.folder / "run", task)
    disk.close()
    return [end / "run" for end in ends]


def changes_of(folder: Path, task: str) -> int:
    """How often a training changes files or syncs them."""
    changes = Counter[str]()
    with watched(Disk(folder)), before_each_change(lambda: changes.update(["change"])):
        _train(folder, task)
    shutil.rmtree(folder)
    return changes["change"]


def kills(folder: Path, task: str, count: int, draw: random.Random) -> list[Path]:
    """Trainings in processes of their own, each of which is killed; every fourth is killed again as it goes on."""
    begun = time.perf_counter()
    seen = changes_of(folder / "counted", task)
    seconds = time.perf_counter() - begun
    ends = []
    for number in range(count):
        ends.append(folder / f"kill-{number}")
        for _ in range(1 if number % 4 else 2):
            at_change = draw.randrange(seen) if number % 2 else seen
            _in_a_child(partial(_doomed, ends[-1], task, at_change, draw.uniform(0, seconds)))
    return ends


def _doomed(folder: Path, task: str, at_change: int, seconds: float) -> None:
    number = iter(range(sys.maxsize))

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        if next(number) == at_change:
            die()

    timer = threading.Timer(seconds, die)
    timer.daemon = True
    timer.start()
    with watched(Disk(folder)), before_each_change(watch):
        _begin_or_go_on(folder, task)


def _in_a_child(act: Callable[[], None]) -> int:
    """In a process of its own, without the time to import all of it anew; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
