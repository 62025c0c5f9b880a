"""What a batch consists of, and how schedulers would run it: all that the views draw.

A `Survey` joins the parts of a batch: values that a later part takes from an earlier one lead back to the nodes that made them.
Reads graphs and plans and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foldloom.caching import cached_property
from foldloom.graph import Graph, Ints, Op, Type, concatenate, starts_of
from foldloom.planning.placement import Placed, place
from foldloom.planning.plans import Access, Plan, Step
from foldloom.planning.schedulers import Scheduler


class Place(NamedTuple):
    """A line of the user's code, and the function it stands in."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + ("" if self.function.startswith("<") else f" in {self.function}")


@dataclass(frozen=True)
class Part:
    """A graph that ran, or would run, as one plan; ``earlier`` are the numbers, over all parts, of the values that it takes from
    parts before it. ``demand`` is where the value was asked for that ended it."""

    graph: Graph
    earlier: Ints | None = None
    examples: Sequence[int] | None = None
    places: Sequence[Place | None] | None = None
    demand: Place | None = None

    @property
    def earlier_count(self) -> int:
        return 0 if self.earlier is None else len(self.earlier)


class StepView(NamedTuple):
    """A step among those of all parts; ``op`` is a number in the survey."""

    op: int
    size: int
    part: int
    rows_copied: int
    rows_in_place: int
    bytes_copied: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """How one scheduler runs everything: ``step_of_node`` is -1 for what was given."""

    name: str
    step_of_node: Ints
    steps: tuple[StepView, ...]

    @property
    def node_count(self) -> int:
        return sum(step.size for step in self.steps)

    @property
    def mean_batch(self) -> float:
        return self.node_count / len(self.steps) if self.steps else 0.0

    @property
    def largest_batch(self) -> int:
        return max((step.size for step in self.steps), default=0)

    @property
    def rows_copied(self) -> int:
        return sum(step.rows_copied for step in self.steps)

    @property
    def rows_in_place(self) -> int:
        return sum(step.rows_in_place for step in self.steps)

    @property
    def bytes_copied(self) -> int:
        return sum(step.bytes_copied for step in self.steps)


@dataclass(frozen=True, eq=False)
class Survey:
    """All nodes of all parts in recording order. ``operands`` are the nodes that each node reads, ``arity_of_node`` of them; ``places``
    has a place for each node, or is empty."""

    ops: tuple[Op, ...]
    op_of_node: Ints
    example_of_node: Ints
    part_of_node: Ints
    depth_of_node: Ints
    operands: Ints
    arity_of_node: Ints
    places: tuple[Place | None, ...]
    demands: tuple[Place | None, ...]
    schedules: tuple[Schedule, ...]

    @property
    def example_count(self) -> int:
        return int(self.example_of_node.max(initial=-1)) + 1

    @property
    def part_count(self) -> int:
        return len(self.demands)

    @property
    def chosen(self) -> Schedule:
        """The schedule that was asked for."""
        return self.schedules[0]

    @cached_property
    def first_operand_of_node(self) -> Ints:
        return starts_of(self.arity_of_node)

    @cached_property
    def places_of_op(self) -> dict[int, list[Place]]:
        """Where the nodes of each op were asked for, in recording order."""
        found: dict[int, dict[Place, None]] = {}
        for op, place_of_node in zip(self.op_of_node.tolist(), self.places, strict=False):
            if place_of_node is not None:
                found.setdefault(op, {})[place_of_node] = None
        return {op: list(places) for op, places in found.items()}


def survey_of_parts(parts: Sequence[Part], schedulers: Sequence[Scheduler]) -> Survey:
    """The first scheduler is the one that was asked for."""
    number_of_op: dict[Op, int] = {}
    renumbered = [
        np.array([number_of_op.setdefault(op, len(number_of_op)) for op in p.graph.ops], np.int64) for p in parts
    ]
    new = [slice(part.earlier_count, None) for part in parts]
    per_part = list(zip(parts, new, strict=True))
    return Survey(
        ops=tuple(number_of_op),
        op_of_node=concatenate([n[p.graph.op_of_node[s]] for n, (p, s) in zip(renumbered, per_part, strict=True)]),
        example_of_node=concatenate([_examples_of(part) for part in parts]),
        part_of_node=np.repeat(np.arange(len(parts)), [len(p.graph.op_of_node[s]) for p, s in per_part]),
        depth_of_node=concatenate([p.graph.depth_of_node[s] for p, s in per_part]),
        operands=_joined_operands(parts),
        arity_of_node=concatenate([p.graph.arity_of_node[s] for p, s in per_part]),
        places=tuple([place for part in parts for place in part.places or ()]),
        demands=tuple([part.demand for part in parts]),
        schedules=tuple([_schedule(parts, renumbered, scheduler) for scheduler in schedulers]),
    )


def _examples_of(part: Part) -> Ints:
    if part.examples is not None:
        return np.array(part.examples, np.int64)
    return part.graph.example_of_node[part.earlier_count :]


def _joined_operands(parts: Sequence[Part]) -> Ints:
    """The operands of all parts, as nodes among those of all parts."""
    node_of_value: list[Ints] = []
    operands: list[Ints] = []
    first_node = first_value = 0
    for part in parts:
        graph, count = part.graph, part.earlier_count
        node_of_value.append(graph.node_of_value[count:] - count + first_node)
        values = graph.operands - count + first_value
        if part.earlier is not None:
            is_earlier = graph.operands < count
            values[is_earlier] = part.earlier[graph.operands[is_earlier]]
        operands.append(values)
        first_node += len(graph.op_of_node) - count
        first_value += graph.value_count - count
    return concatenate(node_of_value)[concatenate(operands)]


