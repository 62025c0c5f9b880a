"""What is planned in C is, to the last number, what numpy says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foldloom as fl
from examples.transition_parser import TransitionParser, made_examples
from foldloom.errors import PlanError
from foldloom.graph import ANY, CONSTANT, Graph, Op, Type, merge
from foldloom.planning import layout, native
from foldloom.planning.placement import place
from foldloom.planning.plans import Plan
from foldloom.planning.schedulers import ByAgenda, ByDepth, Scheduler, by_agenda, by_depth
from foldloom.tracing.flushing import pending
from tests.graph.sketches import balanced, chain
from tests.law import assert_same
from tests.law.on_the_fly import without_tensors
from tests.law.test_random_functions import Library, instructions, run_program
from tests.tracing.flushing.test_pending import plans_of_parts

pytestmark = pytest.mark.skipif(
    native.planning is None, reason="C is off (FOLDLOOM_NO_C=1), or there was no compiler where Foldloom was installed"
)

VECTOR, WORD = Type((2,), "float32"), Type((), "int64")
ROWS = Type((ANY, 2), "float32")
GIVEN, GIVEN_ROWS = Op(CONSTANT, (), (WORD,)), Op(CONSTANT, (), (ROWS,))
LEAF = Op("leaf", (WORD,), (VECTOR,))
MERGE = Op("merge", (VECTOR, VECTOR), (VECTOR,))
TWIN = Op("twin", (VECTOR, WORD), (VECTOR, WORD))
SUM = Op("sum", (ROWS,), (VECTOR,))
TURN = Op("turn", (ROWS, VECTOR), (ROWS,))
BOTH = Op("both", (ROWS, WORD, ROWS), (WORD, ROWS, VECTOR))


@contextmanager
def without_the_compiled_part() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (layout, pending, by_agenda, by_depth):
            patch.setattr(module, "planning", None)
        yield


@st.composite
def graphs(draw: st.DrawFn, with_rows: bool) -> Graph:
    """One example: nodes that use any of the values before them, rows of any number from anywhere."""
    ops = [GIVEN, LEAF, MERGE, TWIN] + ([GIVEN_ROWS, SUM, TURN, BOTH] if with_rows else [])
    used: list[Op] = []
    nodes: list[int] = []
    operands: list[int] = []
    lengths: list[int] = []
    depths: list[int] = []
    depth_of_value: list[int] = []
    values: dict[Type, list[int]] = {VECTOR: [], WORD: []}
    for op in draw(st.lists(st.sampled_from(ops), min_size=1, max_size=30)):
        if any(not type.ragged and not values[type] for type in op.inputs):
            continue
        taken: list[int] = []
        for type in op.inputs:
            known = values[type.row]
            count = draw(st.integers(0, 3)) if type.ragged and known else int(not type.ragged)
            taken += [draw(st.sampled_from(known)) for _ in range(count)]
            lengths += [count] * type.ragged
        if op not in used:
            used.append(op)
        nodes.append(used.index(op))
        operands += taken
        depths.append(0 if op.is_input else 1 + max([depth_of_value[value] for value in taken], default=0))
        for type in op.outputs:
            count = draw(st.integers(0, 3)) if type.ragged else 1
            lengths += [count] * type.ragged
            values[type.row] += range(len(depth_of_value), len(depth_of_value) + count)
            depth_of_value += [depths[-1]] * count
    total = len(depth_of_value)
    outputs = draw(st.lists(st.integers(0, total - 1), max_size=5)) if total else []
    op_of_node, operands_of, depth_of_node = (np.array(column, np.int64) for column in (nodes, operands, depths))
    return Graph(
        tuple(used),
        op_of_node,
        operands_of,
        depth_of_node,
        np.array([len(nodes)]),
        np.array(outputs, np.int64),
        total,
        np.array(lengths, np.int64),
    )


def assert_same_plan(one: Plan, other: Plan) -> None:
    for field in dataclasses.fields(Plan):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            np.testing.assert_array_equal(a, b, err_msg=field.name)
        else:
            assert a == b, field.name
            assert type(a) is type(b)
    # What a named tuple holds is a matter of its type, too.
    assert repr(one.steps) == repr(other.steps)


@given(st.booleans().flatmap(lambda with_rows: st.lists(graphs(with_rows), min_size=1, max_size=4)), st.booleans())
def test_of_any_graph(examples: list[Graph], agenda: bool) -> None:
    graph = merge(examples)
    scheduler = ByAgenda(largest_step=3) if agenda else ByDepth()
    schedule = scheduler.schedule(graph)
    plan = place(graph, schedule)
    plan.check()
    with without_the_compiled_part():
        np.testing.assert_array_equal(schedule, scheduler.schedule(graph))
        assert_same_plan(plan, place(graph, schedule))


def check_parts(function: Callable[..., Any], *columns: Sequence[Any], scheduler: Scheduler) -> int:
    """How many parts there are."""
    # The second batch would have more automatic cells, and know which numbers vary.
    first, second = (fl.batch(function, scheduler=scheduler, automatic_cells=False) for _ in range(2))
    with plans_of_parts() as in_c:
        expected = first(*columns)
    with plans_of_parts() as in_python, without_the_compiled_part():
        results = second(*columns)
    assert without_tensors(results) == without_tensors(expected)
    assert_same(results, expected)
    assert len(in_c) == len(in_python)
    for plan, other in zip(in_c, in_python, strict=True):
        assert_same_plan(plan, other)
    return len(in_c)


@pytest.mark.parametrize("scheduler", [ByDepth(), ByAgenda()], ids=repr)
def test_of_a_batch_in_parts(scheduler: Scheduler) -> None:
    torch.manual_seed(0)
    assert check_parts(TransitionParser().predict, made_examples(6, seed=1), scheduler=scheduler) > 3


@given(programs=st.lists(instructions, min_size=1, max_size=4))
def test_of_the_parts_of_any_program(programs: list[list[list[int]]]) -> None:
    torch.manual_seed(0)
    library = Library()

    def function(words: torch.Tensor, vector: torch.Tensor, program: list[list[int]]) -> Any:
        return run_program(library, library.calls + library.branches * 4, words, vector, program)

    words = [torch.randint(0, 7, (1 + number % 4,)) for number in range(len(programs))]
    vectors = [torch.randn(3, dtype=torch.float64) for _ in programs]
    check_parts(function, words, vectors, programs, scheduler=ByDepth())


@pytest.mark.parametrize("in_c", [True, False])
def test_of_schedules_that_users_make(in_c: bool) -> None:
    """Steps may have any numbers, in any array; but a step is of one op."""
    graph = merge([chain(3), balanced(2)])
    schedule = ByDepth().schedule(graph)
    plan = place(graph, schedule)
    with nullcontext() if in_c else without_the_compiled_part():
        sparse = np.where(schedule < 0, -1, 1000 * schedule)
        for same in (sparse, schedule.astype(np.int32), np.repeat(schedule, 2)[::2]):
            assert_same_plan(place(graph, same), plan)  # type: ignore[arg-type]
        with pytest.raises(PlanError, match="two different ops"):
            place(graph, np.where(schedule < 0, -1, 0))


def test_a_graph_with_wrong_numbers_is_refused() -> None:
    """One that was read from a file may hold anything."""
    graph = Graph(
        ops=(GIVEN, LEAF),
        op_of_node=np.array([0, 1]),
        operands=np.array([0]),
        depth_of_node=np.array([0, 1]),
        nodes_of_example=np.array([2]),
        outputs=np.array([1]),
        value_count=2,
    )
    schedule = ByAgenda().schedule(graph)
    place(graph, schedule)
    for wrong in (
        {"op_of_node": np.array([0, 2])},
        {"op_of_node": np.array([-1, 1])},
        {"operands": np.array([2])},
        {"operands": np.array([], np.int64)},
        {"operands": np.array([0, 0])},
        {"outputs": np.array([-1])},
        {"nodes_of_example": np.array([3])},
    ):
        with pytest.raises(IndexError):
            place(dataclasses.replace(graph, **wrong), schedule)
    for wrong in ({"op_of_node": np.array([0, 2])}, {"operands": np.array([9])}, {"depth_of_node": np.array([0])}):
        with pytest.raises(IndexError):
            ByAgenda().schedule(dataclasses.replace(graph, **wrong))
    for wrong in (
        {"op_of_node": np.array([0, 2])},
        {"depth_of_node": np.array([0])},
        {"depth_of_node": np.array([0, -1])},
    ):
        with pytest.raises(IndexError):
            ByDepth().schedule(dataclasses.replace(graph, **wrong))
    with pytest.raises(IndexError, match="step -2"):
        place(graph, np.array([-2, 0]))
    long = dataclasses.replace(graph, ops=(Op(CONSTANT, (), (ROWS,)), SUM), lengths=np.array([2**62, 1]))
    with pytest.raises(IndexError, match="length"):
        place(long, schedule)
    ragged = dataclasses.replace(graph, ops=(GIVEN, Op("sum", (Type((ANY,), "int64"),), (VECTOR,))))
    with pytest.raises(IndexError, match="fewer lengths"):
        place(ragged, schedule)
    with pytest.raises(TypeError, match="eight bytes"):
        place(dataclasses.replace(graph, operands=np.array([0], np.int32)), schedule)
