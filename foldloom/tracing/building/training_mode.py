"""Recordings of code that asks for the training mode hold in that mode alone.

Cells, and torch's own modules that are one operation, run in the mode that holds when they run. Other code reads `self.training` while it is
recorded: `F.dropout(x, training=self.training)`, or a branch. Whether code reads it is seen from the names in it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Set
from types import CodeType
from typing import Any

from torch import nn

from foldloom.errors import ArgumentError
from foldloom.graph import Op
from foldloom.torch_private import Dropout
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.weights import module_of


def training_of(module: nn.Module, cells: Mapping[str, str]) -> tuple[tuple[str, bool], ...]:
    """The training modes that a recording of a module depends on, by path. ``cells`` has the paths of what was recorded as one operation."""
    parts = dict(module.named_modules())
    whole = {*cells.values(), *[path for path, part in parts.items() if isinstance(part, Cell)]}
    in_cells = {getattr(part.function, "__code__", None) for part in parts.values() if isinstance(part, Cell)}
    return tuple(
        [
            (path, part.training)
            for path, part in parts.items()
            if not _is_inside(path, whole) and not _is_idle(part) and _codes_that_ask(type(part)) - in_cells
        ]
    )


def _is_inside(path: str, whole: Set[str]) -> bool:
    names = path.split(".")
    return "" in whole or any(".".join(names[:end]) in whole for end in range(1, len(names) + 1))


def _is_idle(part: nn.Module) -> bool:
    """Whether one of torch's modules is the same in both modes."""
    if isinstance(part, nn.RNNBase):
        return not part.dropout
    return isinstance(part, Dropout) and not part.p


_codes: weakref.WeakKeyDictionary[type, frozenset[CodeType]] = weakref.WeakKeyDictionary()


def _codes_that_ask(kind: type) -> frozenset[CodeType]:
    """The methods of a module's class that name the attribute."""
    known = _codes.get(kind)
    if known is not None:
        return known
    bases = [base for base in kind.__mro__ if base not in (nn.Module, object)]
    codes = [getattr(value, "__code__", None) for base in bases for value in vars(base).values()]
    asking = [code for code in codes if code is not None and any("training" in names for names in _names_in(code))]
    _codes[kind] = frozenset(asking)
    return _codes[kind]


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
