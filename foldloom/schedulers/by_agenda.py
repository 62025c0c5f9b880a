"""Batching by agenda (Neubig, Goldberg, Dyer 2017, section 3.2).

An agenda holds the nodes whose operands are all computed. Repeatedly, the op with the smallest mean depth among those on
the agenda runs with *all* its ready nodes, whatever their depths. Mean depths are taken once, over the whole graph, so
an op that tends to come late waits until more of its nodes are ready.

One loop turn is one step; inside it everything is an array operation over the nodes of that step. (The paper's own
heuristic to run single, unbatchable nodes first needs no case here: every op batches.)
"""

from __future__ import annotations

import numpy as np

from foldloom.graph import Graph, Ints, runs_of, starts_of
from foldloom.schedulers.base import UNSCHEDULED, Scheduler


class ByAgenda(Scheduler):
    def step_of_node(self, graph: Graph) -> Ints:
        schedule = np.full(len(graph.op_of_node), UNSCHEDULED, np.int64)
        ready, waiting_for, first_reader, reader_count, readers = _dependencies(graph)
        depth_total = np.bincount(graph.op_of_node, graph.depth_of_node, minlength=len(graph.ops))
        mean_depth = depth_total / np.maximum(1, np.bincount(graph.op_of_node, minlength=len(graph.ops)))
        agenda: list[list[Ints]] = [[] for _ in graph.ops]
        _put(agenda, graph.op_of_node, ready)
        on_agenda = {int(op) for op in np.unique(graph.op_of_node[ready])}
        step = 0
        while on_agenda:
            op = min(on_agenda, key=lambda candidate: (mean_depth[candidate], candidate))
            on_agenda.discard(op)
            nodes = np.concatenate(agenda[op])
            agenda[op] = []
            schedule[nodes] = step
            step += 1
            woken = readers[runs_of(first_reader[nodes], reader_count[nodes])]
            if len(woken):
                np.subtract.at(waiting_for, woken, 1)
                freed = np.unique(woken[waiting_for[woken] == 0])
                on_agenda.update(_put(agenda, graph.op_of_node, freed))
        return schedule


def _dependencies(graph: Graph) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Nodes ready at once, operands each node waits for, and who reads each node (as runs of one array)."""
    reader = np.repeat(np.arange(len(graph.op_of_node)), graph.arity_of_node)
    source = graph.node_of_value[graph.operands]
    computed = graph.depth_of_node[source] > 0
    reader, source = reader[computed], source[computed]
    waiting_for = np.bincount(reader, minlength=len(graph.op_of_node))
    ready = np.flatnonzero((waiting_for == 0) & (graph.depth_of_node > 0))
    readers = reader[np.argsort(source, kind="stable")]
    reader_count = np.bincount(source, minlength=len(graph.op_of_node))
    return ready, waiting_for, starts_of(reader_count), reader_count, readers


def _put(agenda: list[list[Ints]], op_of_node: Ints, nodes: Ints) -> list[int]:
    """Put nodes on the agenda; the ops that they have."""
    ops = op_of_node[nodes]
    found: list[int] = np.unique(ops).tolist()
    for op in found:
        agenda[op].append(nodes if len(found) == 1 else nodes[ops == op])
    return found

