"""What a graph under construction consists of, and what is taken out of it: columns of inputs, of nodes and of their examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from foldloom.errors import ArgumentError
from foldloom.graph import Ints, Type
from foldloom.graph.recording import Column
from foldloom.tracing.fast_path import examples_of_nodes

T = TypeVar("T")


class InputColumn:
    """The values that were given for one input op."""

    __slots__ = ("op_number", "type", "values", "versions")

    def __init__(self, op_number: int, type: Type) -> None:
        self.op_number = op_number
        self.type = type
        self.values: list[Any] = []
        self.versions: list[int] = []

    def close(self) -> Column:
        if not isinstance(self.values[0], torch.Tensor):
            return np.array(self.values, self.type.dtype)
        for tensor, version in zip(self.values, self.versions, strict=True):
            if not tensor.is_inference() and tensor._version != version:
                raise ArgumentError(
                    f"a tensor ({self.type}) was changed in place after it had been given to a cell or function, which has not "
                    "run yet. Give it a copy (`x.clone()`), or make a new tensor instead of changing it"
                )
        return tuple(self.values)


class Examples(NamedTuple):
    """The example of each node. If examples did not take turns in order, they are not kept apart."""

    of_node: Ints
    total: int
    in_turn: bool

    @staticmethod
    def of(segments: Sequence[tuple[int, int]], nodes: int, total: int) -> Examples:
        """``segments`` have an example and its first node each, in recording order. The last examples may have no node."""
        of_node, largest, in_turn = examples_of_nodes(segments, nodes)
        return Examples(of_node, max(total, 1, largest + 1), in_turn)

    def counts(self) -> Ints:
        """The number of nodes of each example."""
        if self.in_turn:
            return np.bincount(self.of_node, minlength=self.total)
        return np.array([len(self.of_node)] + [0] * (self.total - 1), np.int64)


class Mark(NamedTuple):
    """How long the columns of a graph were."""

    nodes: int
    operands: int
    lengths: int
    values: int


class NewNodes(NamedTuple):
    """The nodes that were recorded since the last flush."""

    recorded: list[int]
    """The op of each node, as it was recorded."""
    op_of_node: Ints
    operands: Ints
    lengths: Ints
    depth_of_node: Ints
    inputs: tuple[Column, ...]
    examples: Examples


class Nodes(NamedTuple):
    """The nodes that were recorded between two flushes. Their values begin at ``first_value``."""

    op_of_node: Ints
    operands: Ints
    lengths: Ints
    example_of_node: Ints
    first_value: int


def kept(of_value: Mapping[int, T], moved: Mapping[int, int]) -> dict[int, T]:
    """What is known of values that are kept under other numbers."""
    return {moved[value]: known for value, known in of_value.items() if value in moved}
