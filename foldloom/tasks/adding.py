"""The sum of the two numbers in a long sequence that are marked (Hochreiter and Schmidhuber 1997), by feed-forward attention (Raffel and
Ellis 2015). All sequences are made up."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from foldloom.errors import ArgumentError, DataError
from foldloom.models.adding import Addition, AttentionAdder, made_additions
from foldloom.models.training import Trainable
from foldloom.tasks.settings import Settings, setting
from foldloom.tasks.task import Data, Task

LARGEST = 100_000_000
"""Numbers of all sequences together."""

SOLVED = 0.04
"""An answer that is nearer than this to the right one counts as right, as in both papers."""


@dataclass(frozen=True, kw_only=True)
class AddingSettings(Settings):
    epochs: int = 8
    batch: int = 64
    learning_rate: float = 3e-3
    sequences: int = setting(6_400, "How many to learn from.", at_least=1, at_most=1_000_000)
    shortest: int = setting(100, "The length of the shortest sequence.", at_least=4, at_most=100_000)
    longest: int = setting(1_000, "The length of the longest.", at_least=4, at_most=100_000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < self.shortest:
            raise ArgumentError(
                f"expected 'longest' to be no less than 'shortest': {self.longest} is less than {self.shortest}"
            )
        if self.sequences * self.longest > LARGEST:
            raise ArgumentError(
                f"expected 'sequences' times 'longest' to be {LARGEST:,} at most, not {self.sequences * self.longest:,}"
            )


@dataclass(frozen=True, eq=False)
class AddingTask(Task[Addition]):
    name = "adding"
    description = "the sum of two marked numbers in a long sequence, by feed-forward attention"
    data_wanted = "nothing: its sequences are made up"
    data_needed = False
    line_wanted = "a sequence of numbers, each with its mark, such as [[0.1, -1], [0.5, 1], [-0.3, 1], [0.2, -1]]"
    quick: ClassVar[Mapping[str, Any]] = {"epochs": 3, "batch": 32, "learning_rate": 1e-2}

    settings: AddingSettings

    @classmethod
    def read(cls, source: Path | None, settings: AddingSettings) -> Data[Addition]:
        if source is not None:
            raise ArgumentError(f"{cls.name} needs no data: leave out --data")
        counts = {"train": settings.sequences, "dev": 500, "test": 1_000}
        return Data.of(
            {
                part: made_additions(count, settings.shortest, settings.longest, 3 * settings.seed + number)
                for number, (part, count) in enumerate(counts.items())
            }
        )

    @classmethod
    def made(cls, count: int, seed: int) -> list[Addition]:
        return made_additions(count, 5, 20, seed)

    @classmethod
    def fitted(cls, data: Data[Addition], settings: AddingSettings) -> Self:
        return cls(settings)

    def model(self) -> Trainable:
        return AttentionAdder()

    def example(self, item: Addition) -> Addition:
        return item

    def parse(self, line: str) -> Addition:
        try:
            rows = np.array(json.loads(line), np.float32)
        except (ValueError, TypeError) as error:
            raise DataError(f"expected {self.line_wanted}: {error}") from error
        if rows.ndim != 2 or rows.shape[1] != 2:
            raise DataError(f"expected {self.line_wanted}")
        return Addition(rows)

    def answer(self, item: Addition, predicted: float) -> Any:
        return {"sum": 4 * predicted - 2}

    def scores(self, predicted: Sequence[float], items: Sequence[Addition]) -> dict[str, float]:
        errors = np.abs(np.array(predicted) - np.array([item.target for item in items]))
        return {"solved": float((errors < SOLVED).mean()), "mean error": float(errors.mean())}
