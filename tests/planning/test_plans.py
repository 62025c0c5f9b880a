"""Plan.check() finds every way in which a plan can be wrong."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from foldloom.errors import PlanError
from foldloom.graph import merge
from foldloom.planning.placement import place
from foldloom.planning.plans import Access, Plan, Read, Step
from foldloom.planning.schedulers import ByDepth
from tests.graph.sketches import balanced, chain


@pytest.fixture
def plan() -> Plan:
    graph = merge([chain(2), balanced(2)])
    plan = place(graph, ByDepth().schedule(graph))
    plan.check()
    return plan


def with_step(plan: Plan, number: int, step: Step) -> Plan:
    return dataclasses.replace(plan, steps=(*plan.steps[:number], step, *plan.steps[number + 1 :]))


def test_reading_before_writing(plan: Plan) -> None:
    early = dataclasses.replace(plan, steps=(plan.steps[1], plan.steps[0], *plan.steps[2:]))
    with pytest.raises(PlanError, match=r"step 0 \(merge\) reads rows of arena 1 before they are written"):
        early.check()


def test_writing_twice(plan: Plan) -> None:
    step = plan.steps[1]
    again = step._replace(writes=(step.writes[0]._replace(start=0),))
    with pytest.raises(PlanError, match=r"step 1 \(merge\) writes arena 1 out of order"):
        with_step(plan, 1, again).check()


def test_writing_past_the_end(plan: Plan) -> None:
    step = plan.steps[-1]
    far = step._replace(writes=(step.writes[0]._replace(start=10**6),))
    with pytest.raises(PlanError, match="past the end of arena 1"):
        with_step(plan, len(plan.steps) - 1, far).check()


def test_a_row_that_is_never_written(plan: Plan) -> None:
    larger = plan.arenas[1]._replace(rows=plan.arenas[1].rows + 1)
    with pytest.raises(PlanError, match=r"row \d+ of arena 1 is never written"):
        dataclasses.replace(plan, arenas=(plan.arenas[0], larger)).check()


def test_wrong_type(plan: Plan) -> None:
    step = plan.steps[0]
    with pytest.raises(PlanError, match=r"writes float32\[2\] into an arena of int64\[\]"):
        with_step(plan, 0, step._replace(writes=(step.writes[0]._replace(arena=0),))).check()
    with pytest.raises(PlanError, match=r"reads float32\[2\] for operand 0, which takes int64\[\]"):
        with_step(plan, 0, step._replace(reads=(Read(1, Access.SLICE, 0, step.size),))).check()


def test_wrong_number_of_rows(plan: Plan) -> None:
    step = plan.steps[0]
    with pytest.raises(PlanError, match="members and reads 2 rows for operand 0"):
        with_step(plan, 0, step._replace(reads=(Read(0, Access.SLICE, 0, 2),))).check()
    with pytest.raises(PlanError, match="members and writes 1 rows"):
        with_step(plan, 0, step._replace(writes=(step.writes[0]._replace(size=1),))).check()


def test_wrong_number_of_operands(plan: Plan) -> None:
    step = plan.steps[1]
    with pytest.raises(PlanError, match="operands where its op takes 2"):
        with_step(plan, 1, step._replace(reads=step.reads * 2)).check()
    with pytest.raises(PlanError, match="writes 0 blocks for 1 outputs"):
        with_step(plan, 1, step._replace(writes=())).check()
    with pytest.raises(PlanError, match="places 0 inputs for 1 input ops"):
        dataclasses.replace(plan, inputs=()).check()


def test_indices_out_of_range(plan: Plan) -> None:
    with pytest.raises(PlanError, match="reads outside arena 1"):
        dataclasses.replace(plan, indices=plan.indices + 1000).check()


def test_a_node_that_runs_twice(plan: Plan) -> None:
    with pytest.raises(PlanError, match="a node runs twice or not at all"):
        dataclasses.replace(plan, nodes=np.zeros_like(plan.nodes)).check()


def test_plans_pickle_and_hold_nothing_else(plan: Plan) -> None:
    copy = pickle.loads(pickle.dumps(plan))
    copy.check()
    assert str(copy) == str(plan)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.steps = ()  # type: ignore[misc]


def test_statistics(plan: Plan) -> None:
    statistics = plan.statistics()
    assert (statistics.nodes, statistics.steps, statistics.largest_batch) == (12, 3, 7)
    assert statistics.mean_batch == 4
    assert statistics.rows_copied + statistics.rows_in_place == sum(
        read.size * read.slots for step in plan.steps for read in step.reads
    )
    assert str(statistics).startswith("12 nodes in 3 steps (mean batch 4.0, largest 7)")


def test_examples_of_members(plan: Plan) -> None:
    examples = plan.examples_of(plan.steps[0])
    assert sorted(examples.tolist()) == [0, 0, 0, 1, 1, 1, 1]
