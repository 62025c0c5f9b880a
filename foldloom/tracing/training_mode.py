"""Recordings of code that asks for the training mode hold in that mode alone.

Cells, and torch's own modules that are one operation, run in the mode that holds when they run. Other code reads `self.training` while it is
recorded: `F.dropout(x, training=self.training)`, or a branch. Whether code reads it is seen from the names in it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any

from torch import nn

from foldloom.errors import ArgumentError
from foldloom.graph import Op
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.weights import module_of


def training_of(module: nn.Module, cells: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    """The training modes that a recording of a module depends on, by path. ``cells`` has the paths of what was recorded as one operation."""
    whole = tuple(set(cells.values()))
    found: list[tuple[str, bool]] = []
    for path, part in module.named_modules():
        is_inside = any(path == cell or path.startswith(f"{cell}.") or not cell for cell in whole)
        if not is_inside and not isinstance(part, Cell) and _reads_training(type(part)):
            found.append((path, part.training))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def _reads_training(kind: type) -> bool:
    """Whether a method of a module's class names the attribute."""
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    codes = [getattr(value, "__code__", None) for base in bases for value in vars(base).values()]
    return any("training" in names for code in codes if code is not None for names in _names_in(code))


def _names_in(code: CodeType) -> Iterable[tuple[str, ...]]:
    yield code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def check_training(ops: Iterable[Op], owner: Any) -> None:
    """Raise if a recording runs in another mode than it was made in."""
    module = module_of(owner)
    recorded = {mode for op in ops for mode in op.training}
    if module is None or not recorded:
        return
    parts = dict(module.named_modules())
    for path, training in sorted(recorded):
        part = parts.get(path)
        if part is not None and part.training is not training:
            made, now = ("train()", "eval()") if training else ("eval()", "train()")
            raise ArgumentError(
                f"{type(part).__name__}{f' at {path!r}' if path else ''} was recorded after {made} and runs after {now}, and its code reads "
                f"`training` while it is recorded. Record it again after {now}, or move what depends on the mode into a cell"
            )
