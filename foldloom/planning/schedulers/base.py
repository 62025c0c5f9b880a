"""What schedulers share. One more is a subclass of `Scheduler`, in a file beside this one: see docs/extending.md."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from foldloom.errors import PlanError
from foldloom.graph import Graph, Ints, starts_of

UNSCHEDULED = -1
"""The step of an input: it is placed, not run."""


LARGEST_STEP = 1024
"""On a CPU, what a step of more members than this computes on the way no longer fits the caches: splitting it made a training
step of a Tree-LSTM (hidden 150, batch 256) 5 % faster, forward and backward, and smaller pieces cost more than
they gain (`python -m benchmarks step-size`). A GPU has no such limit: give it ``largest_step=None``."""


class Scheduler(ABC):
    """A schedule is one array: the step of every node, numbered in the order in which the steps run.

    It holds when the nodes of a step share one op and every node runs after the nodes it reads. Schedulers keep nothing
    from one graph to the next: the same graph gets the same schedule.

    >>> import numpy as np, torch, foldloom as fl
    >>> class InTurn(fl.Scheduler):  # every node is a step of its own
    ...     def step_of_node(self, graph):
    ...         computes = graph.depth_of_node > 0  # inputs, of depth 0, are in no step: -1
    ...         return np.where(computes, computes.cumsum() - 1, -1)
    >>> fl.batch(lambda x: x * 2, scheduler=InTurn())([torch.ones(()), torch.zeros(())])
    [tensor(2.), tensor(0.)]
    """

    def __init__(self, *, largest_step: int | None = LARGEST_STEP) -> None:
        if largest_step is not None and largest_step < 1:
            raise PlanError(
                f"a step has at least one member, so largest_step={largest_step} cannot be; None sets no limit"
            )
        self.largest_step = largest_step

    def schedule(self, graph: Graph) -> Ints:
        """The step of each node, UNSCHEDULED for inputs; no step is larger than the largest."""
        step_of_node = self.step_of_node(graph)
        return step_of_node if self.largest_step is None else _in_pieces(step_of_node, self.largest_step)

    @abstractmethod
    def step_of_node(self, graph: Graph) -> Ints:
        """The same, with steps of any size."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({'' if self.largest_step == LARGEST_STEP else f'largest_step={self.largest_step}'})"
        )


def _in_pieces(step_of_node: Ints, largest: int) -> Ints:
    """Split steps that are too large into pieces of about equal size, which run one after the other."""
    if len(step_of_node) <= largest:
        return step_of_node
    scheduled = np.flatnonzero(step_of_node != UNSCHEDULED)
    steps = step_of_node[scheduled]
    if steps.max(initial=-1) >= len(steps):
        steps = np.unique(steps, return_inverse=True)[1]  # steps may have any numbers
    sizes = np.bincount(steps)
    pieces = -(-sizes // largest)
    if not len(sizes) or pieces.max() == 1:
        return step_of_node
    piece_size = -(-sizes // np.maximum(pieces, 1))
    by_step = steps.argsort(kind="stable")
    rank = np.arange(len(steps)) - np.repeat(starts_of(sizes), sizes)
    result = np.full_like(step_of_node, UNSCHEDULED)
    result[scheduled[by_step]] = np.repeat(starts_of(pieces), sizes) + rank // piece_size.repeat(sizes)
    return result


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
