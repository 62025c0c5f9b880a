"""Planning in C: `planning` is `_planning.c`, or None where it was not compiled. Then whoever uses it does the same with numpy."""

from __future__ import annotations

import numpy as np

from foldloom.graph import Ints

try:
    from foldloom.planning import _planning as planning
except ImportError:
    planning = None  # type: ignore[assignment]

__all__ = ["as_ints", "planning"]


def as_ints(column: bytearray) -> Ints:
    """What a function in C gives, as an array that shares its memory."""
    return np.frombuffer(column, np.int64)
