from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from foldloom.errors import PlanError
from foldloom.graph import Graph, Ints

UNSCHEDULED = -1
"""The step of an input: it is placed, not run."""


class Scheduler(ABC):
    """A schedule is one array: the step of every node, numbered in the order in which the steps run.

    It holds when the nodes of a step share one op and every node runs after the nodes it reads. Schedulers have no
    state: the same graph gets the same schedule.
    """

    @abstractmethod
    def step_of_node(self, graph: Graph) -> Ints:
        """The step of each node; UNSCHEDULED for inputs."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def check_schedule(graph: Graph, step_of_node: Ints) -> None:
    """Raise a PlanError unless the schedule holds."""
    is_input = graph.depth_of_node == 0
    if not np.array_equal(step_of_node == UNSCHEDULED, is_input):
        raise PlanError("a schedule gives a step to every node that computes and to no input")
    reader = np.repeat(np.arange(len(step_of_node)), graph.arity_of_node)
    early = step_of_node[reader] <= step_of_node[graph.node_of_value[graph.operands]]
    if early.any():
        node = int(reader[np.argmax(early)])
        raise PlanError(f"node {node} is scheduled in step {int(step_of_node[node])}, no later than a value it reads")
    steps = step_of_node[~is_input]
    first_op = np.zeros(int(steps.max(initial=-1)) + 1, np.int64)
    first_op[steps] = graph.op_of_node[~is_input]
    if (first_op[steps] != graph.op_of_node[~is_input]).any():
        raise PlanError("a step holds nodes of two different ops")
