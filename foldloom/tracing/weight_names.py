"""Names of weights: how a recorded function finds the parameters that it was given.

A weight has a name of its own, or is named by its path in the module that was recorded, so that a recording made in one process
runs with the weights of another. What is computed from weights alone (``weight.t()``) is named by how it is computed.

There is one object for each such name. A chain of computations in which each step uses the one before twice has a name of exponential
length, if it is written out, so names are compared by identity and walked through once for each object.
"""

from __future__ import annotations

import hashlib
import uuid
import weakref
from collections.abc import Hashable, Mapping
from typing import Any, final

import torch
from torch.utils.weak import WeakIdKeyDictionary

_name_of_weight: Any = WeakIdKeyDictionary()
_weight_of_name: weakref.WeakValueDictionary[str, torch.Tensor] = weakref.WeakValueDictionary()


@final
class DerivedName:
    """How a weight is computed from others: a function by its name, the nesting of its arguments with all that are no weights, the names of
    those that are, and torch's modes. Made by `derived_name`."""

    __slots__ = ("__weakref__", "_digest", "function", "mode", "sources", "template")

    def __init__(self, function: str, template: Any, sources: tuple[str | DerivedName, ...], mode: Any) -> None:
        self.function = function
        self.template = template
        self.sources = sources
        self.mode = mode
        self._digest: str | None = None

    def __reduce__(self) -> Any:
        return derived_name, (self.function, self.template, self.sources, self.mode)

    def __repr__(self) -> str:
        """The same in every process, and short."""
        if self._digest is None:
            told = repr((self.template, self.sources, self.mode))
            self._digest = f"{self.function}#{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        return self._digest


_derived_names: weakref.WeakValueDictionary[Hashable, DerivedName] = weakref.WeakValueDictionary()


def derived_name(function: str, template: Any, sources: tuple[str | DerivedName, ...], mode: Any) -> DerivedName:
    """The one name of what is computed like this."""
    parts = (function, template, sources, mode)
    name = _derived_names.get(parts)
    return _derived_names.setdefault(parts, DerivedName(*parts)) if name is None else name


def name_of_weight(weight: torch.Tensor) -> str:
    known: str | None = _name_of_weight.get(weight)
    if known is not None:
        return known
    name: str = _name_of_weight.setdefault(weight, f"weight#{uuid.uuid4().hex}")  # another thread may have given it one
    _weight_of_name[name] = weight
    return name


def known_name(weight: torch.Tensor) -> str | None:
    """The name of a weight, if it has been asked for before."""
    name: str | None = _name_of_weight.get(weight)
    return name


def weight_named(name: str) -> torch.Tensor | None:
    """The weight of this process that a name is of."""
    return _weight_of_name.get(name)


def weights_named(name: Any) -> list[torch.Tensor]:
    """The weights of this process that a name is of, or that it is derived from."""
    found: dict[str, torch.Tensor] = {}
    seen: set[Any] = set()
    left = [name]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if isinstance(name, DerivedName):
            left += name.sources
        elif (weight := weight_named(name)) is not None:
            found[name] = weight
    return list(found.values())


def named_by_path(paths: Mapping[str, str], names: tuple[Any, ...]) -> tuple[Any, ...]:
    """Names, or how they are derived, with names of weights replaced by their paths."""
    renamed: dict[DerivedName, DerivedName] = {}

    def rename(name: str | DerivedName) -> str | DerivedName:
        if isinstance(name, str):
            return paths.get(name, name)
        if name not in renamed:
            renamed[name] = derived_name(name.function, name.template, tuple(map(rename, name.sources)), name.mode)
        return renamed[name]

    return tuple(map(rename, names))
