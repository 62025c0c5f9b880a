"""What a model answers to many examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from foldloom.errors import ArgumentError
from foldloom.models.training import Trainable
from foldloom.training.run import Run

PARTS = ("train", "dev", "test")
TOGETHER = 128
"""Examples that are answered at once."""


def predictions(model: Trainable, examples: Sequence[Any]) -> list[Any]:
    """An answer for each example, without dropout."""
    was_training = model.training
    model.eval()
    try:
        answers: list[Any] = []
        for start in range(0, len(examples), TOGETHER):
            given = model.predict(examples[start : start + TOGETHER])
            answers.extend(given.cpu() if isinstance(given, torch.Tensor) else given)
        return answers
    finally:
        model.train(was_training)


def checked_device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # torch that was built without it asserts
        raise ArgumentError(f"there is no device {name!r} here: leave out --device, or write --device cpu") from error


def evaluate(run: Run, part: str = "test", device: str | None = None) -> dict[str, Any]:
    """The scores of the best weights on a part of the data."""
    model, items = run.model().to(checked_device(device or "cpu")), dict(run.data)[part]
    if not items:
        others = ", ".join(f"--part {name}" for name, count in run.data.counts.items() if count)
        raise ArgumentError(f"the data of {run.folder} has nothing for {part}: ask for {others}")
    scores = run.task.scores(predictions(model, [run.task.example(item) for item in items]), items)
    known = {name: score if math.isfinite(score) else None for name, score in scores.items()}  # JSON has no NaN
    return {"task": run.task.name, "part": part, "examples": len(items), **known}
