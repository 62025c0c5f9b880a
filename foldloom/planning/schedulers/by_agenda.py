"""Batching by agenda (Neubig, Goldberg, Dyer 2017, section 3.2).

An agenda holds the nodes whose operands are all computed. Repeatedly, the op with the smallest mean depth among those on
the agenda runs with *all* its ready nodes, whatever their depths. Mean depths are taken once, over the whole graph, so
an op that tends to come late waits until more of its nodes are ready.

Written as a loop over nodes, in C (`_planning.c`) and here for where that was not compiled: an agenda is a matter of a few list
operations for each, which costs less than array operations for each step as soon as steps have fewer than some hundred nodes.
(The paper's own heuristic to run single, unbatchable nodes first needs no case here: every op batches.)
"""

from __future__ import annotations

import numpy as np

from foldloom.graph import Graph, Ints, starts_of
from foldloom.planning.native import as_ints, planning
from foldloom.planning.schedulers.base import UNSCHEDULED, Scheduler


class ByAgenda(Scheduler):
    """Steps are made one after the other: of the ops with nodes that could run now, the one whose nodes stand least deep on average runs next,
    all of them together. The default.

    >>> import torch, foldloom as fl
    >>> recordings = fl.record_each(lambda x: x.exp(), [torch.ones(2), torch.zeros(2)])
    >>> fl.plan(recordings, fl.ByAgenda()).statistics().steps
    1
    """

    def step_of_node(self, graph: Graph) -> Ints:
        if planning is None:
            return by_agenda_in_python(graph)
        return as_ints(
            planning.by_agenda(graph.ops, graph.op_of_node, graph.operands, graph.depth_of_node, graph.lengths)
        )


def by_agenda_in_python(graph: Graph) -> Ints:
    op_of_node: list[int] = graph.op_of_node.tolist()
    ready, waiting_for, first_reader, readers = _dependencies(graph)
    depth_total = np.bincount(graph.op_of_node, graph.depth_of_node, minlength=len(graph.ops))
    mean_depth = depth_total / np.maximum(1, np.bincount(graph.op_of_node, minlength=len(graph.ops)))
    # Ops of equal mean depth run in the order in which they were first recorded.
    order = np.argsort(mean_depth.argsort(kind="stable")).tolist()
    op_of_order = mean_depth.argsort(kind="stable").tolist()
    agenda: list[list[int]] = [[] for _ in graph.ops]
    for node in ready:
        agenda[op_of_node[node]].append(node)
    waiting = {order[op] for op, nodes in enumerate(agenda) if nodes}
    steps: list[list[int]] = []
    while waiting:
        first = min(waiting)
        waiting.remove(first)
        op = op_of_order[first]
        nodes, agenda[op] = agenda[op], []
        steps.append(nodes)
        for node in nodes:
            for reader in readers[first_reader[node] : first_reader[node + 1]]:
                waiting_for[reader] -= 1
                if not waiting_for[reader]:
                    reading_op = op_of_node[reader]
                    agenda[reading_op].append(reader)
                    waiting.add(order[reading_op])
    schedule = np.full(len(op_of_node), UNSCHEDULED, np.int64)
    in_order = np.array([node for nodes in steps for node in nodes], np.int64)
    schedule[in_order] = np.repeat(np.arange(len(steps)), [len(nodes) for nodes in steps])
    return schedule


def _dependencies(graph: Graph) -> tuple[list[int], list[int], list[int], list[int]]:
    """Nodes ready at once, operands each node waits for, and who reads each node, as runs of one list."""
    count = len(graph.op_of_node)
    reader = np.repeat(np.arange(count), graph.arity_of_node)
    source = graph.node_of_value[graph.operands]
    computed = graph.depth_of_node[source] > 0
    reader, source = reader[computed], source[computed]
    waiting_for = np.bincount(reader, minlength=count)
    ready = np.flatnonzero((waiting_for == 0) & (graph.depth_of_node > 0))
    readers = reader[source.argsort(kind="stable")]
    first_reader = np.append(starts_of(np.bincount(source, minlength=count)), len(readers))
    return ready.tolist(), waiting_for.tolist(), first_reader.tolist(), readers.tolist()
