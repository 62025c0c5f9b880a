"""Which examples a step takes: a function of the seed and the epoch alone, so that nothing about it need be remembered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

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
    """Examples as batches are made of them: recorded once, where the model can record them."""

    def __init__(self, model: Trainable, examples: Iterable[Any]) -> None:
        self._recorded = model.can_record
        self._kept = [model.record(example) for example in examples] if self._recorded else list(examples)

    def __len__(self) -> int:
        return len(self._kept)

    def batch(self, numbers: Sequence[int]) -> Batch:
        picked = [self._kept[number] for number in numbers]
        return plan(picked) if self._recorded else picked
