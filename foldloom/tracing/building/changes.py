"""Changes in place, as they are noted while recording: backward raises where somebody has saved what was changed later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from foldloom.tracing.weights import ChangeOfDerived

ANY_EXAMPLE = -1
"""Stands for an example where a tensor of the user's is changed, which may have been given to several."""


class Change(NamedTuple):
    """A value was changed in place: what it was until then, in all places where that may have been saved for backward."""

    values: tuple[int, ...]
    """Its number, or those of its rows."""
    is_ragged: bool
    time: int
    """How many values had been recorded."""
    example: int
    """Whose value it is, or `ANY_EXAMPLE`."""
    made: int
    """The value that the change made of it."""


class DerivedChange(NamedTuple):
    """An example changed in place what it had computed from weights alone."""

    change: ChangeOfDerived
    time: int
    example: int
    made: int
    """The value that the change made of it; below zero if that was computed from weights alone, too."""


class Changes:
    """Those that backward has not been told of yet."""

    __slots__ = ("of_derived", "of_values", "written")

    def __init__(self) -> None:
        self.of_values: list[Change] = []
        self.of_derived: list[DerivedChange] = []
        self.written: dict[int, int] = {}
        """By the value of a base: what a change of a view of it computed, which is in the same memory until the next change."""

    def __bool__(self) -> bool:
        return bool(self.of_values or self.of_derived)

    def note(self, change: Change) -> None:
        """A value is changed, and what was computed in its memory since its last change."""
        self.of_values.append(change)
        written = self.written.pop(change.values[0], None)
        if written is not None:
            self.of_values.append(change._replace(values=(written,), is_ragged=False))

    def clear(self) -> None:
        """Backward has been told."""
        self.of_values.clear()
        self.of_derived.clear()

    def keep(self, moved: Mapping[int, int]) -> None:
        """Of all values these are kept, under other numbers."""
        self.written = {moved[view]: moved[base] for view, base in self.written.items() if {view, base} <= moved.keys()}
