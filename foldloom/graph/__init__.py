"""What was asked: types, ops, and the graph of all calls as columns. Knows numpy and no torch (`ragged` apart)."""

from foldloom.graph.graph import Graph, Ints, Slots, concatenate, merge, runs_of, starts_of
from foldloom.graph.ops import CONSTANT, EARLIER, TRACKED, Op, input_op
from foldloom.graph.types import ANY, Type

__all__ = [
    "ANY", "CONSTANT", "EARLIER", "TRACKED", "Graph", "Ints", "Op", "Slots", "Type", "concatenate", "input_op", "merge",
    "runs_of", "starts_of",
]  # fmt: skip
