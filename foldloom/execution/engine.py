"""Joins the rooms: a recording is scheduled and placed, then run. The engine knows graphs, never cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import GradientEdge

from foldloom.errors import PlanError
from foldloom.execution import Buffers, Kernel, run_plan
from foldloom.execution.backward.hooks import GradientHook
from foldloom.execution.backward.reach import Reach
from foldloom.execution.exchange import Given
from foldloom.execution.failures import Failures
from foldloom.execution.kernels import is_only_thread, outside_inference_mode, without_drawing
from foldloom.execution.observer import observing
from foldloom.execution.run import Outputs
from foldloom.graph import EARLIER, TRACKED, Graph, Ints, Op, Type
from foldloom.graph.recording import Column, Recording, refuse_tracked
from foldloom.planning.cse import shared
from foldloom.planning.placement import Placed, place
from foldloom.planning.plans import Plan, Statistics, Write
from foldloom.planning.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler

OURS = (ByAgenda, ByDepth, OneByOne)
"""Schedulers whose plans need no check."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A batch that is ready to run: the plan, its inputs in the order in which it places them, and the nesting of the
    results. Pickles; made in one process, it can run in another. Made by `plan`.

    >>> import pickle, torch, foldloom as fl
    >>> double = fl.batch(lambda x: x * 2)
    >>> planned = fl.plan(fl.record_each(double.function, [torch.ones(2), torch.zeros(2)]))
    >>> double.run(pickle.loads(pickle.dumps(planned)))
    [tensor([2., 2.]), tensor([0., 0.])]
    """

    plan: Plan
    inputs: tuple[Column, ...]
    results: tuple[Any, ...]
    shared_ops: frozenset[int] = frozenset()
    """Ops some of whose calls were asked for by several nodes, and are computed once."""

    def __getstate__(self) -> dict[str, Any]:
        refuse_tracked(self.plan.ops)
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.check()

    def check(self) -> None:
        """Raise a `PlanError` unless the plan holds and its inputs are what it places."""
        self.plan.check()
        ops = [op for op in self.plan.ops if op.is_input and op.key != EARLIER]
        if len(self.inputs) != len(ops):
            raise PlanError(f"the plan places {len(ops)} inputs, but was given {len(self.inputs)}")
        for op, column, write in zip(ops, self.inputs, self.plan.inputs, strict=True):
            _check_column(op, column, write.size)
        if sum([template.count for template in self.results]) != len(self.plan.row_of_output):
            raise PlanError("the results have another number of tensors than the plan has outputs")

    def statistics(self) -> Statistics:
        return self.plan.statistics()

    def __len__(self) -> int:
        return len(self.results)

    def __str__(self) -> str:
        return f"{len(self)} examples: {self.plan.statistics()}"

    def __repr__(self) -> str:
        return f"Planned({self})"


def _check_column(op: Op, column: Column, rows: int) -> None:
    """An array with so many rows of the op's type, or a tuple of tensors."""
    type = op.outputs[0]
    if isinstance(column, np.ndarray):
        fits = column.dtype.name == type.dtype and column.shape == (rows, *type.row.shape)
    else:
        shapes = [tuple(tensor.shape) for tensor in column]
        ours = [(shape[0], *type.row.shape) if type.ragged else type.shape for shape in shapes]
        dtype = getattr(torch, type.dtype, None)
        fits = shapes == ours and all(tensor.dtype is dtype for tensor in column)
        fits = fits and (sum([shape[0] for shape in shapes]) if type.ragged else len(column)) == rows
    if not fits:
        raise PlanError(f"an input of the plan is not {rows} values of {type}")


