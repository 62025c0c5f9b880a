"""What is called during backward with the gradients of values: hooks, retained gradients, and errors for what was changed in place.

Calls are asked for while a program is recorded, by values of the graph. They are *placed*, that is given to the session that computes, once
the values are computed.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.flushing.pending import Pending

GradientCall = Callable[[torch.Tensor], torch.Tensor | None]


def _raise_overwritten(_: torch.Tensor) -> None:
    raise RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: a value that an operation has "
        "saved for backward was changed in place afterwards. Change a copy (`x = x.clone()`)"
    )


def _call_hooks(hooks: OrderedDict[int, Callable[..., Any]], grad: torch.Tensor) -> torch.Tensor | None:
    """Each is called with what the one before returned."""
    for hook in tuple(hooks.values()):
        found = hook(grad)
        grad = grad if found is None else found
    return grad


class Retained:
    """The gradient of a value that retains it, and the result that has it as its own."""

    def __init__(self) -> None:
        self.grad: torch.Tensor | None = None
        self.is_over = False
        """Whether the value was changed in place."""
        self._result: weakref.ref[torch.Tensor] | None = None

    def belongs_to(self, result: torch.Tensor) -> torch.Tensor:
        self._result = weakref.ref(result)
        return result

    def add(self, grad: torch.Tensor) -> None:
        if self.is_over:
            return
        self.grad = grad if self.grad is None else self.grad + grad
        result = None if self._result is None else self._result()
        if result is not None:
            result.grad = self.grad


class GradientWatch:
    """The calls that backward has to make, for the values of one graph."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self._hooks: dict[tuple[int, ...], OrderedDict[int, Callable[..., Any]]] = {}
        """Hooks on gradients, by the values that they are of."""
        self._unplaced: list[tuple[tuple[int, ...], bool, GradientCall]] = []
        """Calls for values that backward does not know yet: of which values, whether these are the rows of one, and what is called."""
        self.retained: dict[tuple[int, ...], Retained] = {}

    def __bool__(self) -> bool:
        """Whether backward has to be watched: then values must stay apart, and have a place that is known."""
        return bool(self._graph.changes or self._unplaced)

    def add_hook(self, values: tuple[int, ...], is_ragged: bool, hook: Callable[..., Any]) -> RemovableHandle:
        """Have a hook called with the gradient of a value, or of one whose rows these are."""
        hooks = self._hooks.get(values)
        if hooks is None:
            hooks = self._hooks[values] = OrderedDict()
            self._unplaced.append((values, is_ragged, partial(_call_hooks, hooks)))
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        return handle

    def retain_grad(self, values: tuple[int, ...], is_ragged: bool) -> None:
        """Keep the gradient of a value."""
        if values not in self.retained:
            retained = self.retained[values] = Retained()
            self._unplaced.append((values, is_ragged, retained.add))

    def raise_at(self, value: int) -> None:
        """Have backward raise where it comes to this value."""
        self._unplaced.append(((value,), False, _raise_overwritten))

    def note_change(self, values: tuple[int, ...], made: int) -> None:
        """A value was changed in place: if it retains its gradient, then from now on that of what it was changed to."""
        retained = self.retained.pop(values, None)
        if retained is not None:
            retained.is_over = True
            self.retain_grad((made,), False)

    def place(
        self,
        overwritten: Callable[[], Iterable[int]],
        pending: Pending,
        capture: Callable[[tuple[int, ...], bool, GradientCall], object],
    ) -> None:
        """Have the calls made for all values that are computed. ``overwritten`` finds those whose backward must raise."""
        if self._graph.changes:
            self._unplaced += [((value,), False, _raise_overwritten) for value in overwritten()]
            self._graph.changes.clear()
        left = []
        for values, is_ragged, call in self._unplaced:
            if pending.number_of(values[0]) < 0:
                left.append((values, is_ragged, call))
            else:
                capture(values, is_ragged, call)
        self._unplaced = left
