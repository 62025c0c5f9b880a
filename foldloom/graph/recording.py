"""What was asked, together with the data it was asked about.

A Recording is made once for an example and kept; a minibatch is several of them merged. It pickles, and holds the inputs
that were given but no weights: cells are named, not held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from foldloom.errors import RecordingError
from foldloom.graph import TRACKED, Graph, Ints, Op, merge

Column = npt.NDArray[Any] | tuple[Any, ...]
"""The given values of one input op, in recording order: an array with a row for each, or a tuple of tensors."""


@dataclass(frozen=True, eq=False)
class Recording:
    """What one or several examples ask for, to be planned and run. Pickles. Made by `record`.

    >>> import pickle, torch, foldloom as fl
    >>> recording = fl.record(lambda x: x.exp() + x, torch.ones(2))
    >>> recording.graph.node_count
    2
    >>> again = pickle.loads(pickle.dumps(recording))

    ``inputs`` has a column for each input op of the graph, in the order of ``graph.ops``; ``results`` has, for each example,
    its result without its tensors, as a template (`pytrees`)."""

    graph: Graph
    inputs: tuple[Column, ...]
    results: tuple[Any, ...]

    def __getstate__(self) -> dict[str, Any]:
        refuse_tracked(self.graph.ops)
        return self.__dict__

    def __str__(self) -> str:
        return f"recording: {self.graph}"

    def __repr__(self) -> str:
        counts = Counter[str]()
        for op, count in zip(self.graph.ops, np.bincount(self.graph.op_of_node).tolist(), strict=False):
            if not op.is_input:
                counts[op.label or op.key] += count
        calls = ", ".join(f"{count:,} x {name}" for name, count in counts.items())
        return f"Recording({self.graph.node_count:,} nodes{': ' if calls else ''}{calls})"


def refuse_tracked(ops: Sequence[Op]) -> None:
    """A tensor that needs gradients would arrive elsewhere as a copy, and its gradients would be lost."""
    for op in ops:
        if op.key == TRACKED:
            raise RecordingError(
                f"a recording that was given a tensor that needs gradients ({op.outputs[0]}) cannot be sent to another process. "
                "Use the tensor inside a cell instead of passing it to one, or pass `tensor.detach()`"
            )


def merge_recordings(recordings: Sequence[Recording]) -> Recording:
    """Several recordings as one, with their examples in order."""
    if len(recordings) == 1:
        return recordings[0]
    graph = merge([recording.graph for recording in recordings])
    return Recording(
        graph=graph,
        inputs=tuple([_concatenate(columns) for columns in _columns_of_inputs(graph, recordings)]),
        results=tuple(chain.from_iterable([recording.results for recording in recordings])),
    )


def split_recording(recording: Recording) -> list[Recording]:
    """Each example of a recording by itself, if none uses what another was given."""
    graph = recording.graph
    if graph.example_count == 1:
        return [recording]
    nodes = _bounds(graph.nodes_of_example)
    values, operands = (_bounds(counts)[nodes] for counts in (graph.width_of_node, graph.arity_of_node))
    ragged = np.array([sum(type.ragged for type in (*op.inputs, *op.outputs)) for op in graph.ops], np.int64)
    lengths = _bounds(ragged[graph.op_of_node])[nodes]
    outputs = np.searchsorted(np.searchsorted(values, graph.outputs, side="right") - 1, np.arange(len(nodes)))
    counts = [np.bincount(graph.op_of_node[start:end], minlength=len(graph.ops)) for start, end in pairwise(nodes)]
    given = np.cumsum([np.zeros_like(counts[0]), *counts], 0)
    input_ops = [number for number, op in enumerate(graph.ops) if op.is_input]
    parts = []
    for example, (start, end) in enumerate(pairwise(nodes.tolist())):
        first_value, last_value = values[example : example + 2].tolist()
        is_used = counts[example] > 0
        ops, op_of_node = graph.ops, graph.op_of_node[start:end]
        if not is_used.all():
            ops = _used(ops, is_used.tobytes())
            op_of_node = (np.cumsum(is_used) - 1)[op_of_node]
        part = Graph(
            ops=ops,
            op_of_node=op_of_node,
            operands=graph.operands[operands[example] : operands[example + 1]] - first_value,
            depth_of_node=graph.depth_of_node[start:end],
            nodes_of_example=graph.nodes_of_example[example : example + 1],
            outputs=graph.outputs[outputs[example] : outputs[example + 1]] - first_value,
            value_count=last_value - first_value,
            lengths=graph.lengths[lengths[example] : lengths[example + 1]],
        )
        columns = [
            column[given[example, op] : given[example + 1, op]]
            for op, column in zip(input_ops, recording.inputs, strict=True)
            if is_used[op]
        ]
        parts.append(Recording(part, tuple(columns), (recording.results[example],)))
    return parts


def _bounds(counts: Ints) -> Ints:
    return np.append(0, np.cumsum(counts))


@lru_cache(maxsize=1024)
def _used(ops: tuple[Op, ...], is_used: bytes) -> tuple[Op, ...]:
    """Equal tables are one object, which makes merging recordings a matter of offsets."""
    return tuple([op for op, used in zip(ops, is_used, strict=True) if used])


def _columns_of_inputs(graph: Graph, recordings: Sequence[Recording]) -> Iterable[Sequence[Column]]:
    """For each input op of the merged graph, its columns in all the recordings that have it."""
    if all(recording.graph.ops is graph.ops for recording in recordings):
        return zip(*[recording.inputs for recording in recordings], strict=True)
    columns: dict[Op, list[Column]] = {op: [] for op in graph.ops if op.is_input}
    for recording in recordings:
        input_ops = [op for op in recording.graph.ops if op.is_input]
        for op, column in zip(input_ops, recording.inputs, strict=True):
            columns[op].append(column)
    return columns.values()


def _concatenate(columns: Sequence[Column]) -> Column:
    if all(isinstance(column, np.ndarray) for column in columns):
        return np.concatenate(columns)
    return tuple([value for column in columns for value in column])
