"""From a block to a Python function.

Recording runs once for every node of every example, so nothing is decided there that can be decided before: each block becomes
a function of its own, made for the types that were inferred, and calls those of its parts.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foldloom.blocks.types import TensorType
from foldloom.tracing.cells.core import Cell

if TYPE_CHECKING:
    from foldloom.blocks.block import Block

Run = Callable[[Any], Any]
"""From a value of a block's input type to one of its output type.

A tensor is a tensor, a handle of one that is not computed yet, or a number or array that was given and that a cell would
take as it is; a tuple is a tuple, a sequence a list, a broadcast sequence the one thing that it repeats, nothing is None.
"""


def number_maker(dtype: str) -> Run:
    """From a number to one of this dtype, in a form that a recorder takes as it is or nearly so."""
    if dtype == "int64":
        return operator.index
    if dtype in ("float32", "float64"):
        kind = getattr(np, dtype)
        return lambda value: kind(float(value))
    torch_dtype = getattr(torch, dtype)
    return lambda value: torch.tensor(value, dtype=torch_dtype)


class Collected:
    """The metrics of one example, and their labels, by name."""

    __slots__ = ("labels", "rows")

    def __init__(self, names: Iterable[str]) -> None:
        self.rows: dict[str, list[Any]] = {name: [] for name in names}
        self.labels: dict[str, list[Any]] = {name: [] for name in self.rows}


collecting: ContextVar[Collected] = ContextVar("collecting")
"""Where metrics of the example that is being run go. Examples take turns, in threads and in fibers; a context is one example's own."""


class Lowering:
    """Makes the functions of all blocks of one model, each once.

    ``cells`` has a cell for each block that computes something; ``given`` is the one that makes
    a number, array or constant a tensor that can be given back; ``dtypes`` says which dtype a declared one has become, because
    ``model.double()`` changes the weights' and with them all that meets them.
    """

    def __init__(
        self, cells: Mapping[Block, Cell], given: Cell, dtypes: Mapping[str, str], device: torch.device
    ) -> None:
        self.cells = cells
        self.given = given
        self._dtypes = dtypes
        self._device = device
        self._runs: dict[Block, Run] = {}
        self._names: dict[Block, str] = {}
        self._named: list[Block] = []
        self._shared: set[Block] = set()
        self._numbers = itertools.count()
        self.namespace: dict[str, Any] = {}
        """What functions that are written out call by name, each other among it."""

    def function(self, root: Block) -> Run:
        """The whole of a model, as a function of one example."""
        users = Counter([part for block in all_blocks(root) for _, part in block.parts])
        self._shared = {block for block, count in users.items() if count > 1}
        run = self(root)
        while self._named:
            block = self._named.pop()
            self.namespace[self._names[block]] = self(block)
        return run

    def __call__(self, block: Block) -> Run:
        run = self._runs.get(block)
        if run is None:
            run = self._runs[block] = block.lowered(self)
        return run

    def name_of(self, block: Block) -> str:
        """The name under which the function of a block will be found. It may contain the one that asks."""
        if block not in self._names:
            self._names[block] = self.new_name("block")
            self._named.append(block)
        return self._names[block]

    def new_name(self, hint: str) -> str:
        return f"{hint}_{next(self._numbers)}"

    def is_shared(self, block: Block) -> bool:
        """Whether a block stands in several places."""
        return block in self._shared

    def dtype(self, declared: str) -> str:
        return self._dtypes.get(declared, declared)

    def constant(self, value: Any, type: TensorType) -> torch.Tensor:
        """One tensor for all examples: a recorder that is given the same tensor again knows it."""
        dtype = getattr(torch, self.dtype(type.dtype))
        return torch.as_tensor(value).detach().to(self._device, dtype).expand(type.fixed()).clone()


def all_blocks(root: Block) -> Iterator[Block]:
    """Every block that the root is made of, parts before wholes, in an order that depends on nothing else."""
    seen: set[Block] = set()
    pending: list[tuple[Block, Iterator[Block]]] = [(root, iter([part for _, part in root.parts]))]
    seen.add(root)
    while pending:
        block, parts = pending[-1]
        part = next(parts, None)
        if part is None:
            pending.pop()
            yield block
        elif part not in seen:
            seen.add(part)
            pending.append((part, iter([inner for _, inner in part.parts])))
