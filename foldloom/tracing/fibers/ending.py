"""Ending tasks before they are done, because another has failed or the batch has. Their `finally` blocks run."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from greenlet import GreenletExit

if TYPE_CHECKING:
    from foldloom.tracing.fibers.tasks import Fiber, Group
    from foldloom.tracing.fibers.turns import Turns


class Ending:
    """``noun`` is what messages call a task."""

    def __init__(self, turns: Turns, noun: str) -> None:
        self._turns = turns
        self._noun = noun

    def end(self, group: Group, reason: BaseException, after: int = -1) -> None:
        """End the tasks of a group that come after one, innermost first. The reason gets notes about what went wrong meanwhile."""
        self._turns.all_started(group)
        for fiber in [fiber for fiber in group.paused if fiber.index > after]:
            self._end_fiber(fiber, reason)
        self._tell_of_late_failures(group, reason)

    def end_one(self, group: Group, index: int, reason: BaseException) -> None:
        """End one task of a group, if it is under way."""
        for fiber in [fiber for fiber in group.paused if fiber.index == index]:
            self._end_fiber(fiber, reason)
        self._tell_of_late_failures(group, reason)

    def _end_fiber(self, fiber: Fiber, reason: BaseException) -> None:
        if fiber.waits_for is not None:
            self.end(fiber.waits_for, reason)
        fiber.ending = True
        fiber.throw(GreenletExit)
        if not fiber.dead:
            fiber.group.paused.pop(fiber, None)
            _given_up.append(fiber)
            warnings.warn(
                f"{self._noun} {fiber.index} does not end: it keeps catching GreenletExit. Let it catch Exception instead of "
                "BaseException; until then its memory is lost",
                RuntimeWarning,
                stacklevel=2,
            )

    def _tell_of_late_failures(self, group: Group, reason: BaseException) -> None:
        for index, error in group.late_failures:
            reason.add_note(f"while {self._noun} {index} was being ended because of this, it raised {error!r}")
        group.late_failures.clear()


_given_up: list[Fiber] = []
"""Kept, because freeing a greenlet means ending it."""
