"""An observer that times what it is told of.

Forward, a step is timed around its kernel, and an exchange around itself. Backward there is no call of ours to stand around; but the
exchanges of a plan are nodes of autograd's graph, which tell when they begin and end, and all that a step left in that graph runs
between the exchange after it and the exchange before it. So each such moment ends what went on until then and begins something else.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import torch

from foldloom.execution import Buffers, Kernel
from foldloom.execution.backward.reach import Members
from foldloom.execution.engine import Planned
from foldloom.execution.observer import Underway
from foldloom.graph import Ints, Op
from foldloom.graph.ragged import Ragged
from foldloom.graph.recording import Recording
from foldloom.planning.plans import Plan, Read, Write
from foldloom.planning.schedulers import Scheduler
from foldloom.torch_private import backward_pass, queue_callback
from foldloom.tracing.flushing.kernels import how
from foldloom.tracing.rules.fallback import ONE_BY_ONE
from foldloom.views.places import NotedNodes, NotedOps, PartsObserver
from foldloom.views.survey import Part

RECORDING, PLANNING, FORWARD, GATHERS, BACKWARD, BACKWARD_GATHERS = (
    "recording", "planning", "forward", "gathers", "backward", "backward gathers",
)  # fmt: skip
PHASES = (RECORDING, PLANNING, FORWARD, GATHERS, BACKWARD, BACKWARD_GATHERS)


class Span(NamedTuple):
    """Something that went on for a while; ``run`` and ``step`` where it belongs to one."""

    phase: str
    start: float
    end: float
    run: int = -1
    step: int = -1

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Run:
    """A plan that ran, as a part of the batch with this number; ``part`` is None if it was planned where nobody watched."""

    batch: int
    part: Part | None
    plan: Plan


class _Backward:
    """What goes on in backward passes: one thing at a time."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans
        self._current: tuple[str, int, int] | None = None
        self._since = 0.0
        self._pass = -1

    def begin(self, phase: str, run: int, step: int) -> None:
        now = perf_counter()
        number = backward_pass()
        if number != self._pass:
            self._pass = number
            queue_callback(self.end)
        self._end_at(now)
        self._current, self._since = (phase, run, step), now

    def end(self) -> None:
        """The pass is over."""
        self._end_at(perf_counter())
        self._current, self._pass = None, -1

    def _end_at(self, now: float) -> None:
        if self._current is not None:
            phase, run, step = self._current
            self._spans.append(Span(phase, self._since, now, run, step))


class _Timed:
    """One run under way: which step it is at."""

    def __init__(self, timer: Timer, run: int) -> None:
        self._timer = timer
        self._run = run
        self.step = -1

    def note(self, phase: str, start: float) -> None:
        self._timer.spans.append(Span(phase, start, perf_counter(), self._run, self.step))

    def follow(self, phase: str, tensors: Iterable[torch.Tensor]) -> None:
        """When the backward pass arrives at these, the phase begins."""
        backward, run, step = self._timer.backward, self._run, self.step
        for node in {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}:
            node.register_prehook(lambda grads: backward.begin(phase, run, step))