def _schedule(parts: Sequence[Part], renumbered: Sequence[Ints], scheduler: Scheduler) -> Schedule:
    placed = Placed() if len(parts) > 1 or parts[0].earlier is not None else None
    columns: list[Ints] = []
    steps: list[StepView] = []
    for number, (part, op_numbers) in enumerate(zip(parts, renumbered, strict=True)):
        step_of_node = scheduler.schedule(part.graph)
        plan = place(part.graph, step_of_node, placed, part.earlier)
        own = step_of_node[part.earlier_count :]
        columns.append(np.where(own < 0, -1, own + len(steps)))
        steps += [view_of_step(plan, step, number, int(op_numbers[step.op])) for step in plan.steps]
    return Schedule(name_of_scheduler(scheduler), concatenate(columns), tuple(steps))


def name_of_scheduler(scheduler: Scheduler) -> str:
    """``ByDepth`` as people say it."""
    name = type(scheduler).__name__
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


def view_of_step(plan: Plan, step: Step, part: int, op: int) -> StepView:
    copied = [(read.size * read.slots, read.arena) for read in step.reads if read.access is Access.GATHER]
    rows = sum(read.size * read.slots for read in step.reads)
    rows_copied = sum(count for count, _ in copied)
    return StepView(
        op=op,
        size=step.size,
        part=part,
        rows_copied=rows_copied,
        rows_in_place=rows - rows_copied,
        bytes_copied=sum(count * bytes_of(plan.arenas[arena].type) for count, arena in copied),
    )


_BITS = ("128", "64", "32", "16", "8")


def bytes_of(type: Type) -> int:
    """What one value of a type takes."""
    size = next((int(bits) // 8 for bits in _BITS if type.dtype.endswith(bits)), 1)
    return size * int(np.prod(type.shape, dtype=np.int64))


# ---- From a plan alone.


def survey_of_plan(plan: Plan, name: str = "as planned") -> Survey:
    """A plan knows who reads whose rows. What was given is left out: a plan does not tell one of them from another."""
    by_number = np.argsort(plan.nodes, kind="stable")
    position = np.empty(len(plan.nodes), np.int64)
    position[by_number] = np.arange(len(plan.nodes))
    step_in_order = np.repeat(np.arange(len(plan.steps)), [step.size for step in plan.steps])
    op_in_order = np.array([step.op for step in plan.steps], np.int64)[step_in_order] if plan.steps else step_in_order
    ends = np.cumsum(plan.nodes_of_example)
    operands = [_operands_of_step(plan, step, writers) for step, writers in _writers_by_step(plan, position)]
    of_node: list[list[int]] = [[] for _ in range(len(plan.nodes))]
    for step, members in zip(plan.steps, operands, strict=True):
        for member, sources in enumerate(members, step.first):
            of_node[position[member]] = sources
    step_of_node = step_in_order[by_number]
    steps = tuple([view_of_step(plan, step, 0, step.op) for step in plan.steps])
    return Survey(
        ops=plan.ops,
        op_of_node=op_in_order[by_number],
        example_of_node=np.searchsorted(ends, plan.nodes[by_number], side="right"),
        part_of_node=np.zeros(len(plan.nodes), np.int64),
        depth_of_node=_depths(of_node, step_of_node),
        operands=np.array([source for sources in of_node for source in sources], np.int64),
        arity_of_node=np.array([len(sources) for sources in of_node], np.int64),
        places=(),
        demands=(None,),
        schedules=(Schedule(name, step_of_node, steps),),
    )


def _writers_by_step(plan: Plan, position: Ints) -> Iterator[tuple[Step, list[Ints]]]:
    """Each step with the node that wrote each row of each arena before it ran; -1 where it was given."""
    writers = [np.full(arena.rows, -1, np.int64) for arena in plan.arenas]
    for step in plan.steps:
        yield step, writers
        members = position[step.first : step.first + step.size]
        lengths = next((plan.lengths_of(read, step.size) for read in step.reads if read.lengths >= 0), None)
        for write in step.writes:
            # The rows of a ragged output are as many as those of the operand that it was made of.
            rows = members if write.size == step.size or lengths is None else np.repeat(members, lengths)
            writers[write.arena][write.start : write.start + write.size] = rows


def _operands_of_step(plan: Plan, step: Step, writers: Sequence[Ints]) -> list[list[int]]:
    sources: list[list[int]] = [[] for _ in range(step.size)]
    for read in step.reads:
        for rows in plan.rows_of(read).reshape(read.slots, read.size):
            counts = [1] * step.size if read.lengths < 0 else plan.lengths_of(read, step.size).tolist()
            written = iter(writers[read.arena][rows].tolist())
            for member, count in enumerate(counts):
                sources[member] += [node for node in (next(written) for _ in range(count)) if node >= 0]
    return sources


def _depths(operands: Sequence[Sequence[int]], step_of_node: Ints) -> Ints:
    depths = np.zeros(len(operands), np.int64)
    for node in np.argsort(step_of_node, kind="stable").tolist():
        depths[node] = 1 + max((int(depths[source]) for source in operands[node]), default=0)
    return depths
