"""What programs in PyTorch share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers.protocol import RATE, Batch, Given, Program


class TorchProgram(Program):
    """Subclasses make ``self.model``, then call `start`."""

    model: nn.Module

    def start(self, model: nn.Module, given: Given) -> None:
        torch.set_num_threads(given.threads)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    @abstractmethod
    def batch_loss(self, batch: Batch) -> Tensor:
        """Summed over the examples."""

    def loss(self, batch: Batch, *, train: bool) -> float:
        if not train:
            with torch.no_grad():
                return self.batch_loss(batch).item()
        loss = self.batch_loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def set_tree_weights(given: Given, *, embed: nn.Module, leaf: nn.Module, merge: nn.Module, classify: nn.Module) -> None:
    """Those of a Tree-LSTM, whose gates are one map for words and one for pairs of children."""
    set_weights({"embed": embed, "leaf.gates": leaf, "merge.gates": merge, "classify": classify}, given.weights)


def set_weights(modules: Mapping[str, nn.Module], weights: Mapping[str, np.ndarray]) -> None:
    """Give each module the arrays under its name."""
    for name, module in modules.items():
        own = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
        module.load_state_dict({key: torch.from_numpy(value) for key, value in own.items()})
