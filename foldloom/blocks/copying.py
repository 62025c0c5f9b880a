"""Copies of blocks: with weights of their own, or without weights for another process."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch

from foldloom.pytrees import map_items


class Copyable(ABC):
    @abstractmethod
    def copied(self, fresh: Fresh) -> Any:
        """A copy of this, made from the same arguments with ``fresh`` applied to them."""


class Portable(ABC):
    """Can be pickled without its weights."""

    @abstractmethod
    def state_without_weights(self) -> dict[str, Any]:
        """Its attributes in the other process."""


class Fresh:
    """Copies the arguments of blocks. Blocks, modules and trainable tensors are copied once each, so that copies share weights where
    the originals did. Everything else is kept."""

    def __init__(self) -> None:
        self._copies: dict[int, Any] = {}

    def __call__(self, value: Any) -> Any:
        if isinstance(value, (list, tuple, dict)):
            return map_items(value, self)
        if isinstance(value, Copyable):
            return self._block(value)
        if isinstance(value, torch.nn.Module):
            return self._once(value, _module)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            return self._once(value, lambda tensor: tensor.detach().clone().requires_grad_())
        return value

    def remember(self, original: object, made: Any) -> None:
        """Register a copy that is not finished yet: a recursive block contains itself."""
        self._copies[id(original)] = made

    def _block(self, block: Copyable) -> Any:
        known = self._copies.get(id(block))
        if known is not None:
            return known
        made = block.copied(self)
        self.remember(block, made)
        for method, type in block.__dict__.get("_declared", ()):
            getattr(made, method)(type)
        return made

    def _once(self, value: Any, make: Any) -> Any:
        if id(value) not in self._copies:
            self._copies[id(value)] = make(value)
        return self._copies[id(value)]


def _module(module: torch.nn.Module) -> torch.nn.Module:
    made = copy.deepcopy(module)
    for part in made.modules():
        reset = getattr(part, "reset_parameters", None)
        if reset is not None:
            reset()
    return made
