"""What a task is, for training, evaluation, prediction, benchmarks and views alike.

A task class reads data, or makes some up. *Fitted* to data, it is a value: its settings and what it learned by looking, such as
vocabularies. That value is all that a model's configuration holds, and it makes everything else: the model, what the model takes of
an item, what its answers mean, and how good they are.

    data = Task.read(folder, settings)      or  Task.made_data(count, settings)
    task = Task.fitted(data, settings)      or  Task.restored(json)
    model = task.model();  task.begin(model, data)
    model.loss([task.example(item) for item in data.train])
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch

from foldloom.data.vocabulary import Vocabulary
from foldloom.models.training import Trainable
from foldloom.tasks.settings import Settings, types_of

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Data(Generic[Item]):
    """Items as they were read: to learn from, to choose by, and to report on.

    >>> from foldloom import tasks
    >>> made = tasks.TASKS["adding"].made_data(8, tasks.TASKS["adding"].defaults())
    >>> made.counts, made.first(3).counts
    ({'train': 8, 'dev': 2, 'test': 2}, {'train': 3, 'dev': 2, 'test': 2})
    """

    train: Sequence[Item]
    dev: Sequence[Item]
    test: Sequence[Item] = ()
    notes: Sequence[str] = ()
    """What whoever trains on it should know: what was left out, and what was made up."""

    @classmethod
    def of(cls, parts: Mapping[str, Sequence[Item]], notes: Sequence[str] = ()) -> Data[Item]:
        """By the names of parts; there may be none for ``test``."""
        return cls(parts["train"], parts["dev"], parts.get("test", ()), notes)

    def first(self, count: int) -> Data[Item]:
        """The first items of each part."""
        return Data(self.train[:count], self.dev[:count], self.test[:count], self.notes)

    @property
    def counts(self) -> dict[str, int]:
        return {part: len(items) for part, items in self}

    def __iter__(self) -> Iterator[tuple[str, Sequence[Item]]]:
        return iter((("train", self.train), ("dev", self.dev), ("test", self.test)))


@dataclass(frozen=True, eq=False)
class Task(ABC, Generic[Item]):
    """A task that was fitted to data. Fields beyond ``settings`` are vocabularies or whatever JSON has.

    >>> from foldloom import tasks
    >>> kind = tasks.TASKS["adding"]
    >>> kind.name, kind.data_needed
    ('adding', False)
    >>> isinstance(kind.defaults(), tasks.Settings)
    True
    """

    name: ClassVar[str]
    description: ClassVar[str]
    data_wanted: ClassVar[str]
    """What ``--data`` is to name."""
    data_needed: ClassVar[bool] = True
    """Whether there is nothing to train on without it."""
    line_wanted: ClassVar[str]
    """What a line to predict from has."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Settings of a training that takes seconds."""

    settings: Any
    """The task's own subclass of `Settings`, which its type says."""

    # --- the class: data

    @classmethod
    def defaults(cls, *, quick: bool = False) -> Any:
        """Its settings."""
        kind: type[Settings] = types_of(cls)["settings"]
        return kind(**(cls.quick if quick else {}))

    @classmethod
    @abstractmethod
    def read(cls, source: Path | None, settings: Any) -> Data[Item]:
        """What ``--data`` names; None only of a task that does not need it."""

    @classmethod
    @abstractmethod
    def made(cls, count: int, seed: int) -> Sequence[Item]:
        """Items that need no data; the same for the same seed."""

    @classmethod
    def made_data(cls, count: int, settings: Settings) -> Data[Item]:
        items = cls.made(count + 2 * (count // 4), settings.seed)
        return Data(items[:count], items[count : count + count // 4], items[count + count // 4 :])

    @classmethod
    @abstractmethod
    def fitted(cls, data: Data[Item], settings: Any) -> Self:
        """What is learned by looking at data once."""

    # --- the value: a model, and what stands around it

    @abstractmethod
    def model(self) -> Trainable:
        """With weights as they come."""

    def begin(self, model: Trainable, data: Data[Item]) -> None:
        """What a training starts with besides random weights. All of it must be in the model's state dict."""

    @abstractmethod
    def example(self, item: Item) -> Any:
        """An item as the model takes it, with what is right if the item says."""

    @abstractmethod
    def parse(self, line: str) -> Item:
        """An item without what is right, from one line of ``foldloom predict``; raises `DataError`."""

    @abstractmethod
    def answer(self, item: Item, predicted: Any) -> Any:
        """What the model predicted of an item, for people: as JSON has it."""

    @abstractmethod
    def scores(self, predicted: Sequence[Any], items: Sequence[Item]) -> dict[str, float]:
        """How good predictions are, the score that matters first."""

    def quality(self, scores: Mapping[str, float]) -> float:
        """What the best checkpoint has most of: the first score, unless small ones are good."""
        return next(iter(scores.values()))

    # --- training, unless the task knows better

    def optimizer(self, model: Trainable) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.settings.learning_rate)

    def schedule(self, optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        """Up to the learning rate, and down to nothing: one cycle over the whole training."""
        highest = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, highest, total_steps=steps)

    # --- as JSON

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in values.items()}

    @classmethod
    def restored(cls, json: Mapping[str, Any]) -> Self:
        """The task that `to_json` wrote down; raises `ArgumentError`, `DataError` or ValueError for anything else."""
        types, names = types_of(cls), {field.name for field in dataclasses.fields(cls)}
        if json.keys() != names:
            raise ValueError(
                f"expected {', '.join(sorted(names))} of the task, not {', '.join(sorted(map(str, json)))}"
            )
        return cls(**{name: _restored(name, types[name], value) for name, value in json.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Settings):
        return dataclasses.asdict(value)
    return value.names if isinstance(value, Vocabulary) else value


def _restored(name: str, type: Any, value: Any) -> Any:
    if type is Vocabulary:
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise ValueError(f"expected a list of names in {name!r}")
        return Vocabulary(value)
    if isinstance(type, _CLASS) and issubclass(type, Settings):
        unknown = (
            value.keys() - {field.name for field in dataclasses.fields(type)} if isinstance(value, dict) else {value}
        )
        if unknown:
            raise ValueError(f"expected the settings of the task, not {sorted(map(repr, unknown))[0]}")
        return type(**value)
    if type == list[float]:
        if not (isinstance(value, list) and all(_is_number(each) for each in value)):
            raise ValueError(f"expected a list of numbers in {name!r}")
    elif isinstance(type, _CLASS) and not isinstance(value, type):
        raise ValueError(f"expected {type.__name__} in {name!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_CLASS = type
