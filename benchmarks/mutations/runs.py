"""Folders of trainings: configuration, best weights, checkpoints."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from benchmarks.mutations.changing import changed_bytes, changed_json
from benchmarks.mutations.kinds import Kind
from foldloom.tasks import TASKS
from foldloom.training import Run, train
from foldloom.training.answering import TrainedModel
from foldloom.training.saving.weights import checksum, weights_of
from foldloom.training.trainer import Trainer, accelerator_for

LINE = "the dog sleeps"
EXPECTED = "expected.json"
"""What the training that nothing happened to answers, and what its last checkpoint goes on from."""


class Runs(Kind):
    """Asked a line, and made ready to go on. Either is refused, or is what it was: a change must not go unnoticed."""

    also_allowed = ("ctypes.", "os.putenv")  # torch, Accelerate

    def make_originals(self, folder: Path) -> None:
        torch.set_num_threads(1)
        settings = TASKS["tagging"].defaults(quick=True).changed({"epochs": "2", "embedding": "4", "hidden": "4"})
        run = Run.new(folder / "training", "tagging", settings=settings, quick=True)
        assert train(run, device="cpu", progress=False, checkpoint_every=3)
        (folder / "training" / EXPECTED).write_text(json.dumps(_found(folder / "training")))

    def mutate(self, original: Path, source: random.Random, target: Path) -> None:
        shutil.copytree(original, target)
        for _ in range(source.choice((1, 1, 2))):
            files = [path for path in sorted(target.rglob("*")) if path.is_file() and path.name != EXPECTED]
            read = [path for path in files if path.suffix in (".json", ".safetensors")]
            _change(source.choice(read if source.random() < 0.9 else files), source)

    def use(self, path: Path) -> None:
        expected = json.loads((path / EXPECTED).read_text())
        found = _found(path)
        assert found["answer"] == expected["answer"], "another answer"
        # An older checkpoint comes to the same end.
        assert found["step"] in expected["steps"], "another step"
        assert found["weights"] == expected["weights"] or found["step"] != expected["step"], "other weights"


def _found(path: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = TrainedModel(Run.at(path))
    [answer] = model([model.parse(LINE)])
    trainer = Trainer(Run.at(path), accelerator_for("cpu"), False)
    trainer.run.check_data()
    trainer.go_on()
    steps = sorted(int(each.name.removeprefix("step-")) for each in (path / "checkpoints").glob("step-*[0-9]"))
    return {
        "answer": answer,
        "step": trainer.progress.steps,
        "steps": [0, *steps],
        "weights": checksum(weights_of(trainer.model)),
    }


def _change(path: Path, source: random.Random) -> None:
    ways: list[Callable[[bytes], bytes]] = [lambda content: changed_bytes(content, source)]
    if path.suffix == ".json":
        ways.append(lambda content: _json(content, source))
    if path.suffix == ".safetensors":
        ways.append(lambda content: _tensors(content, source))
    how = source.randrange(12)
    if how == 0:
        path.unlink()
    elif how == 1:
        others = [other for other in sorted(path.parent.parent.rglob(f"*{path.suffix}")) if other.is_file()]
        path.write_bytes(source.choice(others).read_bytes())
    else:
        path.write_bytes(source.choice(ways)(path.read_bytes()))


def _json(content: bytes, source: random.Random) -> bytes:
    try:
        return json.dumps(changed_json(json.loads(content), source)).encode()
    except ValueError:  # it was changed before, and is JSON no more
        return changed_bytes(content, source)


def _tensors(content: bytes, source: random.Random) -> bytes:
    """Well-formed, with another tensor in the place of one."""
    try:
        tensors = load(content)
    except Exception:  # it was changed before
        return changed_bytes(content, source)
    if not tensors:
        return b""
    name = source.choice(sorted(tensors))
    tensor = tensors[name]
    changes: list[Callable[[], torch.Tensor]] = [
        lambda: torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor + 1,
        lambda: tensor.double() if tensor.is_floating_point() else tensor.float(),
        lambda: torch.cat((tensor.reshape(-1), tensor.reshape(-1))),
        lambda: tensor + 1,
        lambda: tensor[None].clone(),
    ]
    tensors[name] = source.choice(changes)().contiguous()
    if source.random() < 0.3:
        tensors[source.choice(("x", "", name + ".x"))] = tensors.pop(name)
    return bytes(save(tensors))
