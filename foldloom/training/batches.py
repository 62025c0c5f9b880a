"""Which examples a step takes: a function of the seed and the epoch alone, so that nothing about it need be remembered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foldloom.graph.recording import Recording
from foldloom.models.training import Batch, Trainable
from foldloom.tracing import plan


def batches_of_epoch(count: int, size: int, seed: int, epoch: int) -> list[list[int]]:
    """All examples once, in as few batches as there can be. They differ by one example at most: a last one of a few examples
    would weigh each of them many times as much, and leave some processes without any.

    >>> [len(batch) for batch in batches_of_epoch(10, 4, seed=0, epoch=0)]
    [4, 3, 3]
    """
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return [batch.tolist() for batch in np.array_split(order, steps_of_epoch(count, size))]


def steps_of_epoch(count: int, size: int) -> int:
    return -(-count // size)


class Examples:
    """Examples as batches are made of them: recorded once, where the model can record them, when a batch first takes them."""

    def __init__(self, model: Trainable, examples: Sequence[Any]) -> None:
        self._model, self._examples = model, examples
        self._recorded: dict[int, Recording] = {}

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, numbers: Sequence[int]) -> Batch:
        if not self._model.can_record:
            return [self._examples[number] for number in numbers]
        for number in numbers:
            if number not in self._recorded:
                # By itself: recorded together, examples would compute in other orders after a training goes on, and round otherwise.
                self._recorded[number] = self._model.record(self._examples[number])
        return plan([self._recorded[number] for number in numbers])
