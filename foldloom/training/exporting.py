"""The best model of a training as one file, which knows its task: it is asked the lines that the training's model is asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from foldloom.blocks.compiler.model import Model as BlockModel
from foldloom.errors import ArgumentError, ExportedFileError, ExportError, FoldloomError
from foldloom.exporting.files import export_to
from foldloom.models.questions import answered, answered_together
from foldloom.models.training import Trainable
from foldloom.runtime.model import Model
from foldloom.tasks import TASKS
from foldloom.tracing import record_each
from foldloom.training.run import Run
from foldloom.training.saving.weights import no_tensor_above

SHOWN = 10_000
"""Examples of the training from which a model of code shows what it calls."""

FOLLOWED = 5
"""Of so many of them, all that is asked on the way to a prediction."""


def export_run(run: Run, path: Path) -> None:
    if path.suffix != ".onnx":
        raise ArgumentError(f"expected a file whose name ends in .onnx, not {path}")
    if not path.parent.is_dir():
        raise ArgumentError(f"expected a file in a folder that is there, not {path}")
    model = run.model()
    # Blocks say what they call. What code calls is seen from examples.
    shown = [] if isinstance(model.to_export(), BlockModel) else _questions(model, run)
    about = json.dumps({"task": run.task.name, "fitted": run.task.to_json()})
    try:
        export_to(model, [path], shown, task=about)
    except ExportError as error:
        raise ExportError(f"{run.task.name} cannot be exported: {error}") from error


def _questions(model: Trainable, run: Run) -> list[Any]:
    """Those that examples of the training begin with, and all those of some."""
    examples = [run.task.example(item) for item in [*run.data.train, *run.data.dev][:SHOWN]]
    questions = [next(model.asking(example)) for example in examples[FOLLOWED:]]

    def noted(question: Any) -> Any:
        questions.append(question)
        return reply(question)

    reply = model.to_export()
    with torch.no_grad():
        for example in examples[:FOLLOWED]:
            answered(model.asking(example), noted)
    return questions


class ExportedTask:
    """An exported file as `foldloom predict` uses it, if a training wrote it: lines in, answers out."""

    def __init__(self, model: Model, about: str, path: Path) -> None:
        try:
            held = json.loads(about)
            self._task = TASKS[held["task"]].restored(held["fitted"])
        except (FoldloomError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ExportedFileError(f"{path} does not say what its task is: {error!r:.200}") from error
        self._exported = model
        self._code: Trainable | None = None
        if model.description.program is None:
            # Files of code are asked recordings, which a model makes whatever its weights are.
            with no_tensor_above(path.stat().st_size, f"{path} asks for a larger model than it has weights for"):
                self._code = self._task.model().eval()

    def parse(self, line: str) -> Any:
        return self._task.parse(line.rstrip("\r\n"))

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        examples = [self._task.example(item) for item in items]
        if self._code is None:
            given = self._run(examples)
        else:
            reply = self._code.to_export()
            askings = [self._code.asking(example) for example in examples]
            given = answered_together(askings, lambda questions: self._run(record_each(reply, questions)))
        return [self._task.answer(item, predicted) for item, predicted in zip(items, given, strict=True)]

    def _run(self, examples: Sequence[Any]) -> list[Any]:
        return [_as_predicted(result) for result in self._exported(examples)]


def _as_predicted(result: Any) -> Any:
    """As the model itself predicts it: rows of a tensor, or plain numbers."""
    if isinstance(result, list | tuple):
        return [_as_predicted(each) for each in result]
    array = np.asarray(result)
    return array.item() if array.ndim == 0 else torch.from_numpy(np.array(array))
