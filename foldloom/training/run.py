"""The folder of a training, and all that is in it.

config.json         the task with its settings and vocabularies, and where its data is
model.safetensors   the weights that were best on the development data
curves.csv, .png    loss and scores as they went
tensorboard/        the same for TensorBoard
scores.json         those of the best weights
checkpoints/        what an interrupted training goes on from

All of it is JSON, tables, pictures and safetensors: reading the folder of somebody else runs no code.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foldloom.errors import ArgumentError, DataError, FoldloomError, RunError
from foldloom.models.training import Trainable
from foldloom.tasks import TASKS, Data, Settings, Task
from foldloom.training.saving import durable
from foldloom.training.saving.states import parsed_json
from foldloom.training.saving.weights import checked_weights, no_tensor_above, set_weights, weight_bytes

MADE = 200
"""How many examples a quick training learns from."""

CONFIG, MODEL = "config.json", "model.safetensors"
CONFIG_BYTES, LARGEST_MODEL, MOST_EXAMPLES = 1 << 25, 1 << 36, 10**12
MOST_TOLD = 300
"""Characters of a reason."""


Tell = Callable[[str], None]


def _nobody(text: str) -> None:
    """Told, and not heard."""


class Run:
    """A task that was fitted to data, in a folder of its own.

    >>> import tempfile
    >>> from foldloom.tasks import TASKS
    >>> from foldloom.training import Run, train
    >>> settings = TASKS["adding"].defaults(quick=True).changed({"epochs": "1"})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = Run.new(folder, "adding", settings=settings, quick=True)
    ...     run.exists, run.task.name
    (False, 'adding')
    """

    def __init__(
        self,
        folder: str | Path,
        task: Task[Any],
        source: Path | None,
        quick: bool,
        counts: Mapping[str, int],
        data: Data[Any] | None = None,
        fitted: Mapping[str, Any] | None = None,
        tell: Tell = _nobody,
    ) -> None:
        """``fitted`` is the task as JSON has it; of an older version, which had fewer settings, as that wrote it."""
        self.folder, self.task, self.source, self.quick = Path(folder), task, source, quick
        self._counts, self._data = counts, data
        self._fitted = task.to_json() if fitted is None else fitted
        self._tell = tell

    @classmethod
    def new(
        cls,
        folder: str | Path,
        task: str,
        *,
        source: str | Path | None = None,
        settings: Settings | None = None,
        quick: bool = False,
        tell: Tell = _nobody,
    ) -> Run:
        """Of a task by its name; ``settings`` of its own kind, ``TASKS[task].defaults()`` unless given. ``quick`` takes few examples,
        and if there is no source of data makes them up. ``tell`` hears what is being done."""
        if task not in TASKS:
            raise ArgumentError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
        kind, path = TASKS[task], None if source is None else Path(source)
        fitted, data = task_and_data(kind, path, settings or kind.defaults(quick=quick), quick, tell)
        return cls(folder, fitted, path, quick, data.counts, data, tell=tell)

    @classmethod
    def at(cls, folder: str | Path, *, source: str | Path | None = None, tell: Tell = _nobody) -> Run:
        """One that was begun before. ``source`` says where its data is now, if that has moved."""
        path = Path(folder) / CONFIG
        if not path.exists():
            raise RunError(f"{folder} is not the folder of a training: it has no {CONFIG}")
        data = durable.read(path, CONFIG_BYTES)
        try:
            config = _checked(parsed_json(data))
            task = TASKS[config["task"]].restored(config["fitted"])
        except (FoldloomError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not what a training of this version wrote: {_reason(error)}") from error
        source = config["source"] if source is None else source
        place = None if source is None else Path(source)
        return cls(folder, task, place, config["quick"], config["examples"], fitted=config["fitted"], tell=tell)

    @property
    def exists(self) -> bool:
        """Whether something was begun in the folder."""
        return (self.folder / CONFIG).exists()

    @property
    def has_model(self) -> bool:
        """Whether there are best weights."""
        return (self.folder / MODEL).exists()

    @property
    def identity(self) -> str:
        """What weights and checkpoints say they belong to: the task, its settings and vocabularies."""
        told = json.dumps([self.task.name, self._fitted], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def data(self) -> Data[Any]:
        if self._data is None:
            self._data = _read(type(self.task), self.source, self.task.settings, self.quick, self._tell)
        return self._data

    def check_data(self) -> None:
        """That it is what the training was begun with, as far as counting tells."""
        if self.data.counts != self._counts:
            raise RunError(
                f"the data of {self.folder} has changed: it had {_told(self._counts)} examples, and has {_told(self.data.counts)}"
            )

    def save_config(self) -> None:
        config = {
            "foldloom": version("foldloom"),
            "task": self.task.name,
            "source": None if self.source is None else str(self.source.resolve()),
            "quick": self.quick,
            "examples": self._counts,
            "fitted": self._fitted,
        }
        self.save_json("config.json", config)

    def save_json(self, name: str, value: Mapping[str, Any]) -> None:
        self.save(name, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())

    def save(self, name: str, data: bytes) -> None:
        """A file takes the place of the old one once it is complete: whoever is cut off on the way leaves that."""
        path = self.folder / name
        durable.make_folder(self.folder)
        if path.parent != self.folder:
            durable.make_folder_within(self.folder, path.parent.name)
        durable.write(path, data)

    def save_model(self, model: Trainable) -> None:
        self.save(MODEL, weight_bytes(model, self.identity))

    def save_scores(self, epoch: int, scores: Mapping[str, float]) -> None:
        """JSON has no NaN: a score that is no number is null."""
        known = {name: score if math.isfinite(score) else None for name, score in scores.items()}
        self.save_json("scores.json", {"epoch": epoch, "dev": known})

    def model(self) -> Trainable:
        """With the best weights."""
        path, data = self._model_file()
        with no_tensor_above(len(data), f"{self.folder / CONFIG} asks for a larger model than {path} has weights for"):
            model = self.task.model()
        set_weights(model, checked_weights(model, data, str(path), self.identity))
        return model.eval()

    def check_model(self, model: Trainable) -> None:
        """That there are best weights, and that they are some of this model's."""
        path, data = self._model_file()
        checked_weights(model, data, str(path), self.identity)

    def _model_file(self) -> tuple[Path, bytes]:
        path = self.folder / MODEL
        if not self.has_model:
            raise RunError(
                f"{self.folder} has no {MODEL}: the training ended before its first epoch did, which "
                f"`foldloom train --resume {self.folder}` goes on with, or the file was removed: put it back, or train anew"
            )
        return path, durable.read(path, LARGEST_MODEL)


