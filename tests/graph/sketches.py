"""Graphs of plain numbers, written down node by node."""

from __future__ import annotations

import numpy as np

from foldloom.graph import CONSTANT, Graph, Op, Type

VECTOR = Type((2,), "float32")
WORD = Type((), "int64")
INPUT = Op(CONSTANT, (), (WORD,))
LEAF = Op("leaf", (WORD,), (VECTOR,), label="leaf")
MERGE = Op("merge", (VECTOR, VECTOR), (VECTOR,), label="merge")
SCORE = Op("score", (VECTOR,), (VECTOR,), label="score")


class Sketch:
    """A graph, written down node by node."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.nodes: list[int] = []
        self.operands: list[int] = []
        self.depths: list[int] = []
        self.depth_of_value: list[int] = []
        self.outputs: list[int] = []

    def add(self, op: Op, *operands: int) -> int:
        if op not in self.ops:
            self.ops.append(op)
        self.nodes.append(self.ops.index(op))
        self.operands += operands
        depth = 0 if op.is_input else 1 + max(self.depth_of_value[value] for value in operands)
        self.depths.append(depth)
        self.depth_of_value += [depth] * len(op.outputs)
        return len(self.depth_of_value) - len(op.outputs)

    def leaf(self) -> int:
        return self.add(LEAF, self.add(INPUT))

    def done(self, *outputs: int) -> Graph:
        nodes, operands, depths = (np.array(column, np.int64) for column in (self.nodes, self.operands, self.depths))
        return Graph(
            tuple(self.ops),
            nodes,
            operands,
            depths,
            np.array([len(self.nodes)]),
            np.array(outputs, np.int64),
            len(self.depth_of_value),
        )


def chain(length: int, *, scored: bool = False) -> Graph:
    """((w w) w) w ...: every merge one deeper; with a score at every node if asked."""
    sketch = Sketch()
    state = sketch.leaf()
    outputs = [sketch.add(SCORE, state)] if scored else []
    for _ in range(length):
        state = sketch.add(MERGE, state, sketch.leaf())
        if scored:
            outputs.append(sketch.add(SCORE, state))
    return sketch.done(*(outputs or [state]))


def balanced(levels: int) -> Graph:
    sketch = Sketch()
    row = [sketch.leaf() for _ in range(2**levels)]
    while len(row) > 1:
        row = [sketch.add(MERGE, left, right) for left, right in zip(row[::2], row[1::2], strict=True)]
    return sketch.done(row[0])
