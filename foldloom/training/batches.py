"""Which examples a step takes: a function of the seed and the epoch alone, so that nothing about it need be remembered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def shares_of(batch: Sequence[int], processes: int) -> list[Sequence[int]]:
    """What each process takes of a batch."""
    return [batch[rank::processes] for rank in range(processes)]


def steps_of_epoch(count: int, size: int) -> int:
    return -(-count // size)


class Examples:
    """Examples as batches are made of them: recorded once, where the model can record them, when a batch first takes them.

    Several are recorded at once, which takes a tenth of the time that they take one by one. What they are recorded with decides in which order
    they compute, and so how they round. Hence ``groups`` says who is recorded with whom, whichever is asked for first: a training that goes
    on asks in another order.
    """

    def __init__(self, model: Trainable, examples: Sequence[Any], groups: Iterable[Sequence[int]]) -> None:
        self._model, self._examples = model, examples
        self._recorded: dict[int, Recording] = {}
        self._group_of = {number: group for group in groups for number in group}

    def __len__(self) -> int:
        return len(self._examples)

    def batch(self, numbers: Sequence[int]) -> Batch:
        if not self._model.can_record:
            return [self._examples[number] for number in numbers]
        for number in numbers:
            if number not in self._recorded:
                self._record(self._group_of[number])
        return plan([self._recorded[number] for number in numbers])

    def _record(self, group: Sequence[int]) -> None:
        recordings = self._model.record_each([self._examples[number] for number in group])
        self._recorded.update(zip(group, recordings, strict=True))
