"""Planning in C: `planning` is `_planning.c`, or None where it was not compiled or `FOLDLOOM_NO_C=1` is set. Then the modules that use it
do the same with numpy."""

from __future__ import annotations

import os

import numpy as np

from foldloom.graph import Ints

try:
    if os.environ.get("FOLDLOOM_NO_C") == "1":
        raise ImportError("FOLDLOOM_NO_C is set")
    from foldloom.planning import _planning as planning
except ImportError:
    planning = None  # type: ignore[assignment]

__all__ = ["as_ints", "planning"]


def as_ints(column: bytearray) -> Ints:
    """What a function in C gives, as an array that shares its memory."""
    return np.frombuffer(column, np.int64)
