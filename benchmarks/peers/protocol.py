"""What is asked of a peer, and the loop that answers. Needs nothing but numpy: it runs in every environment.

A request is a line of JSON on standard input with a ``verb``, an answer a line on standard output:

- ``prepare``: a task, its sizes, files of data and weights, a number of threads.
- ``check``: the losses of two training steps from the first weights. The first says whether it is the same model, the second
  whether it has the same gradients.
- ``expect``: the turns that will come, so that a peer may compile for their shapes or start workers.
- ``turn``: the number of a turn, which is one or several batches. Answers with its seconds.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

RATE = 1e-4
"""Of gradient descent, with losses summed over a batch."""

Batch = Sequence[int]
"""Numbers of examples."""
Arrays = Mapping[str, np.ndarray]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Given:
    """What a program is made of."""

    sizes: Mapping[str, int]
    data: Arrays
    weights: Arrays
    threads: int

    def lists(self, name: str) -> list[list[int]]:
        """One column of the data, a list for each example."""
        return split(self.data[name].tolist(), self.data["size"])

    def spelled(self) -> list[list[list[int]]]:
        """For each example, the characters of each word."""
        return split(split(self.data["character"].tolist(), self.data["spelled"]), self.data["size"])


def split(items: list[Item], sizes: np.ndarray) -> list[list[Item]]:
    """Lists of these sizes, one after another."""
    ends = np.cumsum(sizes).tolist()
    return [items[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class Program(ABC):
    """A model as one peer writes it, on weights of its own, which every training step changes."""

    @abstractmethod
    def loss(self, batch: Batch, *, train: bool) -> float:
        """The summed loss of some examples; in training, then, gradients and an update of the weights too."""

    def expect(self, batches: Sequence[Batch], *, train: bool) -> None:  # noqa: B027 (most have nothing to prepare)
        """These batches will be run, again and again in this order."""

    def settle(self) -> None:  # noqa: B027 (most do nothing beside what they are timed for)
        """Come to rest after a turn, so that nothing is left running while another peer has its own."""


Programs = Mapping[str, Callable[[Given], Program]]
"""By the task."""


class _Server:
    def __init__(self, programs: Programs) -> None:
        self.programs = programs

    def prepare(self, task: str, sizes: Mapping[str, int], data: str, weights: str, threads: int) -> dict[str, Any]:
        if task not in self.programs:
            return {"unwritten": True}
        with np.load(data) as opened:
            arrays = dict(opened)
        with np.load(weights) as opened:
            self.given = Given(sizes, arrays, dict(opened), threads)
        self.program = self.programs[task](self.given)
        return {}

    def check(self, task: str, batch: list[int]) -> dict[str, Any]:
        program = self.programs[task](self.given)
        return {"losses": [program.loss(batch, train=True) for _ in range(2)]}

    def expect(self, turns: list[list[list[int]]], train: bool) -> dict[str, Any]:
        self.turns, self.train = turns, train
        self.program.expect([batch for turn in turns for batch in turn], train=train)
        return {}

    def turn(self, number: int) -> dict[str, Any]:
        batches = self.turns[number % len(self.turns)]
        gc.collect()
        start, processor = time.perf_counter(), time.process_time()
        for batch in batches:
            self.program.loss(batch, train=self.train)
        spent = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
        self.program.settle()
        return spent


def serve(programs: Programs) -> None:
    """Answer requests until there are no more."""
    # Libraries print what they like to standard output: that goes where errors go.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    server = _Server(programs)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(server, request.pop("verb"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
