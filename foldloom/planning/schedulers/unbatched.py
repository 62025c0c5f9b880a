"""Every node a step of its own, in recording order: the schedule that batches nothing, to compare the others with."""

from __future__ import annotations

import numpy as np

from foldloom.graph import Graph, Ints
from foldloom.planning.schedulers.base import UNSCHEDULED, Scheduler


class OneByOne(Scheduler):
    """Every node is a step of its own: nothing is batched, to compare the others with.

    >>> import torch, foldloom as fl
    >>> recordings = fl.record_each(lambda x: x.exp(), [torch.ones(2), torch.zeros(2)])
    >>> fl.plan(recordings, fl.OneByOne()).statistics().steps
    2
    """

    def step_of_node(self, graph: Graph) -> Ints:
        computes = graph.depth_of_node > 0
        return np.where(computes, np.cumsum(computes) - 1, UNSCHEDULED)
