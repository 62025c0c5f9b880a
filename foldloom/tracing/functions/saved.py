"""Which of its operands and results a call saves for backward.

One by one, backward raises if a tensor that an operation has saved was changed in place afterwards. What an operation saves is found by
trying it, as its types and histories are: torch tells of every tensor that is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from foldloom.pytrees import flatten


class Saved(NamedTuple):
    """Numbers of operands and of results."""

    operands: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()


Trial = Callable[[Sequence[int], bool], tuple[Sequence[torch.Tensor], Any]]
"""Calls something once, with these operands and, if so wished, the weights requiring grad. Its operands and its result."""


class SavedBy(NamedTuple):
    """What a call saves depends on what requires grad: a product saves one factor for the gradient of the other."""

    of_operand: tuple[Saved, ...] = ()
    """What is saved because this operand requires grad."""
    of_weights: Saved = Saved()

    @property
    def nothing(self) -> bool:
        return not any(saved.operands or saved.results for saved in (*self.of_operand, self.of_weights))

    def by(self, requires_grad: Sequence[bool]) -> Saved:
        """What a call saves whose operands require grad or not."""
        found = [saved for saved, needed in zip(self.of_operand, requires_grad, strict=True) if needed]
        found.append(self.of_weights)
        operands, results = (frozenset().union(*[saved[side] for saved in found]) for side in (0, 1))
        return Saved(operands, results)


def saved_by(trial: Trial, differentiable: Sequence[bool]) -> SavedBy:
    """What a call saves. If it cannot be tried, nothing that is known."""
    tracked = [number for number, is_differentiable in enumerate(differentiable) if is_differentiable]
    if _tried(trial, tracked, True) == Saved():
        return SavedBy(tuple([Saved()] * len(differentiable)))
    # Some take operands that must not require grad, running statistics say: then the others are tried by themselves.
    each = [_tried(trial, [number], False) if d else None for number, d in enumerate(differentiable)]
    return SavedBy(tuple([saved or Saved() for saved in each]), _tried(trial, (), True) or Saved())


def _tried(trial: Trial, tracked: Sequence[int], weights: bool) -> Saved | None:
    """None if it cannot be tried."""
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            operands, result = trial(tracked, weights)
    except Exception:
        return None
    results: list[Any] = []
    flatten(result, results)
    memory = {_memory(tensor) for tensor in kept}
    return Saved(
        frozenset([number for number, operand in enumerate(operands) if _memory(operand) in memory]),
        frozenset([number for number, leaf in enumerate(results) if _memory(leaf) in memory]),
    )


def _memory(tensor: Any) -> int | None:
    is_strided = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
    return tensor.untyped_storage()._cdata if is_strided else None
