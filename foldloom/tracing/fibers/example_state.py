"""What examples of a batch change that others can see.

Attributes of modules are kept apart (`module_state.py`). Lists, dicts, globals and other objects cannot be: that somebody reads them cannot be
noticed. If the code says that it changes such a thing, examples run one at a time from the first that waits, each to its end:
exactly a loop, and as slow. If one is changed that the code did not tell of, while others are under way, that is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foldloom.caching import cached_property
from foldloom.errors import SharedStateError
from foldloom.pytrees import contents
from foldloom.tracing.fibers.module_hooks import count_batches
from foldloom.tracing.fibers.module_state import Journal, Placed, Slot, locate, unguarded_names
from foldloom.tracing.fibers.reachable import Reachable
from foldloom.tracing.fibers.turns import is_alone, path_of
from foldloom.tracing.fibers.watched_objects import WatchedObjects
from foldloom.tracing.scope import user_line

if TYPE_CHECKING:
    from foldloom.tracing.fibers.tasks import Fiber, Hub


class ExampleState:
    """``is_kept`` says whether anything has to be done when a fiber pauses or ends."""

    def __init__(self, fibers: Hub, function: object) -> None:
        self._fibers = fibers
        self._function = function
        self.journal = Journal(fibers)
        self._begun = False
        self._objects: list[tuple[str, Any]] = []
        self._watched = WatchedObjects(())
        count_batches(1)

    def leave(self, fiber: Fiber) -> None:
        """The fiber pauses."""
        if not self._begun:
            self._begun = True
            self._begin(fiber)
        if self.journal.is_off:
            return
        self._check(fiber, None)
        self.journal.leave(fiber)

    def come_back(self, fiber: Fiber) -> None:
        if not self.journal.is_off:
            self.journal.come_back(fiber)

    def finish(self, fiber: Fiber, *, keep: bool, check: bool = True) -> None:
        """The task is done, or was ended."""
        try:
            if check and keep and self._begun and not self.journal.is_off:
                self._check(fiber, f"before the end of {_place_of(self._function)}")
        finally:
            self.journal.finish(fiber, keep=keep)

    def take_over(self, fiber: Fiber, left: dict[Slot, list[tuple[int, Placed]]], last: int | None) -> None:
        self.journal.take_over(fiber, left, last)

    def settle(self, settled: Callable[[Any], Any]) -> None:
        """All examples are done."""
        self.journal.settle(settled)

    def end(self, last: int | None) -> None:
        self.journal.end(last)
        count_batches(-1)

    def _begin(self, fiber: Fiber) -> None:
        """An example waits for the first time in this batch; those before it have run as in a loop."""
        reach = self.reach
        adds_gradients = "backward" in reach.facts.names  # to those of weights, one example after the other
        if adds_gradients or reach.changed or unguarded_names(reach) or self.journal.unguarded_change(fiber):
            self._one_at_a_time()
            return
        self.journal.begin(fiber, reach.facts.attributes, reach.facts.changed_attributes, reach.modules)
        own = [locate(slot.module, slot.name) for slot in fiber.view]
        bases = [slot.base for slot in self.journal.slots.values()]
        # What can only be reached through attributes that are guarded.
        guarded = {id(value) for value in contents([placed[1] for placed in (*own, *bases) if placed is not None])}
        self._objects = [entry for number, entry in reach.objects.items() if number not in guarded]
        self._watched = WatchedObjects(self._objects)
        self._fibers.keeps_state = bool(self._watched or self.journal.slots)

    @cached_property
    def reach(self) -> Reachable:
        return Reachable(self._function)

    def run_in_order(self) -> None:
        """From now on no example begins before those before it are done."""
        if self._begun:
            self._fibers.one_at_a_time = True
        else:
            self._begun = True
            self._one_at_a_time()

    def _one_at_a_time(self) -> None:
        self._fibers.one_at_a_time = self.journal.is_off = True
        self._fibers.keeps_state = False

    def _check(self, fiber: Fiber, where: str | None) -> None:
        label = self.journal.unguarded_change(fiber) or self._watched.first_changed()
        if label is None:
            return
        if is_alone(fiber):
            self._watched = WatchedObjects(self._objects)
            return
        example = path_of(fiber)[0]
        raise SharedStateError(
            f"example {example} has changed {label} while other examples are under way, which see the change too early or too late. Keep "
            f"it in a local variable and return it, or change it after the batch\n  {where or 'before ' + user_line()}"
        )


def _place_of(function: object) -> str:
    """Where a function or the `forward` of a module is written."""
    function = getattr(function, "forward", function)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return repr(function) if code is None else f"`{code.co_name}`, {code.co_filename}:{code.co_firstlineno}"