_CONFIG_TYPES: dict[str, tuple[type, ...]] = {
    "task": (str,),
    "source": (str, type(None)),
    "quick": (bool,),
    "examples": (dict,),
    "fitted": (dict,),
}


def _checked(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise ValueError(f"expected an object, not {type(config).__name__}")
    for name, types in _CONFIG_TYPES.items():
        if name not in config:
            raise ValueError(f"it lacks {name!r}")
        if not isinstance(config[name], types):
            raise ValueError(f"expected {types[0].__name__} for {name!r}, not {type(config[name]).__name__}")
    if config["task"] not in TASKS:
        raise ValueError(f"there is no task {config['task']!r}; there are {', '.join(TASKS)}")
    if not all(type(count) is int and 0 <= count <= MOST_EXAMPLES for count in config["examples"].values()):
        raise ValueError(f"expected whole numbers from 0 to {MOST_EXAMPLES:,} in 'examples'")
    return config


def _reason(error: Exception) -> str:
    told = str(error) if isinstance(error, FoldloomError | ValueError) else repr(error)
    return told if len(told) <= MOST_TOLD else f"{told[:MOST_TOLD]}..."


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} to {part}" for part, count in counts.items())


def task_and_data(
    kind: type[Task[Any]], source: Path | None, settings: Settings, quick: bool, tell: Tell = _nobody
) -> tuple[Task[Any], Data[Any]]:
    data = _read(kind, source, settings, quick, tell)
    if not (data.train and data.dev):
        where = None if source is None else str(source)
        notes = "".join(f"; {note}" for note in data.notes)
        raise DataError(
            f"expected examples to learn from and some to choose by, not {_told(data.counts)}{notes}", where
        )
    return kind.fitted(data, settings), data


def _read(kind: type[Task[Any]], source: Path | None, settings: Settings, quick: bool, tell: Tell) -> Data[Any]:
    if source is None and kind.data_needed and not quick:
        raise ArgumentError(f"{kind.name} needs data: give {kind.data_wanted}")
    if source is None and quick:
        data = kind.made_data(MADE, settings)
        tell(f"made up examples: {_told(data.counts)}")
        return data
    tell(f"reading {kind.name}" if source is None else f"reading {source}")
    data = kind.read(source, settings)
    data = data.first(MADE) if quick else data
    for note in (f"examples: {_told(data.counts)}", *data.notes):
        tell(note)
    return data
