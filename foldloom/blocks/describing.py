"""How a block describes itself to the exporter: its kind and settings as JSON, and how data flows through it.

`Block.describe` returns a JSON object with the ``kind`` of the block and its settings. `foldloom.runtime.program` has one
interpreter per kind, which turns that object back into a function. Everything that is not plain JSON goes through `Describing`.

`Block.flow` is the transfer function of a data-flow analysis over the ops of a model (`foldloom.exporting.flows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from foldloom.blocks.types import BlockType, TensorType

Described = dict[str, Any]

Ops = frozenset[int]
"""Numbers of ops: those that may have computed a value."""

NO_OPS: Ops = frozenset()

Through = Callable[[Any, Ops], Ops]
"""``through(part, inputs)``: the ops whose results may leave a part if those of ``inputs`` may enter it."""


class Describing(ABC):
    """Turns what a block refers to into JSON. Passed to `Block.describe`."""

    @abstractmethod
    def block(self, part: Any) -> int:
        """A part of the block, as a number."""

    @abstractmethod
    def cell(self, block: Any) -> str:
        """The cell that runs the block's function, as a name."""

    @abstractmethod
    def value(self, value: Any) -> Any:
        """A Python value or function. Raises `NotPortableError` if it cannot be expressed as JSON."""

    @abstractmethod
    def dtype(self, declared: str) -> str:
        """The dtype in use for a declared one: ``model.double()`` turns float32 into float64."""

    @abstractmethod
    def constant(self, value: Any, type: TensorType) -> Any:
        """A tensor, or a number that fills one, as a constant of this type."""

    @abstractmethod
    def zeros(self, type: BlockType) -> Any:
        """Zeros of a type: a constant, a tuple of such, or an empty sequence."""

    def optional_block(self, part: Any) -> int | None:
        return None if part is None else self.block(part)


def through_each(parts: Iterable[Any], inputs: Ops, through: Through) -> Ops:
    """The flow of parts that all get the same input and do not feed each other."""
    return NO_OPS.union(*[through(part, inputs) for part in parts])


def has_tensors(type: BlockType) -> bool:
    """Whether values of a type contain tensors. Python objects never contain computed ones."""
    return isinstance(type, TensorType) or any(map(has_tensors, type.parts))
