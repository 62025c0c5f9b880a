"""The cells of blocks. Blocks with the same function share one, which has a name in the model."""

from __future__ import annotations

import pickle
import re
import types
from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, Self

import torch

from foldloom.blocks.types import BlockType, TupleType
from foldloom.errors import BlockError
from foldloom.graph import Type
from foldloom.pytrees import Nesting
from foldloom.tracing.cells.core import Cell, Settings, Signature


class FlatCell(Cell):
    """A cell that is called with the leaves of nested tuples and passes the tuples to its function. Flattening them
    in generated code, where the types are known, is much cheaper than in the recorder."""

    def __init__(self, function: Callable[..., Any], arguments: TupleType) -> None:
        super().__init__(function)
        self._arguments = arguments

    def call_batched(self, *parts: Any, **settings: Any) -> Any:
        return super().call_batched(*self._arguments.unflatten(parts), **settings)


def cell_key(function: Callable[..., Any], nesting: BlockType | None) -> Hashable:
    """Blocks with equal keys share a cell, so that their calls are batched together."""
    if isinstance(function, types.MethodType):  # every attribute access creates a new one
        return (id(function.__self__), function.__func__, nesting)
    return (id(function), nesting)


class NamedCell(Cell):
    """Stands for a cell while recording: its name in the model, and its signatures. It needs no weights, so
    recordings can be made in processes without them. Signatures that are not known yet are inferred by the cell
    itself."""

    def __init__(self, name: str, label: str, cell: Cell | None = None) -> None:
        super().__init__(_unreachable, label=label)
        self.name = name
        self.__dict__["cell"] = cell  # not as a submodule, which would add its weights
        self._known: dict[Hashable, tuple[Signature | None, Signature]] = {}
        self._packed_cell: bytes | None = None

    def signature(self, types: tuple[Type, ...], nesting: Nesting, settings: Settings) -> Signature:
        key = (types, nesting, settings)
        last, named = self._known.get(key, (None, None))
        cell = self.__dict__["cell"]
        if cell is None and named is None:
            cell = self.__dict__["cell"] = self._unpacked(types)
        if cell is None:
            assert named is not None
            return named
        found = cell.signature(types, nesting, settings)
        if named is None or found is not last:
            named = replace(found, op=replace(found.op, key=self.name))
            self._known[key] = (found, named)
        return named

    def packed(self, cell: bytes | None) -> Packed:
        """The arguments of `unpacked` in another process. ``cell`` is the pickled cell without weights, if it can be
        pickled."""
        known = {key: (None, named) for key, (_, named) in self._known.items()}
        return self.name, self.label, known, cell

    @classmethod
    def unpacked(cls, name: str, label: str, known: dict[Hashable, tuple[None, Signature]], cell: bytes | None) -> Self:
        self = cls(name, label)
        self._known.update(known)
        self._packed_cell = cell
        return self

    def _unpacked(self, types: tuple[Type, ...]) -> Cell:
        if self._packed_cell is None:
            raise BlockError(
                f"cell {self.label} meets ({', '.join(map(repr, types))}) for the first time in a process that it cannot be sent to, "
                "because its function is not importable. Write it with `def` at the top of a module, or record one such example "
                "before the workers start: `model.record(example)`"
            )
        cell = pickle.loads(self._packed_cell)
        assert isinstance(cell, Cell)
        return cell


Packed = tuple[str, str, dict[Hashable, tuple[None, Signature]], bytes | None]


def _unreachable(*_: Any) -> Any:
    raise BlockError("a cell without weights was run; run plans with the model that made them")


class ModuleNames:
    """Adds modules to a ModuleDict under unique names: the second of a name gets the suffix ``_2``."""

    def __init__(self, modules: torch.nn.ModuleDict) -> None:
        self._modules = modules

    def add(self, label: str, module: torch.nn.Module) -> str:
        stem = re.sub(r"\W", "", label) or "cell"
        name = next(name for name in _numbered(stem) if not hasattr(self._modules, name))
        self._modules[name] = module
        return name


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}_{number}"
        number += 1
