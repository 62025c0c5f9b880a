"""Hooks on the gradients of values that live in arenas.

One by one, a hook of a tensor is called with its gradient when everybody who used the tensor has contributed. In a batch that is when the
exchange that wrote its rows runs backward: then the rows of the gradient arena are complete, and the step that made them comes next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from foldloom.planning.plans import Write


class GradientHook(NamedTuple):
    """Called with the gradient of one value, which may have several rows. What it returns, if anything, is the gradient from then on."""

    first: int
    rows: int
    is_ragged: bool
    call: Callable[[torch.Tensor], torch.Tensor | None]

    def changed(self, arena: torch.Tensor) -> torch.Tensor:
        """The gradient arena after the hook."""
        last = self.first + self.rows
        rows = arena[self.first : last]
        grad = rows.clone() if self.is_ragged else rows[0].clone()
        found = self.call(grad)
        if found is None:
            return arena
        if found.shape != grad.shape:
            raise RuntimeError(f"a hook has changed the size of a gradient, from {grad.shape} to {found.shape}")
        changed = found if self.is_ragged else found.unsqueeze(0)
        if torch.is_grad_enabled():
            return arena.slice_scatter(changed, 0, self.first, last)
        rows.copy_(changed)
        return arena


class GradientHooks:
    """The hooks of one batch, by the arena that they are for. Empty for almost every batch."""

    def __init__(self) -> None:
        self._hooks: defaultdict[int, list[GradientHook]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def add(self, arena: int, hook: GradientHook) -> Callable[[], None]:
        """One more hook; what is returned takes it away."""
        hooks = self._hooks[arena]
        hooks.append(hook)
        return lambda: hooks.remove(hook) if hook in hooks else None

    def of_write(self, write: Write) -> Iterator[GradientHook]:
        """The hooks of what a step wrote, in the order in which they were added."""
        for hook in tuple(self._hooks.get(write.arena, ())):
            if write.start <= hook.first < write.start + write.size:
                yield hook
