"""Cells by the modules that they stand for, and by the names that recordings give them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from foldloom.errors import CellMismatchError
from foldloom.graph import Type
from foldloom.pytrees import Nesting
from foldloom.tracing.cells.core import Cell, cell_with_key
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.weights import module_of


class _CellOfModule(Cell):
    """Stands for a module that nobody marked as a cell, and lives as long as the module: it must not keep it alive."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(module)
        self.__dict__["function"] = weakref.ref(module)

    @property
    def function(self) -> Any:
        found = self.__dict__["function"]
        return found() if isinstance(found, weakref.ref) else found

    def _try_members(self, types: tuple[Type, ...], nesting: Nesting, settings: dict[str, Any]) -> None:
        """Torch's own modules that count as one operation mix nothing."""
        if type(self.function) not in MODULES:
            super()._try_members(types, nesting, settings)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "function": self.function}


_cell_of_module: weakref.WeakKeyDictionary[torch.nn.Module, Cell] = weakref.WeakKeyDictionary()


def cell_of_module(module: torch.nn.Module) -> Cell:
    """The cell that stands for a module that nobody marked as one."""
    known = _cell_of_module.get(module)
    # Another thread may make one meanwhile: there is one for all.
    return _cell_of_module.setdefault(module, _CellOfModule(module)) if known is None else known


_paths_in: weakref.WeakKeyDictionary[torch.nn.Module, dict[str, str]] = weakref.WeakKeyDictionary()


def paths_of_cells(owner: torch.nn.Module, keys: Sequence[str]) -> dict[str, str]:
    """The paths in their owner of cells, and of modules that a cell stands for, by their keys."""
    known = _paths_in.get(owner, {})
    if not all(key in known and _is_at(owner, known[key], key) for key in keys):
        known = _paths_in[owner] = {}
        for path, module in owner.named_modules():
            cell = module if isinstance(module, Cell) else _cell_of_module.get(module)
            if cell is not None:
                known[cell.key] = path
    return known


def _is_at(owner: torch.nn.Module, path: str, key: str) -> bool:
    """Whether the owner still has that cell, or its module, where it was found before."""
    module: Any = owner
    for name in path.split(".") if path else ():
        module = module._modules.get(name)
        if module is None:
            return False
    cell = cell_with_key(key)
    return cell is module or (cell is not None and cell.function is module)


def find_cell(key: str, owner: object) -> Cell:
    """The live cell that a recorded op names: by its path in the owner, or by the key it was born with."""
    found, whole = cell_with_key(key), module_of(owner)
    if found is None and whole is not None:
        module = dict(whole.named_modules()).get(key)
        found = module if isinstance(module, Cell) or module is None else cell_of_module(module)
    if not isinstance(found, Cell):
        where = "this process" if whole is None else type(whole).__name__
        raise CellMismatchError(
            f"the plan uses a cell {key!r} that {where} does not have. Run a plan with the model it was recorded with: "
            "`fl.batch(model).run(plan)`, where the plan's recordings came from `fl.record(model, example)`"
        )
    return found
