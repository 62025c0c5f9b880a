"""Whose turn it is: which tasks are to be started, which wait, and which can go on; and the order in which a loop would take them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foldloom.tracing.fibers.tasks import Fiber, Group

_MOST_PASSED_OVER = 8
"""Where tasks come and go, so often may others go on while one is parked."""


class Turns:
    """Groups with tasks to start, and fibers that have paused."""

    def __init__(self) -> None:
        self._unstarted: deque[Group] = deque()
        self._parked: list[Fiber] = []
        self._waiting: list[Fiber] = []
        """Those that wait until earlier tasks are done."""
        self._ready: deque[Fiber] = deque()

    @property
    def has_unstarted(self) -> bool:
        """Whether there are tasks to start."""
        return bool(self._unstarted)

    def add(self, group: Group) -> None:
        """There are more tasks to start."""
        self._unstarted.append(group)

    def park(self, fiber: Fiber) -> None:
        """This one waits for what it has told as its kind."""
        self._parked.append(fiber)

    def await_earlier(self, fiber: Fiber) -> None:
        """This one waits for earlier tasks."""
        self._waiting.append(fiber)

    def is_next(self, fiber: Fiber) -> None:
        """This one goes on before all others."""
        self._ready.appendleft(fiber)

    def all_started(self, group: Group) -> None:
        """No more tasks of this group are started."""
        if not group.all_started:
            group.all_started = True
            self._unstarted.remove(group)

    def clear(self) -> None:
        for queue in (self._unstarted, self._parked, self._waiting, self._ready):
            queue.clear()

    def next_ready(self) -> Fiber | None:
        """The next one that can go on."""
        while self._ready:
            fiber = self._ready.popleft()
            if not fiber.ending:
                return fiber
        return None

    def startable(self, *, one_at_a_time: bool) -> Group | None:
        """A group of which a task may be started: of the earliest there is, or while they run one at a time, of the innermost."""
        if not self._unstarted or (one_at_a_time and self._unstarted[-1].paused):
            return None
        for group in reversed(self._unstarted) if one_at_a_time else self._unstarted:
            if group.can_start:
                return group
        return None

    def release(self) -> bool:
        """Let those go on that need not wait any longer for earlier tasks. Whether there were any."""
        self._waiting = [fiber for fiber in self._waiting if not fiber.ending]
        free = [fiber for fiber in self._waiting if not earlier_unfinished(fiber, fiber.awaits)]
        self._waiting = [fiber for fiber in self._waiting if fiber not in free]
        self._ready.extend(free)
        return bool(free)

    def kinds_to_advance(self, *, is_open: bool) -> set[Hashable]:
        """What is made next, of what those wait for who are parked."""
        self._parked = [fiber for fiber in self._parked if not fiber.ending]
        kinds = _worth_it([fiber.kind for fiber in self._parked])
        if is_open:
            kinds |= {fiber.kind for fiber in self._parked if fiber.passed_over >= _MOST_PASSED_OVER}
        return kinds

    def advanced(self, kinds: set[Hashable]) -> None:
        """These kinds have been made: those who waited for them go on, in the order of the tasks, whoever came first."""
        going_on = [fiber for fiber in self._parked if fiber.kind in kinds and not fiber.ending]
        self._ready.extend(sorted(going_on, key=attrgetter("index")))
        self._parked = [fiber for fiber in self._parked if fiber.kind not in kinds]
        for fiber in going_on:
            fiber.passed_over = 0
        for fiber in self._parked:
            fiber.passed_over += 1


def _worth_it(waiting: list[Hashable]) -> set[Hashable]:
    """The kinds to advance now, of those that are waited for: one that is wanted by at least half of all, or else all."""
    kinds = set(waiting)
    if len(kinds) <= 1:
        return kinds
    (most, count), *_ = Counter(waiting).most_common(1)
    return {most} if 2 * count >= len(waiting) else kinds


def path_of(fiber: Fiber) -> tuple[int, ...]:
    """The index of the task, after those of the tasks that it is inside of."""
    owner = fiber.group.owner
    return (fiber.index,) if owner is None else (*path_of(owner), fiber.index)


def earlier_unfinished(fiber: Fiber, slot: object) -> bool:
    """Whether there are earlier tasks under way that might write an attribute; without one, any at all."""
    group, index = fiber.group, fiber.index
    if any(other.index < index for other in group.paused):
        return True
    owner = group.owner
    return owner is not None and slot not in owner.view and earlier_unfinished(owner, slot)


def later_started(fiber: Fiber) -> tuple[int, ...] | None:
    """The path of a task that comes later in a loop, and has been started."""
    group = fiber.group
    before = () if group.owner is None else path_of(group.owner)
    if group.started > fiber.index:
        return (*before, group.started)
    return None if group.owner is None else later_started(group.owner)


def is_alone(fiber: Fiber) -> bool:
    """Whether no earlier task is under way and no later one has been started."""
    if later_started(fiber) is not None:
        return False
    group = fiber.group
    while not any(other.index != fiber.index for other in group.paused):
        if group.owner is None:
            return True
        fiber, group = group.owner, group.owner.group
    return False
