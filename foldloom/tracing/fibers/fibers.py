"""Fibers: many tasks in one thread, each with a stack of its own.

A task that needs something that only a batch can give parks, the others go on, and when every task is parked or done,
what they wait for is made for many of them at once. The tasks are ordinary code: anything on their stacks may park, however
deep, which generators and `async` could not give.

**Who runs.** The greenlet that called `run` is the hub. It lets one fiber run at a time, and a fiber that pauses always returns
to it, so that there is one place where things are decided: who is next, when to advance, what to end. A `run` inside a task
makes a group of its own, whose owner pauses until the group is done. To start a greenlet costs about twenty times as much as to switch
to one; so tasks follow one another in one fiber until one of them pauses, and fibers that are free are kept for the next tasks.

**Who goes on.** Tasks that are parked may wait for different kinds of things: most of a batch of parsers for the next action, those
that are done for the names of all relations. If one kind is what at least half of them wait for, it alone is made; the others wait until more
have joined them.

**Whose state.** Torch keeps modes and settings for the whole thread or process, and a task may park within `torch.no_grad()`. They
belong to the task: it starts with those that held where `run` was called, and has its own again when it goes on. A fiber
that pauses returns to what held around the outermost `run`, so that only differences from that have to be noted, and there
usually are none. What stands in `TorchState` (`torch_state.py`), the layers of `torch.func` and context variables are kept apart. Other state of the process
(`random`, numpy's generator, `warnings`, levels of forward-mode AD) is shared, as in a loop.

**Whose random numbers.** As long as no task pauses, all draw from torch's default generator in turn, exactly as in a loop. If a task
has drawn when it pauses, the next ones go on where it stopped, and what it draws later is from a stream of its own, whose seed is
derived from the generator's state; if it has drawn nothing yet, it takes the next numbers when it goes on. A task that has seeded
the generator (`seeding.py`) takes its state along and continues it later; the others go on with a derived seed. So no two tasks see the
same numbers, and nobody's later numbers depend on what others draw. A draw can only be noticed when a fiber pauses: if
earlier tasks in the same fiber have drawn, the one that pauses counts as having drawn. Everything is determined by the generator's
state before `run`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet
from torch import get_default_dtype, is_grad_enabled

from foldloom.errors import RecordingError, SharedStateError
from foldloom.execution.interrupts import Interrupts, check_interrupts, pending
from foldloom.torch_private import count_function_modes, push_transform
from foldloom.tracing.fibers.crossing import Crossing
from foldloom.tracing.fibers.ending import Ending
from foldloom.tracing.fibers.example_state import ExampleState
from foldloom.tracing.fibers.module_state import Slot
from foldloom.tracing.fibers.tasks import Fiber, Group, OpenGroup, OpenTasks
from foldloom.tracing.fibers.torch_state import cross_inference_mode
from foldloom.tracing.fibers.turns import Turns, earlier_unfinished, later_started

T = TypeVar("T")

_PATIENCE = 100
"""How often a task that is being ended may try to pause before it is given up."""


class Fibers:
    """Runs tasks, each in a fiber of its own. One that parks waits for the next `advance` that is for its kind. This is called once
    whenever all tasks are parked or done, with the kinds that it is for, in the torch state of the outermost `run`. It may return tasks of that
    `run` that end where they are, with the reasons; their results are None. It may add kinds, if it has done more.

    >>> fibers = Fibers(lambda kinds: print("advance"))
    >>> def task(name):
    ...     print(name, "asks")
    ...     fibers.park()
    ...     return name
    >>> fibers.run([lambda: task("first"), lambda: task("second")])
    first asks
    second asks
    advance
    ['first', 'second']
    """

    def __init__(
        self,
        advance: Callable[[set[Hashable]], Iterable[tuple[int, BaseException]] | None],
        *,
        noun: str = "task",
        function: object = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        """``function`` is what all tasks call: state that it can reach is guarded (`example_state.py`)."""
        self._advance = advance
        self._function = function
        self._interrupts = interrupts or Interrupts()
        self._noun = noun  # what errors call a task
        self.idle: list[Fiber] = []
        """Fibers that are free. They go with the run: whoever walks the stack of one that was started deeper than where it is
        resumed, as torch does to describe an error, finds nothing below it."""
        self._thread = threading.get_ident()
        self._hub: greenlet | None = None
        self._turns = Turns()
        self._ending = Ending(self._turns, noun)
        self._open: OpenGroup | None = None
        self._state: ExampleState | None = None
        self.failed_at: int | None = None
        """The task that raised, if one did."""
        self.can_go_on: Callable[[], bool] = lambda: True
        """Whether tasks before one that has raised can still be run to their end."""
        self.is_of_later: Callable[[BaseException, int], bool] = lambda error, index: False
        """Whether what `advance` raised is the error of a task after this one."""
        self.settled: Callable[[Any], Any] | None = None
        """What becomes of a value that the tasks of a run leave on a module, when all are done."""
        self.keeps_state = False
        """Whether the state of examples has to be looked at when a fiber pauses."""
        self.one_at_a_time = False
        """Whether a task is started only when the one before is done."""

    def run(self, tasks: Iterable[Callable[[], T]]) -> list[T]:
        """The results of the tasks, in order.

        If a task raises, all later ones are ended, their `finally` blocks run. Those before it go on to their end, as in a loop they would
        have: one of them may raise, too. Then the exception is raised here with a note that says which
        task it was; so is what `advance` raises, from the outermost `run`. Called inside a task, `run` lets the new
        tasks take turns with all others, and what they raise can be caught there.
        """
        if threading.get_ident() != self._thread:
            raise RecordingError("fibers belong to the thread that made them: make another Fibers object in this one")
        given = list(tasks)
        if not given:
            return []
        group = Group(enumerate(given), [None] * len(given))
        fiber = getcurrent()
        if isinstance(fiber, Fiber) and fiber.fibers is self:
            if fiber.ending:
                self._refuse(fiber)
            group.owner = fiber
            fiber.waits_for = group
            try:
                self._pause(fiber, self._turns.add, group)
            finally:
                fiber.waits_for = None
            if group.left and self._state is not None:
                self._state.take_over(fiber, group.left, None if group.failure is None else group.failure[0])
        elif self._hub is not None:
            raise RecordingError(
                "run was called by `advance` or by a greenlet inside a task: call it from the task itself"
            )
        else:
            self._run_outermost(group, fiber)
        self._raise_failure(group)
        return group.results  # type: ignore[no-any-return]

    def run_open(self, tasks: OpenTasks) -> None:
        """Run tasks that come while others are under way, until they are over. `advance` is also called when none is left that could
        go on. An exception ends all."""
        assert self._hub is None, "one run at a time"
        self._open = OpenGroup(tasks)
        self._run_outermost(self._open, getcurrent())
        self._raise_failure(self._open)

    def _raise_failure(self, group: Group) -> None:
        if group.failure is None:
            return
        index, error = group.failure
        group.failure = None
        error.add_note(f"in {self._noun} {index}")
        try:
            raise error
        finally:
            del error  # else it would hold this frame, which holds it

    def forget_before(self, index: int | None) -> None:
        """Of an open run: all tasks before this one are done."""
        assert self._open is not None
        self._open.forget_before(index)
        if self._state is not None:
            self._state.journal.forget_before(index)

    def others_may_write(self) -> AbstractContextManager[None]:
        """Within it, other threads may write attributes of modules, though a run is under way."""
        return nullcontext() if self._state is None else self._state.journal.others_may_write()

    def park(self, kind: Hashable = None) -> None:
        """Called inside a task: returns after the next `advance` that is for this kind."""
        fiber = getcurrent()
        if type(fiber) is not Fiber or fiber.fibers is not self:
            raise RecordingError("park was called outside of any fiber: only a task given to `run` can park")
        if fiber.ending:
            self._refuse(fiber)
        fiber.kind = kind
        self._pause(fiber, self._turns.park, fiber)

    def wait_for_earlier(self, slot: Slot | None) -> None:
        """Called inside a task: returns when all earlier tasks are done that may write an attribute; without one, all that there are."""
        fiber = getcurrent()
        if fiber.ending:
            self._refuse(fiber)
        fiber.awaits = slot
        self._pause(fiber, self._turns.await_earlier, fiber)

    def is_nested(self) -> bool:
        """Called inside a task: whether it was started by another."""
        return getcurrent().group.owner is not None

    def in_order(self) -> bool:
        """Called inside a task: returns when all earlier ones are done, and no later one begins before this one is. False if it is too late
        for that."""
        fiber = getcurrent()
        if fiber.ending:
            self._refuse(fiber)
        if later_started(fiber) is not None:
            return False
        assert self._state is not None
        self._state.run_in_order()
        while earlier_unfinished(fiber, None):
            self.wait_for_earlier(None)
        return True

    def shared_memory(self) -> Set[int]:
        """The memory of tensors that all tasks can reach."""
        return set() if self._state is None else self._state.reach.memory

    def _pause(self, fiber: Fiber, enter: Callable[[Any], None], entry: Any) -> None:
        """To the hub, which finds the entry where it is entered."""
        assert self._hub is not None
        interrupts = self._interrupts
        interrupts.held = True
        try:
            if self.keeps_state:
                self._state.leave(fiber)  # type: ignore[union-attr]
            enter(entry)
            fiber.group.paused[fiber] = None
            self._crossing.leave(fiber)
            try:
                self._hub.switch()
            finally:
                self._crossing.come_back(fiber)
                if fiber.view:
                    self._state.come_back(fiber)  # type: ignore[union-attr]
        finally:
            interrupts.held = False
            if pending:
                check_interrupts()

    def _refuse(self, fiber: Fiber) -> NoReturn:
        fiber.refused += 1
        if fiber.refused > _PATIENCE:
            assert self._hub is not None
            self._crossing.leave(fiber)
            self._hub.switch()  # for ever
        raise GreenletExit

    # In the hub.

    def _run_outermost(self, group: Group, hub: greenlet) -> None:
        self._hub = hub
        # Here modes would see, and slow down, what is done between two fibers.
        self._home = group.state.without_modes()
        self._turns.add(group)
        self.left = group.left
        try:
            if group.state != self._home:
                self._home.apply()
            self._crossing = Crossing(self._home)
            self._streams_known = True
            if self._function is not None:
                self._state = ExampleState(self, self._function)
                self.keeps_state = True
            self._take_turns(group)
            if group.failure is None and self._state is not None and self.settled is not None:
                self._in_state_of(group, partial(self._state.settle, self.settled))
        except BaseException as error:
            self._ending.end(group, error)
            if group.failure is None or not self.is_of_later(error, group.failure[0]):
                group.failure = None
                raise
        finally:
            self.failed_at = None if group.failure is None else group.failure[0]
            self._close(group, self.failed_at)

    def _close(self, group: Group, failed_at: int | None) -> None:
        while self.idle:
            self.idle.pop().throw()
        self._hub = None
        self._turns.clear()
        self.keeps_state = self.one_at_a_time = False
        if self._state is not None:
            self._state.end(failed_at)
            self._state = None
        if not group.state.holds():
            group.state.apply()

    def _take_turns(self, outermost: Group) -> None:
        turns = self._turns
        while True:
            fiber = turns.next_ready()
            if fiber is None:
                fiber = self._start_next()
            if fiber is None:
                if not turns.release():
                    self._advance_most(outermost)
                    if outermost.is_over():
                        return
                continue
            if not self._streams_known:
                for stream in self._crossing.streams:
                    stream.refresh()
                self._streams_known = True
            group = fiber.group
            fiber.switch()
            if group.is_last(fiber.index):
                turns.all_started(group)
            if group.failure is not None:
                index, error = group.failure
                goes_on = isinstance(error, Exception) and not isinstance(error, SharedStateError) and self.can_go_on()
                self._ending.end(group, error, after=index if goes_on else -1)
            if group.is_over():
                if group.owner is None:
                    return
                turns.is_next(group.owner)

    def _start_next(self) -> Fiber | None:
        """A fiber for tasks that can be started; None if there are none."""
        group = self._turns.startable(one_at_a_time=self.one_at_a_time)
        if group is None:
            return None
        assert self._hub is not None
        fiber = self.idle.pop() if self.idle else Fiber()
        fiber.parent = self._hub
        fiber.fibers, fiber.group = self, group
        fiber.journal = None if self._state is None else self._state.journal
        return fiber

    def _advance_most(self, outermost: Group) -> None:
        kinds = self._turns.kinds_to_advance(is_open=outermost.is_open)
        for index, reason in self._in_state_of(outermost, partial(self._advance, kinds)) or ():
            self._ending.end_one(outermost, index, reason)
        self._turns.advanced(kinds)

    def _in_state_of(self, outermost: Group, function: Callable[[], T]) -> T:
        """Call a function in the hub, in the torch state around the outermost `run`."""
        with_modes = outermost.state != self._home
        if with_modes:
            outermost.state.apply()
        try:
            if pending:
                check_interrupts()
            return function()
        finally:
            if with_modes or not self._home.holds():
                self._home.apply()
            self._streams_known = False

    # In a fiber.

    def work(self, fiber: Fiber) -> None:
        """Run tasks of the fiber's group until one of them has paused or none is left."""
        group = fiber.group
        guard = None
        if group.state != self._home:
            guard = cross_inference_mode(group.state.inference)
            group.state.apply()
        if group.owner is not None:
            for layer in reversed(group.owner.layers):
                push_transform(layer)
        try:
            self._run_tasks(fiber, group)
        except BaseException as error:
            self._interrupts.held = True
            if not fiber.ending:
                group.failure = (fiber.index, error)
            elif not isinstance(error, GreenletExit):
                group.late_failures.append((fiber.index, error))
        if fiber.view:
            assert self._state is not None
            self._state.finish(fiber, keep=not fiber.ending, check=False)
        self._crossing.pop_layers()
        if guard is not None:
            guard.__exit__(None, None, None)
        if not self._home.holds():
            self._home.apply()
        self._crossing.forget(fiber)
        self._streams_known = False
        group.paused.pop(fiber, None)

    def _run_tasks(self, fiber: Fiber, group: Group) -> None:
        results, context, interrupts = group.results, group.context, self._interrupts
        grad, dtype = group.state.grad, group.state.dtype
        for index, task in group.tasks:
            fiber.index = group.started = index
            fiber.gr_context = context.copy()
            fiber.has_seeded = False
            fiber.states_seen.clear()
            interrupts.held = False
            if pending:
                check_interrupts()
            results[index] = task()
            interrupts.held = True
            # What one call without `with` leaves behind must not reach the next task; all else is looked at in the end.
            if (
                is_grad_enabled() is not grad or get_default_dtype() is not dtype or count_function_modes()
            ) and not group.state.holds():
                group.state.apply()
            if self.keeps_state or fiber.view:
                self._state.finish(fiber, keep=not fiber.ending)  # type: ignore[union-attr]
            if group.paused and fiber in group.paused:
                break

    def uninterrupted(self, function: Callable[[], None]) -> None:
        """Call a function in a task, while signals wait."""
        self._interrupts.held = True
        try:
            function()
        finally:
            self._interrupts.held = False

    @property
    def has_unstarted(self) -> bool:
        """Whether there are tasks for a fiber that is free."""
        return self._turns.has_unstarted

    def is_mine(self) -> bool:
        """Whether this is the thread that they run in."""
        return threading.get_ident() == self._thread
