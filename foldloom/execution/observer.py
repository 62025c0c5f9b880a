"""Who watches, if anybody does: `fl.explain`, `fl.show` and `fl.profile`.

The front end and the engine ask once for each recording, part and run whether there is an observer. A run that nobody watches pays for
that with a comparison to None, and makes no call.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from foldloom.execution import Buffers, Kernel
    from foldloom.execution.engine import Planned
    from foldloom.graph import Ints
    from foldloom.graph.recording import Recording
    from foldloom.planning.schedulers import Scheduler


class Underway(Protocol):
    """A recording that is being made."""

    example: int
    """The example that is being recorded."""


class Observer(ABC):
    """Is told what happens in its thread, in this order: a recording begins, values may be demanded, it is recorded, planned, and run."""

    @abstractmethod
    def nodes_of(self, underway: Underway) -> list[int]:
        """A recording, or the next part of one, begins: the list in which it notes the op of each node."""

    @abstractmethod
    def recorded(self, recording: Recording, op_of_node: list[int], nodes: Ints | None = None) -> None:
        """A recording, or a part of one, is complete; its nodes were noted in this list.

        Of a part, ``nodes`` says which of those that earlier parts left, and then of those in the list, it has.
        """

    @abstractmethod
    def demanded(self) -> None:
        """The user's code needs a value that is not computed yet. Called where it asks."""

    @abstractmethod
    def plans(self, recording: Recording, scheduler: Scheduler, earlier: Ints | None) -> None:
        """A batch, or a part of one, is about to be scheduled and placed. ``earlier`` as in `placement.place`."""

    @abstractmethod
    def planned(self, planned: Planned) -> None:
        """It has been."""

    @abstractmethod
    def runs(
        self, planned: Planned, kernels: Sequence[Kernel | None], buffers: Buffers
    ) -> tuple[Sequence[Kernel | None], Buffers]:
        """A plan is about to run: what it shall run with."""

    @abstractmethod
    def ran(self, planned: Planned) -> None:
        """It has."""


class _Observing(threading.local):
    observer: Observer | None = None


observing = _Observing()


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """What this thread records, plans and runs within is told to the observer, and to no other."""
    outer = observing.observer
    observing.observer = observer
    try:
        yield
    finally:
        observing.observer = outer
