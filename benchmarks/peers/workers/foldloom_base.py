"""What need not be done as batches come: recordings that are kept, and plans that other processes make."""

from __future__ import annotations

import itertools
import time
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

import foldloom as fl
from benchmarks.peers.protocol import Batch
from benchmarks.peers.workers.torch_base import TorchProgram


class Recorded(TorchProgram):
    """A program of which examples can be recorded beforehand. As it stands, they are recorded and planned as they come."""

    examples: Sequence[Any]

    @abstractmethod
    def record(self, example: Any) -> fl.Recording: ...

    @abstractmethod
    def plan(self, recordings: list[fl.Recording]) -> Any: ...

    @abstractmethod
    def run(self, batch: Any) -> Tensor:
        """The summed loss of some examples, or of a plan of their recordings."""

    def batch_loss(self, batch: Batch) -> Tensor:
        return self.run([self.examples[number] for number in batch])


class Kept(Recorded):
    """Every example is recorded once; batches are planned as they come."""

    @cached_property
    def kept(self) -> dict[int, fl.Recording]:
        return {}

    def expect(self, batches: Sequence[Batch], *, train: bool) -> None:
        for number in itertools.chain.from_iterable(batches):
            self.recording(number)

    def recording(self, number: int) -> fl.Recording:
        if number not in self.kept:
            self.kept[number] = self.record(self.examples[number])
        return self.kept[number]

    def batch_loss(self, batch: Batch) -> Tensor:
        return self.run(self.plan([self.recording(number) for number in batch]))


class InWorkers(Recorded):
    """A DataLoader's worker records and plans the next batches while this one runs."""

    loader: Any = None

    def expect(self, batches: Sequence[Batch], *, train: bool) -> None:
        start = time.perf_counter()
        self.recorded_and_planned([self.examples[number] for number in batches[0]])
        self.seconds_to_plan = time.perf_counter() - start
        examples: Any = self.examples  # a list is all the dataset that a DataLoader needs
        self.loader = iter(
            DataLoader(
                examples, batch_sampler=list(map(list, batches)), collate_fn=self.recorded_and_planned, num_workers=1
            )
        )

    def recorded_and_planned(self, examples: Sequence[Any]) -> Any:
        return self.plan([self.record(example) for example in examples])

    def batch_loss(self, batch: Batch) -> Tensor:
        if self.loader is None:
            return self.run(self.recorded_and_planned([self.examples[number] for number in batch]))
        return self.run(next(self.loader))

    def settle(self) -> None:
        """The worker is at most two batches ahead."""
        time.sleep(2.5 * self.seconds_to_plan)
