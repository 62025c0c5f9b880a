"""Lowering: each block becomes a Python function, specialised for the inferred types, which calls those of its parts.

Recording runs these functions once per node of every example, so everything that can be decided earlier is decided here.
"""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from foldloom.blocks.types import BlockType, SequenceType, TensorType, TupleType
from foldloom.tracing.cells.core import Cell

Run = Callable[[Any], Any]
"""From a value of a block's input type to a value of its output type.

How values are represented: a tensor as a tensor, as a lazy tensor, or as the number or array that was given, which cells accept
too; a tuple as a tuple; a sequence as a list; a broadcast sequence as its one element; nothing as None.
"""


class Lowerable(ABC):
    """What lowering needs of a block."""

    @abstractmethod
    def lowered(self, lower: Lowering) -> Run:
        """The block as a Python function of one value."""


def number_maker(dtype: str) -> Run:
    """Converts a number to a dtype, as a type that recorders take without further conversion where there is one."""
    if dtype == "int64":
        return operator.index
    if dtype in ("float32", "float64"):
        kind = getattr(np, dtype)
        return lambda value: kind(float(value))
    torch_dtype = getattr(torch, dtype)
    return lambda value: torch.tensor(value, dtype=torch_dtype)


class Collected:
    """The metrics of one example and their labels, by name."""

    __slots__ = ("labels", "rows")

    def __init__(self, names: Iterable[str]) -> None:
        self.rows: dict[str, list[Any]] = {name: [] for name in names}
        self.labels: dict[str, list[Any]] = {name: [] for name in self.rows}


collecting: ContextVar[Collected] = ContextVar("collecting")
"""The metrics of the example that is running. Examples interleave, in threads and fibers; each has a context of its own."""


class Lowering:
    """Lowers all blocks of one model, each once.

    ``cells`` has the cell of each block that computes. ``given`` is the cell that makes a tensor of a number, array or constant that is
    returned as it is. ``dtypes`` maps declared dtypes to those in use: ``model.double()`` changes the dtype of the weights and of
    everything they meet.
    """

    def __init__(self, cells: Mapping[Any, Cell], given: Cell, dtypes: Mapping[str, str], device: torch.device) -> None:
        self.cells = cells
        self.given = given
        self._dtypes = dtypes
        self._device = device
        self._runs: dict[Lowerable, Run] = {}
        self._names: dict[Lowerable, str] = {}
        self._named: list[Lowerable] = []
        self._shared: Collection[Lowerable] = ()
        self._numbers = itertools.count()
        self.namespace: dict[str, Any] = {}
        """The globals of all generated functions, which call each other by name."""

    def function(self, root: Lowerable, shared: Collection[Lowerable]) -> Run:
        """The whole model as a function of one example. ``shared`` are the blocks that are part of several others."""
        self._shared = shared
        run = self(root)
        while self._named:
            block = self._named.pop()
            self.namespace[self._names[block]] = self(block)
        return run

    def __call__(self, block: Lowerable) -> Run:
        run = self._runs.get(block)
        if run is None:
            run = self._runs[block] = block.lowered(self)
        return run

    def name_of(self, block: Lowerable) -> str:
        """The name of a block's function in the namespace. The function may be made later, so recursion is possible."""
        if block not in self._names:
            self._names[block] = self.new_name("block")
            self._named.append(block)
        return self._names[block]

    def new_name(self, hint: str) -> str:
        return f"{hint}_{next(self._numbers)}"

    def is_shared(self, block: Lowerable) -> bool:
        """Whether a block is part of several others, so that its code is worth a function of its own."""
        return block in self._shared

    def dtype(self, declared: str) -> str:
        return self._dtypes.get(declared, declared)

    def constant(self, value: Any, type: TensorType) -> torch.Tensor:
        """One tensor for all examples, which recorders recognise by its identity."""
        dtype = getattr(torch, self.dtype(type.dtype))
        return torch.as_tensor(value).detach().to(self._device, dtype).expand(type.fixed()).clone()

    def zeros(self, type: BlockType) -> Any:
        """Zeros of a type: a tensor, a tuple of such, or an empty sequence."""
        if isinstance(type, TensorType):
            return self.constant(0, TensorType(type.fixed(), type.dtype))
        if isinstance(type, TupleType):
            return tuple([self.zeros(item) for item in type.items])
        return [] if isinstance(type, SequenceType) else None
