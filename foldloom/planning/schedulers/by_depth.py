"""Batching by depth: nodes of one op at one depth run together (Looks et al. 2017, section 2).

The whole schedule is a few passes over all nodes, in C (`_planning.c`) or, where that was not compiled, array operations. Nodes
of one op at different depths never meet; where that matters (losses at every node, sequences of different lengths feeding one
op) by agenda needs fewer steps.
"""

from __future__ import annotations

import numpy as np

from foldloom.graph import Graph, Ints
from foldloom.planning.native import as_ints, planning
from foldloom.planning.schedulers.base import UNSCHEDULED, Scheduler


class ByDepth(Scheduler):
    """Equal calls of equal depth are one step: the fastest to make.

    >>> import torch, foldloom as fl
    >>> recordings = fl.record_each(lambda x: x.exp(), [torch.ones(2), torch.zeros(2)])
    >>> fl.plan(recordings, fl.ByDepth()).statistics().steps
    1
    """

    def step_of_node(self, graph: Graph) -> Ints:
        if planning is not None:
            return as_ints(planning.by_depth(graph.op_of_node, graph.depth_of_node, len(graph.ops)))
        computes = graph.depth_of_node > 0
        level = graph.depth_of_node * len(graph.ops) + graph.op_of_node
        # Levels are small numbers, so counting them is several times faster than sorting them.
        used = np.zeros(int(level.max(initial=-1)) + 1, bool)
        used[level[computes]] = True
        step_of_level = used.cumsum() - 1
        return np.where(computes, step_of_level[level], UNSCHEDULED)