class Session:
    """A batch that runs in parts, because what is asked next depends on what was computed before."""

    def __init__(self, scheduler: Scheduler, device: torch.device) -> None:
        self._scheduler = scheduler
        self._device = device
        self._placed = Placed()
        self._buffers = Buffers(device)
        self.failures = Failures()

    def run(
        self,
        part: Recording,
        earlier: Ints,
        kernels: Sequence[Kernel | None],
        *,
        apart: bool,
        example_of_node: Ints | None = None,
    ) -> tuple[Planned, Outputs]:
        """Run what was asked since the last part. ``earlier`` are the numbers of the values that come from before. Members that fail are in
        `failures` afterwards."""
        planned = prepare(part, self._scheduler, self._placed, earlier, example_of_node)
        return planned, execute(planned, kernels, self._device, self._buffers, apart=apart, failures=self.failures)

    @property
    def size(self) -> int:
        """How many bytes the values take, with their places."""
        return self._buffers.size_of(self._placed.filled) + self._placed.size

    def keep(self, values: Ints) -> None:
        """Only these values are left, with new numbers from 0 on. There are no gradients."""
        rows_of_arena = self._placed.keep(values)
        self.failures.keep(rows_of_arena)
        with outside_inference_mode():
            self._buffers.keep(rows_of_arena)

    def place_of(self, value: int) -> tuple[int, int]:
        """The arena and row of a value that has been computed."""
        return int(self._placed.arena_of_value[value]), int(self._placed.row_of_value[value])

    def add_hook(
        self, values: Sequence[int], is_ragged: bool, call: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> Callable[[], None]:
        """Have a hook called with the gradient of a value that has been computed, or of one whose rows these are; what is returned takes it
        away."""
        arena, first = self.place_of(values[0])
        assert self._placed.row_of_value[np.array(values)].tolist() == list(range(first, first + len(values)))
        return self._buffers.reach.hooks.add(arena, GradientHook(first, len(values), is_ragged, call))

    def edge_into(self, value: int) -> GradientEdge | None:
        """Where in autograd's graph the gradient of a value goes; None if it has no history."""
        return self._buffers.edge_into(*self.place_of(value))

    @property
    def arena_of_value(self) -> Ints:
        """Where the values of all parts so far are."""
        return self._placed.arena_of_value

    @property
    def earlier_ops(self) -> list[Op]:
        """For each arena, the op of values that come from it."""
        return [_earlier_op(type) for type, _ in self._placed.arenas]

    def row(self, value: int) -> torch.Tensor:
        """A value that has been computed, without its gradient."""
        return self._buffers.row(int(self._placed.arena_of_value[value]), int(self._placed.row_of_value[value]))

    def rows(self, values: Sequence[int]) -> torch.Tensor:
        """Several of one type, stacked."""
        arena = int(self._placed.arena_of_value[values[0]])
        return self._buffers.rows(arena, self._placed.row_of_value[np.array(values)])

    def numbers(self, values: Ints) -> list[Any]:
        """Values that are one number each, as Python's. Many examples may ask at once."""
        arenas, rows = self._placed.arena_of_value[values], self._placed.row_of_value[values]
        if len(set(arenas.tolist())) == 1:
            return self._buffers.numbers(arenas.item(0), rows)
        return [self._buffers.number(*place) for place in zip(arenas.tolist(), rows.tolist(), strict=True)]

    def number(self, value: int) -> Any:
        """A value that is one number, as Python's."""
        return self._buffers.number(self._placed.arena_of_value.item(value), self._placed.row_of_value.item(value))


@cache
def _earlier_op(type: Type) -> Op:
    return Op(EARLIER, (), (type,))


def prepare(
    recording: Recording,
    scheduler: Scheduler,
    placed: Placed | None = None,
    earlier: Ints | None = None,
    example_of_node: Ints | None = None,
) -> Planned:
    observer = observing.observer
    if observer is not None:
        observer.plans(recording, scheduler, earlier)
    shared_ops: frozenset[int] = frozenset()
    if placed is None:
        recording, shared_ops = shared(recording)
    graph = recording.graph
    is_ours = type(scheduler) in OURS
    schedule = scheduler.schedule(graph) if is_ours else _checked_schedule(scheduler, graph)
    plan = place(graph, schedule, placed, earlier, example_of_node)
    if not is_ours:
        _check_plan(plan, scheduler)
    inputs: list[Column] = []
    start = 0
    for column in recording.inputs:
        inputs.append(_reorder(column, plan.input_order[start : start + len(column)]))
        start += len(column)
    planned = Planned(plan, tuple(inputs), recording.results, shared_ops)
    if observer is not None:
        observer.planned(planned)
    return planned


def _checked_schedule(scheduler: Scheduler, graph: Graph) -> Ints:
    """What a scheduler of the user's says, if it is a step for every node."""
    steps = np.asarray(scheduler.schedule(graph))
    if steps.shape != graph.op_of_node.shape or steps.dtype.kind not in "iu":
        raise PlanError(
            f"{scheduler!r} gives {steps.dtype}{list(steps.shape)}, not an integer for each of the {len(graph.op_of_node)} nodes"
        )
    if not np.array_equal(steps < 0, graph.depth_of_node == 0):
        raise PlanError(f"{scheduler!r} must give a step to every node that computes, and -1 to every input")
    return steps.astype(np.int64)


def _check_plan(plan: Plan, scheduler: Scheduler) -> None:
    """Nodes that run before what they read would compute on rows that nobody has written."""
    try:
        plan.check()
    except PlanError as error:
        raise PlanError(
            f"the schedule of {scheduler!r} does not hold, nodes run before what they read: {error}"
        ) from error


def execute(
    planned: Planned,
    kernels: Sequence[Kernel | None],
    device: torch.device,
    buffers: Buffers | None = None,
    *,
    apart: bool = False,
    failures: Failures | None = None,
) -> Outputs:
    """For each block of the plan's outputs one tensor, or if they are wanted ``apart`` the rows of it."""
    buffers = buffers or Buffers(device)
    with outside_inference_mode():
        given = [op for op in planned.plan.ops if op.is_input and op.key != EARLIER]
        inputs = [
            _given(op, column, device, write, buffers.reach)
            for op, column, write in zip(given, planned.inputs, planned.plan.inputs, strict=True)
        ]
    ops, shared_ops = planned.plan.ops, sorted(planned.shared_ops)
    nobody_draws: AbstractContextManager[None] = nullcontext()
    if shared_ops and is_only_thread() and all(op.is_input or op.repeatable for op in ops):
        nobody_draws = without_drawing([ops[number].label for number in shared_ops], device)
    elif shared_ops:
        kernels = [k.without_drawing(device) if k and n in planned.shared_ops else k for n, k in enumerate(kernels)]
    observer = observing.observer
    if observer is not None:
        kernels, buffers = observer.runs(planned, kernels, buffers)
    with nobody_draws:
        blocks = run_plan(planned.plan, inputs, kernels, buffers, apart=apart, failures=failures)
    if observer is not None:
        observer.ran(planned)
    return blocks


def column_to_tensor(op: Op, column: Column, device: torch.device) -> torch.Tensor:
    """The rows of an input op."""
    if isinstance(column, np.ndarray):
        return torch.from_numpy(column).to(device)
    return (torch.cat(column) if op.outputs[0].ragged else torch.stack(column)).to(device)


def _given(op: Op, column: Column, device: torch.device, write: Write, reach: Reach) -> torch.Tensor:
    """The same for a plan that writes them where ``write`` says; gradients flow back to the tensors that are reached."""
    if op.key != TRACKED or not torch.is_grad_enabled():
        return column_to_tensor(op, column, device)
    block: torch.Tensor = Given.apply(reach, write, op.outputs[0].ragged, *column)
    return block.to(device)


def _reorder(column: Column, order: Ints) -> Column:
    if isinstance(column, np.ndarray):
        return column[order]
    return tuple([column[position] for position in order.tolist()])
