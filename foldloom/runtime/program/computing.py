"""Interpreters of blocks that call cells, and of constants."""

from __future__ import annotations

from typing import Any

from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown
from foldloom.runtime.program.registry import CellName, Constant, Interpreting, RecorderRun, interpreter


@interpreter("function", {"cell": CellName, "takes": list[Any] | None, "nested": bool})
def _function(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """``takes`` is None for one tensor, else the nesting of the tuple. ``nested`` cells get the tuples, others their leaves."""
    cell = to.cell(block["cell"])
    takes = block["takes"]
    if not _is_nesting(takes):
        raise ExportedFileError(f"{block['says']} takes {shown(takes)}, which is no nesting of tensors")
    if block["nested"]:
        return lambda recorder, values: cell.called_with(recorder, values if takes else (values,), {})
    if takes is None:
        return lambda recorder, value: cell.called(recorder, (value,))
    if all(part is None for part in takes):
        return lambda recorder, values: cell.called(recorder, values)
    return lambda recorder, values: cell.called(recorder, _flat(takes, values))


def _is_nesting(takes: Any) -> bool:
    """Lists of lists, with None for each tensor."""
    return takes is None or (isinstance(takes, (list, tuple)) and all(map(_is_nesting, takes)))


def _flat(takes: Any, values: Any) -> list[Any]:
    parts: list[Any] = []
    for inner, value in zip(takes, values, strict=True):
        if inner is None:
            parts.append(value)
        else:
            parts += _flat(inner, value)
    return parts


@interpreter("stack", {"cell": CellName, "none": Constant})
def _stack(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    cell = to.cell(block["cell"])
    none = to.constant(block["none"], block["says"])
    return lambda recorder, values: cell.called(recorder, values) if values else none(recorder, None)


@interpreter("learned", {"cell": CellName})
def _learned(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """A weight as a value. Its cell returns it for every call; the argument only counts the calls."""
    cell = to.cell(block["cell"])
    return lambda recorder, _: cell.called(recorder, (0,))


@interpreter("constant", {"value": Constant})
def _constant(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    return to.constant(block["value"], block["says"])
