"""Schedules of users and plans from elsewhere are checked before they run."""

from __future__ import annotations

import dataclasses
import pickle
import random
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom import blocks as fb
from foldloom.errors import BlockInputError, PlanError
from foldloom.graph import Graph, Ints

INPUTS = [torch.tensor([1.0, 2.0]), torch.tensor([-3.0, 0.5])]


def program(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.tanh(x * 2) + x
    return x


class Shuffled(fl.Scheduler):
    """Each node is a step of its own, at a random time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def step_of_node(self, graph: Graph) -> Ints:
        computes = np.flatnonzero(graph.depth_of_node > 0)
        order = list(range(len(computes)))
        random.Random(self.seed).shuffle(order)
        steps = np.full(len(graph.op_of_node), -1)
        steps[computes] = order
        return steps


def test_schedules_that_break_dependencies_are_refused() -> None:
    for seed in range(50):
        # So many steps are in the right order once in a million times.
        with pytest.raises(PlanError, match=r"the schedule of Shuffled\(\) does not hold"):
            fl.batch(program, scheduler=Shuffled(seed), automatic_cells=False)(INPUTS)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        (lambda graph: np.zeros(3, np.int64), "not an integer for each of the"),
        (lambda graph: [0.5] * len(graph.op_of_node), "gives float64"),
        (lambda graph: np.zeros(len(graph.op_of_node), np.int64), "and -1 to every input"),
        (lambda graph: np.full(len(graph.op_of_node), -1), "must give a step to every node that computes"),
        (lambda graph: np.where(graph.depth_of_node > 0, 0, -1), "two different ops"),
    ],
)
def test_schedules_that_are_none(steps: Any, problem: str) -> None:
    class Odd(fl.Scheduler):
        def step_of_node(self, graph: Graph) -> Ints:
            return steps(graph)

    with pytest.raises(PlanError, match=problem):
        fl.batch(program, scheduler=Odd(), automatic_cells=False)(INPUTS)


def test_steps_of_a_user_may_have_any_numbers() -> None:
    class Sparse(fl.Scheduler):
        def step_of_node(self, graph: Graph) -> Ints:
            return np.where(graph.depth_of_node > 0, 10**12 + 10**9 * np.arange(len(graph.op_of_node)), -1)

    results = fl.batch(program, scheduler=Sparse(largest_step=2), automatic_cells=False)(INPUTS)
    torch.testing.assert_close(results, [program(x) for x in INPUTS])


def test_plans_that_were_pickled_are_checked() -> None:
    planned = fl.plan(fl.record_each(program, INPUTS))
    plan = planned.plan
    torch.testing.assert_close(fl.batch(program).run(pickle.loads(pickle.dumps(planned))), [program(x) for x in INPUTS])
    step = plan.steps[1]
    for wrong in (
        dataclasses.replace(plan, steps=plan.steps[::-1]),
        dataclasses.replace(plan, steps=plan.steps[:-1]),
        dataclasses.replace(plan, steps=(plan.steps[0], step._replace(op=-1), *plan.steps[2:])),
        dataclasses.replace(plan, steps=(plan.steps[0], step._replace(op=99), *plan.steps[2:])),
        dataclasses.replace(plan, arenas=()),
        dataclasses.replace(plan, nodes=plan.nodes[:1]),
        dataclasses.replace(plan, row_of_output=plan.row_of_output + 1000),
        dataclasses.replace(plan, row_of_output=plan.row_of_output - 1000),
        dataclasses.replace(plan, indices=plan.indices - 1, outputs=plan.outputs[:0]),
    ):
        with pytest.raises(PlanError):
            pickle.loads(pickle.dumps(dataclasses.replace(planned, plan=wrong)))
    for changed in (
        {"inputs": ()},
        {"inputs": tuple([column[:1] for column in planned.inputs])},
        {"inputs": tuple([tuple([tensor.double() for tensor in column]) for column in planned.inputs])},
        {"results": planned.results[:1]},
    ):
        with pytest.raises(PlanError):
            pickle.loads(pickle.dumps(dataclasses.replace(planned, **changed)))


def test_a_deep_example_in_a_message() -> None:
    """The recursion limit is raised while blocks run, and a `repr` that reaches it must not overflow the stack."""
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(BlockInputError, match=r"Scalar\(\) was given \{'a': "):
        fb.compile(fb.Scalar() >> fb.Function(torch.neg))([deep])
    with pytest.raises(BlockInputError, match="nested more deeply than Python can follow"):
        fb.compile(fb.InputTransform(lambda x: len(repr(x))) >> fb.Scalar() >> fb.Function(torch.neg)).one_example(deep)


def test_threads_leave_the_recursion_limit_as_it_was() -> None:
    model = fb.compile(fb.Map(fb.Scalar()) >> fb.Sum())
    before = sys.getrecursionlimit()
    threads = [threading.Thread(target=lambda: [model([[1, 2]] * 20) for _ in range(30)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sys.getrecursionlimit() == before
