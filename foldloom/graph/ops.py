"""Ops: which calls may share a step."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from foldloom.caching import cached_property
from foldloom.graph.types import Type


@dataclass(frozen=True)
class Op:
    """The unit of batching: nodes of equal ops may share a step, and nothing else may.

    Equality is exact and covers everything that tells two calls apart: which cell or function (``key``), the settings it
    was called with (``settings``, the keyword arguments and the nesting of the positional ones), the weights that it was given
    (``shared``, by name), and the types. ``repeatable`` says whether calls with equal arguments give equal results, so that one of
    them will do: no random numbers are drawn.
    """

    key: str
    inputs: tuple[Type, ...]
    outputs: tuple[Type, ...]
    settings: Hashable = ()
    shared: tuple[Hashable, ...] = ()
    mode: Hashable = None
    repeatable: bool = False
    training: tuple[tuple[str, bool], ...] = ()
    """In a recording: the training modes that it was made in, by the paths of the modules whose code asked for them."""
    label: str = field(default="", compare=False)

    @cached_property
    def _hash(self) -> int:
        return hash(
            (self.key, self.inputs, self.outputs, self.settings, self.shared, self.mode, self.repeatable, self.training)
        )

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        # A hash of strings differs from process to process.
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def is_input(self) -> bool:
        return self.key in (CONSTANT, TRACKED, EARLIER)

    def __str__(self) -> str:
        arguments = ", ".join(map(repr, self.inputs))
        results = ", ".join(map(repr, self.outputs))
        return f"{self.label or self.key}({arguments}) -> {results}"


CONSTANT = "<constant>"
"""The key of inputs that need no gradient."""

TRACKED = "<tracked>"
"""The key of inputs through which gradients flow back to the tensors that were given."""

EARLIER = "<earlier>"
"""The key of values that an earlier plan of the same batch has computed and placed."""


@cache
def input_op(type: Type, is_tensor: bool, tracked: bool) -> Op:
    """Numbers and arrays are kept apart from tensors: they travel between processes in a different form."""
    return Op(TRACKED if tracked else CONSTANT, (), (type,), "tensor" if is_tensor else "array")
