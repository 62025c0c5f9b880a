"""From whatever somebody wants to see to a survey of it.

A function is called on its examples, recorded as always, and stopped where the engine would begin to run what nobody waits for. Where it
asks for values on the way, the parts that these take are run, because what it does next depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foldloom.errors import ArgumentError
from foldloom.execution import Buffers, Kernel
from foldloom.execution.engine import Planned
from foldloom.execution.observer import Underway, observed_by
from foldloom.graph import Graph, Ints, Op
from foldloom.graph.recording import Recording, merge_recordings
from foldloom.planning.plans import Plan
from foldloom.planning.schedulers import ByAgenda, ByDepth, Scheduler
from foldloom.tracing import Batched, batch
from foldloom.tracing.flushing.kernels import is_function
from foldloom.tracing.functions.calls import function_named
from foldloom.tracing.looking import looking_at
from foldloom.tracing.rules.fallback import NOT_BY_VMAP
from foldloom.views.places import NotedNodes, PartsObserver
from foldloom.views.survey import Part, Survey, survey_of_parts, survey_of_plan


def survey_of(target: Any, columns: Sequence[Any], scheduler: Scheduler | None) -> Survey:
    """``target`` is a function or module of one example, a `Batched`, a compiled block, a plan, a graph, or recordings."""
    if columns:
        return _survey_of_call(target, columns, scheduler)
    if isinstance(target, Planned):
        target = target.plan
    if isinstance(target, Plan):
        if scheduler is not None:
            raise ArgumentError("a plan is scheduled already: give its recordings to see another scheduler at work")
        return survey_of_plan(target)
    return survey_of_parts([Part(_graph_of(target))], _compared(scheduler or ByAgenda()))


def _graph_of(target: Any) -> Graph:
    if isinstance(target, Graph):
        return target
    if isinstance(target, Recording):
        return target.graph
    if isinstance(target, Sequence) and target and all(isinstance(item, Recording) for item in target):
        return merge_recordings(target).graph
    raise ArgumentError(
        f"nothing is known of what {target!r:.60} does without examples: write fl.explain(function, examples), or give a plan, a graph "
        "or recordings"
    )


def _compared(chosen: Scheduler) -> list[Scheduler]:
    """The scheduler that was asked for, and those that everybody wonders about."""
    others = [other for other in (ByDepth(), ByAgenda()) if type(other) is not type(chosen)]
    return [chosen, *others]


def _survey_of_call(target: Any, columns: Sequence[Any], scheduler: Scheduler | None) -> Survey:
    asker = _Asker()
    with looking_at(getattr(target, "function", target)), observed_by(asker):
        try:
            _callable(target, scheduler)(*columns)
        except _SeenEnoughError:
            pass  # raised by the asker itself, once all is recorded
        else:
            raise ArgumentError(f"there are no examples to see {target!r:.60} at work on: give at least one")
    return survey_of_parts(asker.parts, _compared(asker.scheduler))


def _callable(target: Any, scheduler: Scheduler | None) -> Callable[..., Any]:
    # Who has a compiled block has imported blocks; nobody else needs them.
    from foldloom.blocks import Model

    if not isinstance(target, (Batched, Model)):
        return batch(target, scheduler=scheduler)
    if scheduler is None:
        return target
    if isinstance(target, Batched):
        return batch(target.function, scheduler=scheduler, cells=[cell.function for cell in target.cells])
    raise ArgumentError("a compiled block has its scheduler: write fb.compile(block, scheduler=...)")


def ops_without_rule(ops: Sequence[Op]) -> dict[Op, str]:
    """The ops that are known to run member by member, and why."""
    functions = [(op, function_named(op.key)) for op in ops if not op.is_input and is_function(op)]
    return {op: NOT_BY_VMAP[function] for op, function in functions if function in NOT_BY_VMAP}


class _SeenEnoughError(Exception):
    """Everything is recorded and nobody waits for values."""


class _Asker(PartsObserver):
    """Keeps the parts of one batch, and stops it before what nobody waits for runs."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Part] = []

    def nodes_of(self, underway: Underway) -> list[int]:
        return NotedNodes(underway)

    def plans(self, recording: Recording, scheduler: Scheduler, earlier: Ints | None) -> None:
        self.parts.append(self.part_of(recording, scheduler, earlier)[0])
        if recording.results:
            raise _SeenEnoughError

    def planned(self, planned: Planned) -> None:
        """A part that somebody waits for: it runs."""

    def runs(
        self, planned: Planned, kernels: Sequence[Kernel | None], buffers: Buffers
    ) -> tuple[Sequence[Kernel | None], Buffers]:
        return kernels, buffers

    def ran(self, planned: Planned) -> None:
        """The next part goes on from here."""
