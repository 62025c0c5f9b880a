"""The folder of a training, and all that is in it.

config.json         the task with its settings and vocabularies, and where its data is
model.safetensors   the weights that were best on the development data
curves.csv, .png    loss and scores as they went
scores.json         those of the best weights
checkpoints/        what an interrupted training goes on from
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foldloom.data.reading import installed
from foldloom.errors import ArgumentError, DataError, RunError
from foldloom.models.training import Trainable
from foldloom.tasks import TASKS, Data, Settings, Task

MADE = 200
"""How many examples a quick training learns from."""


class Run:
    """A task that was fitted to data, in a folder of its own."""

    def __init__(
        self,
        folder: str | Path,
        task: Task[Any],
        source: Path | None,
        quick: bool,
        counts: Mapping[str, int],
        data: Data[Any] | None = None,
    ) -> None:
        self.folder, self.task, self.source, self.quick = Path(folder), task, source, quick
        self._counts, self._data = counts, data

    @classmethod
    def new(
        cls,
        folder: str | Path,
        task: str,
        *,
        source: str | Path | None = None,
        settings: Settings | None = None,
        quick: bool = False,
    ) -> Run:
        """Of a task by its name; ``settings`` of its own kind, ``TASKS[task].defaults()`` unless given. ``quick`` takes few examples,
        and if there is no source of data makes them up."""
        if task not in TASKS:
            raise ArgumentError(f"there is no task {task!r}; there are {', '.join(TASKS)}")
        kind, path = TASKS[task], None if source is None else Path(source)
        fitted, data = task_and_data(kind, path, settings or kind.defaults(quick=quick), quick)
        return cls(folder, fitted, path, quick, data.counts, data)

    @classmethod
    def at(cls, folder: str | Path, *, source: str | Path | None = None) -> Run:
        """One that was begun before. ``source`` says where its data is now, if that has moved."""
        path = Path(folder) / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            task = TASKS[config["task"]].restored(config["fitted"])
            source = config["source"] if source is None else source
            return cls(folder, task, None if source is None else Path(source), config["quick"], config["examples"])
        except FileNotFoundError as error:
            raise RunError(f"{folder} is not the folder of a training: it has no config.json") from error
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise RunError(f"{path} is not what a training of this version wrote: {error!r}") from error

    @property
    def exists(self) -> bool:
        """Whether something was begun in the folder."""
        return (self.folder / "config.json").exists()

    @property
    def data(self) -> Data[Any]:
        if self._data is None:
            self._data = _read(type(self.task), self.source, self.task.settings, self.quick)
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
            "fitted": self.task.to_json(),
        }
        self.save_json("config.json", config)

    def save_json(self, name: str, value: Mapping[str, Any]) -> None:
        with self.replacing(name) as path:
            path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def save_model(self, model: Trainable) -> None:
        with self.replacing("model.safetensors") as path:
            installed("safetensors.torch", extra="train", to="keep weights").save_model(model, str(path))

    def model(self) -> Trainable:
        """With the best weights."""
        path = self.folder / "model.safetensors"
        if not path.exists():
            raise RunError(
                f"{self.folder} has no model.safetensors: the training ended before its first epoch did. "
                f"`foldloom train {self.task.name} --resume {self.folder}` goes on with it"
            )
        model = self.task.model()
        installed("safetensors.torch", extra="train", to="read weights").load_model(model, str(path))
        return model.eval()

    @contextmanager
    def replacing(self, name: str) -> Iterator[Path]:
        """Where to write a file that takes its place once it is complete: whoever is killed on the way leaves the old one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        written = path.with_name(f".{name}.new")
        yield written
        os.replace(written, path)


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} to {part}" for part, count in counts.items())


def task_and_data(
    kind: type[Task[Any]], source: Path | None, settings: Settings, quick: bool
) -> tuple[Task[Any], Data[Any]]:
    data = _read(kind, source, settings, quick)
    if not (data.train and data.dev):
        raise DataError(f"expected examples to learn from and some to choose by, not {_told(data.counts)}", str(source))
    return kind.fitted(data, settings), data


def _read(kind: type[Task[Any]], source: Path | None, settings: Settings, quick: bool) -> Data[Any]:
    if source is None and (quick or not kind.data_needed):
        return kind.made_data(MADE, settings) if quick else kind.read(None, settings)
    if source is None:
        raise ArgumentError(f"{kind.name} needs data: give {kind.data_wanted}")
    data = kind.read(source, settings)
    return data.first(MADE) if quick else data
