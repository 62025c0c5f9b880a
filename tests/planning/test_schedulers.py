"""Schedules, with no tensor in sight: step counts, and whole plans as text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foldloom.errors import PlanError
from foldloom.graph import Graph, Op, merge
from foldloom.planning.placement import place
from foldloom.planning.schedulers import ByAgenda, ByDepth, OneByOne, Scheduler
from foldloom.planning.schedulers.base import check_schedule
from tests.graph.sketches import INPUT, LEAF, MERGE, SCORE, VECTOR, WORD, Sketch, balanced, chain

TWIN = Op("twin", (VECTOR, WORD), (VECTOR, VECTOR), label="twin")
GOLDEN = Path(__file__).parent / "golden"


def steps(scheduler: Scheduler, graph: Graph) -> int:
    schedule = scheduler.schedule(graph)
    check_schedule(graph, schedule)
    plan = place(graph, schedule)
    plan.check()
    return len(plan.steps)


@pytest.mark.parametrize("scheduler", [ByDepth(), ByAgenda()])
def test_step_counts_of_trees(scheduler: Scheduler) -> None:
    assert steps(scheduler, balanced(5)) == 1 + 5
    assert steps(scheduler, chain(7)) == 1 + 7
    assert steps(scheduler, merge([balanced(3), chain(7), balanced(5)])) == 1 + 7


def test_no_step_is_larger_than_the_largest() -> None:
    graph = merge([balanced(3), balanced(3), chain(2)])
    plan = place(graph, ByDepth(largest_step=4).schedule(graph))
    plan.check()
    # 19 leaves, then 9, 5 and 2 merges, in pieces of equal size.
    assert [step.size for step in plan.steps] == [4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2]
    assert repr(ByDepth(largest_step=4)) == "ByDepth(largest_step=4)"
    assert repr(ByDepth()) == "ByDepth()"
    with pytest.raises(PlanError, match="largest_step=0 cannot be"):
        ByDepth(largest_step=0)


def test_one_by_one_batches_nothing() -> None:
    graph = merge([balanced(2), chain(3)])
    assert steps(OneByOne(), graph) == graph.node_count == 7 + 7


def test_agenda_meets_what_depth_keeps_apart() -> None:
    """A twin needs a deep vector in one example and a shallow one in another: by depth they run apart."""
    graphs = []
    for length in (1, 4):
        sketch = Sketch()
        state = sketch.leaf()
        for _ in range(length):
            state = sketch.add(SCORE, state)
        graphs.append(sketch.done(sketch.add(TWIN, state, sketch.add(INPUT))))
    graph = merge(graphs)
    assert steps(ByDepth(), graph) == 1 + 4 + 2
    assert steps(ByAgenda(), graph) == 1 + 4 + 1


def test_sequences_of_different_lengths_are_read_in_place() -> None:
    graphs = [chain(length) for length in (3, 9, 5, 1, 7)]
    plan = place(merge(graphs), ByDepth().schedule(merge(graphs)))
    statistics = plan.statistics()
    assert statistics.nodes == sum(2 * length + 1 for length in (3, 9, 5, 1, 7))
    # Only the words, which every step takes from another place of the sentence, are gathered.
    assert statistics.rows_in_place >= statistics.nodes - statistics.rows_copied
    states = [read for step in plan.steps[2:] for read in step.reads[:1]]
    assert all(read.access.value == "slice" for read in states)


@pytest.mark.parametrize("scheduler", [ByDepth(), ByAgenda(), OneByOne()])
def test_empty_graph(scheduler: Scheduler) -> None:
    graph = Sketch().done()
    assert steps(scheduler, graph) == 0
    assert place(graph, scheduler.schedule(graph)).statistics().mean_batch == 0


@pytest.mark.parametrize(
    ("name", "graph", "scheduler"),
    [
        ("balanced-by-depth", balanced(2), ByDepth()),
        ("mixed-by-depth", merge([chain(2, scored=True), balanced(1)]), ByDepth()),
        ("mixed-by-agenda", merge([chain(2, scored=True), balanced(1)]), ByAgenda()),
    ],
)
def test_golden_plans(name: str, graph: Graph, scheduler: Scheduler) -> None:
    text = str(place(graph, scheduler.schedule(graph))) + "\n"
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} did not exist; it has been written: read it, then run again")
    assert text == path.read_text()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of one to four examples."""
    examples = []
    for _ in range(draw(st.integers(1, 4))):
        sketch = Sketch()
        words, vectors = [sketch.add(INPUT)], [sketch.leaf()]
        for kind, left, right in draw(
            st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20), st.integers(0, 20)), max_size=15)
        ):
            a, b, word = vectors[left % len(vectors)], vectors[right % len(vectors)], words[right % len(words)]
            if kind == 0:
                words.append(sketch.add(INPUT))
            elif kind == 1:
                vectors.append(sketch.add(LEAF, word))
            elif kind == 2:
                vectors.append(sketch.add(MERGE, a, b))
            elif kind == 3:
                vectors.append(sketch.add(SCORE, a))
            else:
                first = sketch.add(TWIN, a, word)
                vectors += [first, first + 1]
        examples.append(sketch.done(*draw(st.lists(st.sampled_from(vectors), max_size=4))))
    return merge(examples)


@given(graphs())
def test_every_schedule_holds_and_every_plan_is_well_formed(graph: Graph) -> None:
    for scheduler in (ByDepth(), ByAgenda(), OneByOne(), ByDepth(largest_step=2), ByAgenda(largest_step=3)):
        schedule = scheduler.schedule(graph)
        check_schedule(graph, schedule)
        assert np.array_equal(schedule, scheduler.schedule(graph))
        plan = place(graph, schedule)
        plan.check()
        assert sum(step.size for step in plan.steps) == graph.node_count
        rows = [plan.rows_of(read).reshape(read.slots, -1) for step in plan.steps for read in step.reads]
        assert sum(len(slots) * slots.shape[1] for slots in rows) == len(graph.operands)


def test_schedules_that_do_not_hold() -> None:
    graph = merge([balanced(1), chain(1)])
    schedule = ByDepth().schedule(graph)
    late = np.where(schedule == 0, 5, schedule)
    with pytest.raises(PlanError, match=r"node \d+ is scheduled in step 1, no later than a value it reads"):
        check_schedule(graph, late)
    with pytest.raises(PlanError, match="to every node that computes and to no input"):
        check_schedule(graph, np.zeros_like(schedule))
    both = merge([chain(1, scored=True)])
    with pytest.raises(PlanError, match="two different ops"):
        check_schedule(both, np.where(both.depth_of_node == 2, 1, ByDepth().schedule(both)))
