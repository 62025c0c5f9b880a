"""Where a training stands, and how it came there: all of it is in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from foldloom.training.curves import COLUMNS, Row


@dataclass
class Progress:
    processes: int
    epoch: int = 0
    """Those that are over."""
    step: int = 0
    """In the epoch."""
    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    """That went into steps."""
    losses: list[float] = field(default_factory=list)
    """Of the steps since the last row."""
    rows: list[Row] = field(default_factory=list)
    """The learning curve."""
    scores: dict[str, float] = field(default_factory=dict)
    """Of the development data, after the last epoch."""
    best: float | None = None

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Progress:
        """What `state` gave; raises TypeError or ValueError for anything else."""
        progress = cls(**state)
        for own in fields(cls):
            value, fresh = getattr(progress, own.name), getattr(cls(1), own.name)
            kinds = (int, float, type(None)) if isinstance(fresh, float | None) else (type(fresh),)
            if not isinstance(value, kinds):
                raise TypeError(f"{own.name} is {type(value).__name__}")
        if min(progress.processes - 1, progress.epoch, progress.step, progress.steps) < 0:
            raise ValueError("it counts less than nothing")
        return progress

    def last_epoch(self) -> Row:
        """The row that ended it: the last one with scores."""
        ended = [row for row in self.rows if len(row) > len(COLUMNS)]
        return ended[-1] if ended else {"examples": 0, "seconds": 0.0}

    def add_step(self, examples: int, loss: float, seconds: float) -> None:
        self.step, self.steps = self.step + 1, self.steps + 1
        self.examples, self.seconds = self.examples + examples, self.seconds + seconds
        self.losses.append(loss)

    def add_row(self) -> None:
        """The losses since the last one as a row of the curve."""
        if self.losses:
            loss, self.losses = sum(self.losses) / len(self.losses), []
            counts = {"step": self.steps, "epoch": self.epoch, "examples": self.examples}
            self.rows.append({**counts, "seconds": round(self.seconds, 3), "loss": loss})

    def end_epoch(self, scores: dict[str, float], quality: float) -> bool:
        """Whether it is the best so far."""
        self.add_row()
        self.epoch, self.step, self.scores = self.epoch + 1, 0, scores
        self.rows[-1] |= {"epoch": self.epoch, **scores}
        is_best = self.best is None or quality > self.best
        if is_best and not math.isnan(quality):  # any number is better than none
            self.best = quality
        return is_best
