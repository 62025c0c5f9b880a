"""The order of tasks: in a loop, who comes before whom, and who is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foldloom.tracing.fibers.module_state import Slot
    from foldloom.tracing.fibers.tasks import Fiber, Group


def path_of(fiber: Fiber) -> tuple[int, ...]:
    """The index of the task, after those of the tasks that it is inside of."""
    owner = fiber.group.owner
    return (fiber.index,) if owner is None else (*path_of(owner), fiber.index)


def earlier_unfinished(fiber: Fiber, slot: Slot | None) -> bool:
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
    group: Group = fiber.group
    while not any(other.index != fiber.index for other in group.paused):
        if group.owner is None:
            return True
        fiber, group = group.owner, group.owner.group
    return False
