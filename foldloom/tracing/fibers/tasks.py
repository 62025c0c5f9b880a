"""Tasks under way: the group that they were started in, and the fiber that each runs in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Protocol

from greenlet import getcurrent, greenlet

from foldloom.tracing.fibers.torch_state import Outputs, TorchState

if TYPE_CHECKING:
    from foldloom.tracing.fibers.module_state import Journal, Placed, Slot

_MOST_IDLE = 256
"""How many free fibers are kept; each holds some 20 kB."""


class Group:
    """The tasks of one call of `run`."""

    is_open = False
    """Whether tasks may come as long as the run goes on."""
    can_start = True
    """Whether the next task may be started now."""

    def __init__(self, tasks: Iterator[tuple[int, Callable[[], Any]]], results: Any) -> None:
        """Tasks with their numbers, and where their results go."""
        self.tasks = tasks
        self.results = results
        self.state = TorchState.capture()
        self.context: Context = copy_context()
        self.owner: Fiber | None = None
        self.started = -1
        """The last task that has been started."""
        self.left: dict[Slot, list[tuple[int, Placed]]] = {}
        """What tasks that are done have written to modules."""
        self.all_started = False
        self.paused: dict[Fiber, None] = {}
        """Fibers whose task has paused and is not done."""
        self.failure: tuple[int, BaseException] | None = None
        self.late_failures: list[tuple[int, BaseException]] = []

    def is_last(self, index: int) -> bool:
        """Whether no task comes after this one."""
        return index + 1 == len(self.results)

    def is_over(self) -> bool:
        return self.all_started and not self.paused


class OpenTasks(Protocol):
    """Tasks that come while others run, with their numbers. It stops where there is none now, and may go on later."""

    @property
    def can_start(self) -> bool: ...
    @property
    def is_over(self) -> bool: ...
    def __iter__(self) -> Iterator[tuple[int, Callable[[], None]]]: ...
    def __next__(self) -> tuple[int, Callable[[], None]]: ...


class _Nowhere:
    """Where the results of open tasks go: they are None."""

    def __setitem__(self, index: int, result: None) -> None: ...


class OpenGroup(Group):
    """Tasks that come while others run."""

    is_open = True

    def __init__(self, tasks: OpenTasks) -> None:
        super().__init__(tasks, _Nowhere())
        self._open = tasks

    @property
    def can_start(self) -> bool:  # type: ignore[override]
        return self._open.can_start

    def is_last(self, index: int) -> bool:
        return False

    def is_over(self) -> bool:
        return (self.all_started or self._open.is_over) and not self.paused

    def forget_before(self, index: int | None) -> None:
        """Tasks before this one are done, and of what they left, only the last is ever seen again."""
        for entries in self.left.values():
            before = [entry for entry in entries if index is None or entry[0] < index]
            if before:
                last = max(before, key=lambda entry: entry[0])
                entries[:] = [last, *[entry for entry in entries if index is not None and entry[0] >= index]]


class Hub(Protocol):
    """`Fibers`, as those know it that it consists of."""

    idle: list[Fiber]
    left: dict[Slot, list[tuple[int, Placed]]]
    keeps_state: bool
    one_at_a_time: bool

    @property
    def has_unstarted(self) -> bool: ...
    def work(self, fiber: Fiber) -> None: ...
    def is_mine(self) -> bool: ...
    def uninterrupted(self, function: Callable[[], None]) -> None: ...
    def wait_for_earlier(self, slot: Slot | None) -> None: ...


class Fiber(greenlet):  # type: ignore[misc]
    fibers: Hub
    group: Group

    def __init__(self) -> None:
        super().__init__(_live)
        self.index = -1
        self.kind: Hashable = None
        self.awaits: Any = None
        self.journal: Journal | None = None
        self.view: dict[Slot, Placed] = {}
        """Attributes that the task has written or read, with its values while it is away."""
        self.wrote: set[Slot] = set()
        self.loop: Any = None
        """The event loop of asyncio that it runs, while it is away."""
        self.outputs: Outputs | None = None
        """Where its prints and warnings go while it is away, if not where the hub's do."""
        self.waits_for: Group | None = None
        self.ending = False
        self.refused = 0
        self.passed_over = 0
        """How often others went on and it did not."""
        self.has_seeded = False
        """Whether the task has seeded torch's generator."""
        self.states_seen: set[bytes] = set()
        """States of the generator that the task has asked for before that."""
        self.has_stream = False
        """Whether it draws from a stream of its own."""
        self.grad: bool | None = None
        self.function_modes: list[Any] = []
        """Its torch state while it is away, if it differs from the hub's in these two things."""
        self.state: TorchState | None = None
        """Its torch state while it is away, if it differs in other things; with the layers and the guard that go with it."""
        self.layers: list[Any] = []
        self.guard: Any = None


def _live() -> None:
    """What every fiber does. One that is idle must not hold itself, or it could never be freed."""
    while True:
        fiber = getcurrent()
        assert isinstance(fiber, Fiber)
        fiber.fibers.work(fiber)
        # Whoever has run a group inside a task may run another.
        idle, is_wanted = fiber.fibers.idle, fiber.fibers.has_unstarted or fiber.group.owner is not None
        del fiber.fibers, fiber.group
        fiber.journal = fiber.awaits = None
        if fiber.ending or not is_wanted or len(idle) >= _MOST_IDLE:
            return
        fiber.gr_context = None
        idle.append(fiber)
        hub = fiber.parent
        assert hub is not None
        del fiber, idle
        hub.switch()
