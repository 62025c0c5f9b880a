"""A trained model as `foldloom predict` uses it: lines in, answers out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from foldloom.training.run import Run


class TrainedModel:
    """The best model of a training."""

    def __init__(self, run: Run) -> None:
        self._task, self._model = run.task, run.model()

    @classmethod
    def of(cls, folder: Path, threads: int) -> TrainedModel:
        torch.set_num_threads(threads)
        return cls(Run.at(folder))

    def parse(self, line: str) -> Any:
        return self._task.parse(line.rstrip("\r\n"))

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        given = self._model.predict([self._task.example(item) for item in items])
        return [self._task.answer(item, predicted) for item, predicted in zip(items, given, strict=True)]
