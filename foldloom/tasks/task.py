"""What a task is: a model, examples that it can make up, and what to learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from foldloom.blocks import Model
from foldloom.lazy import batch
from foldloom.schedulers import Scheduler


class Task(ABC):
    """One task of the command line. ``name`` is what it is called there."""

    name: ClassVar[str]
    description: ClassVar[str]

    @abstractmethod
    def model(self) -> nn.Module:
        """A module whose ``forward`` gives the loss of one example, or a compiled block."""

    @abstractmethod
    def made_examples(self, count: int, seed: int) -> Sequence[Any]:
        """Examples that need no data; the same for the same seed."""

    def loss(self, model: nn.Module, examples: Sequence[Any], scheduler: Scheduler | None = None) -> torch.Tensor:
        """The mean loss of a batch."""
        if isinstance(model, Model):
            output: torch.Tensor = model(examples)
            return output.square().mean()
        return torch.stack(batch(model, scheduler=scheduler)(examples)).mean()
