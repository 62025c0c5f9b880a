"""What training needs of a model: the loss of a batch, and its answers.

The models here are written for one example. What ``forward`` gives of it is collected over the batch, and loss and answers are
computed from all of it at once, in ordinary torch code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from foldloom.execution.engine import Planned
from foldloom.graph.recording import Recording
from foldloom.models.questions import Asking
from foldloom.tracing import Batched, record_each
from foldloom.tracing import batch as batched

Batch = Sequence[Any] | Planned
"""Examples, or a plan of their recordings: ``fl.plan([model.record(example), ...])``."""

UNLABELLED = -1
"""A label that is not known and counts for nothing."""


def together(function: Callable[..., Any], *, stack: bool = False) -> Batched[..., Any, Any]:
    """The function over batches. What became an automatic cell depends on what the process has run before, and decides how sums are rounded; a
    training that goes on in another process is to come to the same digits."""
    return batched(function, stack=stack, automatic_cells=False)


class Trainable(nn.Module, ABC):
    """A model with a loss to train on and answers to give.

    >>> from foldloom import models
    >>> examples = [(1, (0, 3), (2, 4)), (2, 5)]
    >>> model: models.Trainable = models.TreeLSTM(vocabulary=9, labels=3)
    >>> model.loss(examples).backward()
    >>> len(model.record_each(examples))
    2
    """

    @property
    def can_record(self) -> bool:
        """Whether the loss of an example can be recorded once and for all. It cannot where own decisions lead the way."""
        return True

    @abstractmethod
    def record_each(self, examples: Sequence[Any]) -> list[Recording]:
        """What each of several examples asks for, to be planned with others in any order. Several at once take less time than one by one."""

    def record(self, example: Any) -> Recording:
        """What one example asks for."""
        return self.record_each([example])[0]

    @abstractmethod
    def results(self, batch: Batch) -> Any:
        """What the model gives of each example, stacked."""

    @property
    @abstractmethod
    def one_example(self) -> Callable[[Any], Any]:
        """What `results` is made of: a function of one example, to be looked at, or run in another way than that."""

    def gathered(self, stacked: Any) -> Any:
        """What ``one_example`` gives of several examples, stacked, as `results` would have it."""
        return stacked

    @abstractmethod
    def total_loss(self, results: Any) -> torch.Tensor:
        """Summed over the examples."""

    @abstractmethod
    def predict(self, batch: Batch) -> Any:
        """The answer for each example: rows of a tensor, or a list. Dropout is the caller's affair (``model.eval()``)."""

    @abstractmethod
    def to_export(self) -> Callable[[Any], Any]:
        """What answers one example, which is what `fl.export` writes: a compiled block, or a function of the example."""

    def asking(self, example: Any) -> Asking:
        """What `predict` gives of one example, from answers of the function of `to_export`: usually that of the example itself."""
        return (yield example)

    def loss(self, batch: Batch) -> torch.Tensor:
        """The mean over the examples, so that the parts of a batch average to the whole, however large its examples are."""
        return self.total_loss(self.results(batch)) / len(batch)


class ForOneExample(Trainable):
    """A model whose ``forward`` is written for one example and returns what its loss is made of."""

    def record_each(self, examples: Sequence[Any]) -> list[Recording]:
        return record_each(self, examples)

    @property
    def one_example(self) -> Callable[[Any], Any]:
        return self

    def results(self, batch: Batch) -> Any:
        batched_self = together(self, stack=True)
        return batched_self.run(batch) if isinstance(batch, Planned) else batched_self(batch)

    def answer(self, example: Any) -> Any:
        """What `predict` gives of one example, as it can be recorded; if nothing else is said, all that ``forward`` gives."""
        return self(example)

    def to_export(self) -> Callable[[Any], Any]:
        return self.answer


def set_vectors(model: nn.Module, vectors: npt.ArrayLike) -> None:
    """Begin with vectors that were trained elsewhere, a row for each word, in the one table that the model has."""
    [table] = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    with torch.no_grad():
        table.weight.copy_(torch.as_tensor(vectors))


def last_rows(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The last row of each example: of a tree, that of its root."""
    return values[(lengths.cumsum(0) - 1).to(values.device)]


def total_cross_entropy(scores: torch.Tensor, right: Sequence[npt.NDArray[np.int64]]) -> torch.Tensor:
    """Summed over the rows of all examples, each of which says what is right for its own."""
    numbers = torch.from_numpy(np.concatenate(right)).to(scores.device)
    return F.cross_entropy(scores, numbers, ignore_index=UNLABELLED, reduction="sum")
