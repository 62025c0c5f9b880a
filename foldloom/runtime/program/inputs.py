"""Interpreters of blocks from Python objects to tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from foldloom.errors import BlockInputError, MissingKeyError
from foldloom.runtime.description import Array
from foldloom.runtime.program.registry import Interpreting, RecorderRun, interpreter


@interpreter("tensor")
def _tensor(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    shape, dtype = tuple(block["shape"]), block["dtype"]
    make = number_maker(dtype) if not shape else lambda value: _array(value, shape, dtype)

    def run(recorder: Any, value: Any) -> Any:
        try:
            return make(value)
        except (TypeError, ValueError, OverflowError) as error:
            wanted = f"{dtype}{list(shape)}"
            raise BlockInputError(
                f"{block['says']} was given {value!r:.60} ({type(value).__name__}), of which it cannot make {wanted}"
            ) from error

    return run


def number_maker(dtype: str) -> Callable[[Any], Any]:
    """Converts a number to a dtype."""
    if dtype == "int64":
        return operator.index
    kind = np.dtype(dtype).type
    return lambda value: kind(float(value) if dtype.startswith("float") else value)


def _array(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.shape != shape:
        raise ValueError(f"shape {list(array.shape)}")
    return array.astype(dtype)


@interpreter("transform")
def _transform(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    function = to.value(block["function"])
    return lambda recorder, value: function(value)


@interpreter("one_hot")
def _one_hot(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    elements = to.value(block["elements"])
    rows = dict(zip(elements, np.eye(len(elements), dtype=block["dtype"]), strict=True))
    zeros = None if block["strict"] else np.zeros(len(elements), block["dtype"])

    def run(recorder: Any, value: Any) -> Any:
        row = rows.get(value, zeros)
        if row is None:
            raise MissingKeyError(f"{block['says']} was given {value!r:.60}, which is none of its {len(rows)} elements")
        return recorder.shared_value(row, block["says"])

    return run