class _TimedBuffers(Buffers):
    """Buffers whose exchanges are timed, forward and backward."""

    def __init__(self, buffers: Buffers, timed: _Timed) -> None:
        self._buffers = buffers
        self._timed = timed

    def admit(self, plan: Plan) -> None:
        self._buffers.admit(plan)

    def place_inputs(self, inputs: Sequence[torch.Tensor]) -> tuple[list[Write], list[torch.Tensor]]:
        return self._buffers.place_inputs(inputs)

    def members_of(self, writes: Sequence[Write], ragged: Sequence[bool], lengths: Ints | None) -> Members:
        return self._buffers.members_of(writes, ragged, lengths)

    def hand_out(self, *args: Any) -> list[Sequence[torch.Tensor]]:
        self._timed.step += 1
        start = perf_counter()
        rows = self._buffers.hand_out(*args)
        self._timed.note(GATHERS, start)
        self._timed.follow(BACKWARD_GATHERS, [row for block in rows for row in block[:1]])
        return rows

    def shared_rows(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        return self._buffers.shared_rows(reads)

    def exchange(self, *args: Any) -> Sequence[torch.Tensor]:
        self._timed.step += 1
        start = perf_counter()
        operands = self._buffers.exchange(*args)
        self._timed.note(GATHERS, start)
        self._timed.follow(BACKWARD_GATHERS, operands)
        return operands


def _timed_kernel(kernel: Kernel, timed: _Timed) -> Kernel:
    made, call = copy.copy(kernel), kernel.call

    def run(*operands: Any) -> Sequence[Any]:
        start = perf_counter()
        outputs = call(*operands)
        timed.note(FORWARD, start)
        timed.follow(BACKWARD, [output.values if isinstance(output, Ragged) else output for output in outputs])
        return outputs

    made.call = run
    return made


class Timer(PartsObserver):
    """Keeps every run with its times, and the user's lines."""

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []
        self.runs_so_far: list[Run] = []
        self.backward = _Backward(self.spans)
        self.without_rule: dict[Op, str] = {}
        self._batch_of_underway: weakref.WeakKeyDictionary[Underway, int] = weakref.WeakKeyDictionary()
        self._batches = 0
        self._recording_since: float | None = None
        self._planning_since = 0.0
        self._next: tuple[int, Part] | None = None
        self._kernels: Sequence[Kernel | None] = ()
        self._ready: weakref.WeakKeyDictionary[Plan, tuple[int, Part]] = weakref.WeakKeyDictionary()

    def nodes_of(self, underway: Underway) -> list[int]:
        self._recording_since = perf_counter()
        return NotedOps(underway)

    def recorded(self, recording: Recording, op_of_node: list[int], nodes: Ints | None = None) -> None:
        if self._recording_since is not None:
            self.spans.append(Span(RECORDING, self._recording_since, perf_counter()))
            self._recording_since = None
        super().recorded(recording, op_of_node, nodes)

    def plans(self, recording: Recording, scheduler: Scheduler, earlier: Ints | None) -> None:
        part, noted = self.part_of(recording, scheduler, earlier)
        self._next = (self._batch_of(noted), part)
        self._planning_since = perf_counter()

    def _batch_of(self, noted: NotedNodes | None) -> int:
        """Parts that were recorded by one recorder are one batch; what was recorded before is one in itself."""
        known = None if noted is None else self._batch_of_underway.get(noted.underway)
        if known is None:
            known, self._batches = self._batches, self._batches + 1
            if noted is not None:
                self._batch_of_underway[noted.underway] = known
        return known

    def planned(self, planned: Planned) -> None:
        self.spans.append(Span(PLANNING, self._planning_since, perf_counter()))
        if self._next is not None:
            self._ready[planned.plan] = self._next

    def runs(
        self, planned: Planned, kernels: Sequence[Kernel | None], buffers: Buffers
    ) -> tuple[Sequence[Kernel | None], Buffers]:
        number = len(self.runs_so_far)
        batch, part = self._ready.get(planned.plan) or (self._batch_of(None), None)
        self.runs_so_far.append(Run(batch, part, planned.plan))
        timed = _Timed(self, number)
        made = [None if kernel is None else _timed_kernel(kernel, timed) for kernel in kernels]
        self._kernels = made
        return made, _TimedBuffers(buffers, timed)

    def ran(self, planned: Planned) -> None:
        for kernel in self._kernels:
            if kernel is not None and how(kernel) == ONE_BY_ONE:
                self.without_rule[kernel.op] = NO_WAY
        # What is recorded next is recorded from here on.
        if self._recording_since is not None:
            self._recording_since = perf_counter()


NO_WAY = "no rule and no torch.vmap takes several of them at once"
