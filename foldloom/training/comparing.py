"""The training rate of a task, batched and one by one, side by side."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from foldloom.models.training import Trainable
from foldloom.planning.schedulers import Scheduler
from foldloom.tasks import Data, Task
from foldloom.tracing import batch, one_by_one
from foldloom.training.batches import Examples, batches_of_epoch
from foldloom.training.evaluating import checked_device
from foldloom.training.run import task_and_data

WARM_UP = 2


def loss_by(scheduler: Scheduler, model: Trainable, examples: Sequence[Any]) -> torch.Tensor:
    """The mean loss of examples that are recorded now and scheduled so."""
    return _loss_of(model, partial(batch, scheduler=scheduler, stack=True), examples)


def loss_one_by_one(model: Trainable, examples: Sequence[Any]) -> torch.Tensor:
    return _loss_of(model, partial(one_by_one, stack=True), examples)


def _loss_of(model: Trainable, way: Callable[[Any], Callable[..., Any]], examples: Sequence[Any]) -> torch.Tensor:
    return model.total_loss(model.gathered(way(model.one_example)(examples))) / len(examples)


@dataclass(frozen=True)
class Comparison:
    task: str
    batch: int
    one_by_one: float
    """Examples a second."""
    batched: float
    ratio: float
    """The median over rounds of the ratio within a round."""

    def __str__(self) -> str:
        return (
            f"{self.task}, batches of {self.batch}: one by one {self.one_by_one:,.0f} examples/s, batched {self.batched:,.0f} examples/s, "
            f"{self.ratio:.1f} times as many"
        )


def compare(kind: type[Task[Any]], source: Path | None, settings: Any, rounds: int, device: str | None) -> Comparison:
    """On data that is read first, or made up."""
    return compare_on(*task_and_data(kind, source, settings, quick=source is None), rounds, device)


def compare_on(task: Task[Any], data: Data[Any], rounds: int, device: str | None = None) -> Comparison:
    """Training steps on the same batches, taking turns. Batched, examples were recorded before, as `train` does it."""
    settings = task.settings
    torch.manual_seed(settings.seed)
    model = task.model().to(checked_device(device or "cpu"))
    task.begin(model, data)
    optimizer = task.optimizer(model)
    batches = batches_of_epoch(len(data.train), settings.batch, settings.seed, 0)[: WARM_UP + rounds]
    examples = {number: task.example(data.train[number]) for batch in batches for number in batch}
    place_of = {number: place for place, number in enumerate(examples)}
    recorded = Examples(model, list(examples.values()), groups=[range(len(examples))])
    recorded.batch(range(len(examples)))

    def batched_loss(batch: Sequence[int]) -> torch.Tensor:
        return model.loss(recorded.batch([place_of[number] for number in batch]))

    def plain_loss(batch: Sequence[int]) -> torch.Tensor:
        return loss_one_by_one(model, [examples[number] for number in batch])

    rates: dict[Callable[[Sequence[int]], torch.Tensor], list[float]] = {plain_loss: [], batched_loss: []}
    for turn in range(WARM_UP + rounds):
        batch = batches[turn % len(batches)]
        # Each leaves caches and the heap in a state of its own for the other: they take turns in going first.
        for loss in list(rates)[:: 1 if turn % 2 else -1]:
            gc.collect()
            start = time.perf_counter()
            optimizer.zero_grad()
            loss(batch).backward()
            optimizer.step()
            rates[loss].append(len(batch) / (time.perf_counter() - start))
    plain, fast = (of_loss[WARM_UP:] for of_loss in rates.values())
    ratios = [one / other for one, other in zip(fast, plain, strict=True)]
    return Comparison(task.name, settings.batch, *map(statistics.median, (plain, fast, ratios)))
