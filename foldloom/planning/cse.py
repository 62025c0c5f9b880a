"""Computing once what several nodes ask alike.

A batch of sentences holds most of its words many times over. What is computed of a word alone, its vector and whatever is made of
that, is the same wherever the word stands, so one node computes it and all read its row. Gradients meet in that row as those of
any value do that has several readers.

Two nodes ask alike if they call the same op on the same values, and numbers that are given count as the same if they are equal.
Only ops that are `repeatable` are shared: whoever draws random numbers draws them anew for every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foldloom.graph import Graph, Ints, starts_of
from foldloom.graph.recording import Column, Recording

_WORTHWHILE = 0.05
"""Making the graph anew costs as much as some nodes do, and is left where fewer than this part of them would go."""
_DEEPEST = 16
"""Equal parts of examples are shallow, and looking for them costs some array operations a level."""


class Shared(NamedTuple):
    """A recording without the nodes that ask what another asks, and the ops that they would have called."""

    recording: Recording
    ops: frozenset[int]


def shared(recording: Recording) -> Shared:
    graph = recording.graph
    repeatable = np.array([op.repeatable for op in graph.ops], bool)
    # What one example asks twice are a few rows of narrow steps, and looking for them takes as long as such a step.
    if graph.example_count < 2 or not repeatable.any():
        return Shared(recording, frozenset())
    values = _Values(graph, recording.inputs)
    is_alike = np.zeros(len(graph.op_of_node), bool)
    may_be = repeatable[graph.op_of_node]
    for depth in range(1, _DEEPEST + 1):
        found = values.find(np.flatnonzero(may_be & (graph.depth_of_node == depth)))
        if not len(found):
            break  # whoever asks alike reads what was asked alike
        is_alike[found] = True
    if np.count_nonzero(is_alike) < _WORTHWHILE * graph.node_count:
        return Shared(recording, frozenset())
    ops = frozenset(np.unique(graph.op_of_node[is_alike]).tolist())
    return Shared(replace(recording, graph=_without(graph, is_alike, values.same)), ops)


class _Values:
    """For every value the first that is the same, and whether there is another."""

    def __init__(self, graph: Graph, inputs: Sequence[Column]) -> None:
        self._graph = graph
        self._first_value = starts_of(graph.width_of_node)
        self._first_operand = starts_of(graph.arity_of_node)
        self.same = np.arange(graph.value_count)
        self._repeated = np.zeros(graph.value_count, bool)
        input_ops = [number for number, op in enumerate(graph.ops) if op.is_input]
        for op, column in zip(input_ops, inputs, strict=True):
            if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "bi":
                self._note(self._first_value[np.flatnonzero(graph.op_of_node == op)], column, 1)

    def _note(self, values: Ints, keys: Ints, width: int) -> Ints:
        """Values of equal keys are the same, and so are the next ones of each; which ones each is the same as."""
        first = _first_of_equals(keys)
        same, repeated = values[first], (np.bincount(first) > 1)[first]
        for offset in range(width):
            self.same[values + offset] = same + offset
            self._repeated[values + offset] = repeated
        return same

    def find(self, nodes: Ints) -> Ints:
        """Of these nodes, which have been met before in the guise of others: those that ask what an earlier one asks."""
        graph, found = self._graph, []
        op_of_node = graph.op_of_node[nodes]
        for op in np.unique(op_of_node).tolist():
            members = nodes[op_of_node == op]
            arity, width = len(graph.ops[op].inputs), len(graph.ops[op].outputs)
            operands = self.same[graph.operands[self._first_operand[members, None] + np.arange(arity)]]
            is_candidate = self._repeated[operands].all(1)
            members, operands = members[is_candidate], operands[is_candidate]
            if len(members) > 1:
                values = self._first_value[members]
                found.append(members[self._note(values, self._keys(operands), width) != values])
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def _keys(self, operands: Ints) -> Ints:
        """A number for each row, the same for equal rows."""
        keys = operands[:, 0]
        for column in operands.T[1:]:
            keys = np.unique(keys, return_inverse=True)[1] * self._graph.value_count + column
        return keys


_FAR_APART = 64
"""Keys that are spread more widely than this are sorted; others are told apart by a table, which is several times as fast."""


def _first_of_equals(keys: Ints) -> Ints:
    """For each key, the position of the first that equals it."""
    lowest, highest = int(keys.min(initial=0)), int(keys.max(initial=0))
    if highest - lowest > _FAR_APART * len(keys):
        _, first, position = np.unique(keys, return_index=True, return_inverse=True)
        return first[position]
    first = np.empty(highest - lowest + 1, np.int64)
    # Written from the last to the first, so that the first stays.
    first[keys[::-1] - lowest] = np.arange(len(keys))[::-1]
    return first[keys - lowest]


def _without(graph: Graph, is_alike: np.ndarray, same: Ints) -> Graph:
    """The graph without these nodes; who read them reads those that ask the same."""
    is_kept = ~is_alike
    value_is_kept = is_kept.repeat(graph.width_of_node)
    number = value_is_kept.cumsum() - 1
    return Graph(
        ops=graph.ops,
        op_of_node=graph.op_of_node[is_kept],
        operands=number[same[graph.operands[is_kept.repeat(graph.arity_of_node)]]],
        depth_of_node=graph.depth_of_node[is_kept],
        nodes_of_example=np.bincount(graph.example_of_node[is_kept], minlength=graph.example_count),
        outputs=number[same[graph.outputs]],
        value_count=int(np.count_nonzero(value_is_kept)),
        lengths=graph.lengths,
    )
