"""Interpreters of blocks from Python objects to tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from foldloom.errors import BlockInputError, ExportedFileError, MissingKeyError
from foldloom.pytrees.messages import shown
from foldloom.runtime.description import Array
from foldloom.runtime.plain import look_through
from foldloom.runtime.program.registry import Interpreting, Packed, RecorderRun, interpreter
from foldloom.runtime.schema import Dtype, Shape


@interpreter("tensor", {"shape": Shape, "dtype": Dtype})
def _tensor(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    shape, dtype = tuple(block["shape"]), block["dtype"]
    make = number_maker(dtype) if not shape else lambda value: _array(value, shape, dtype)
    steps = math.prod(shape) // 16

    def run(recorder: Any, value: Any) -> Any:
        if recorder is not None:
            recorder.meter.spend(steps)
        try:
            return make(value)
        except (TypeError, ValueError, OverflowError) as error:
            wanted = f"{dtype}{list(shape)}"
            raise BlockInputError(
                f"{block['says']} was given {shown(value)} ({type(value).__name__}), of which it cannot make {wanted}"
            ) from error

    return run


def number_maker(dtype: str) -> Callable[[Any], Any]:
    """Converts a number to a dtype."""
    if dtype == "int64":
        return operator.index
    kind = np.dtype(dtype).type
    return lambda value: kind(float(value) if dtype.startswith("float") else value)


def _array(value: Any, shape: tuple[int, ...], dtype: str) -> Array:
    if isinstance(value, (list, tuple)) and not _has_shape(value, shape):
        raise ValueError("another shape")
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.shape != shape:
        raise ValueError(f"shape {list(array.shape)}")
    return array.astype(dtype)


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    """Looked at before an array is made: lists whose parts stand in many places may be larger than memory."""
    if not isinstance(value, (list, tuple)):
        return bool(np.shape(value) == shape)
    return bool(shape) and len(value) == shape[0] and all(_has_shape(part, shape[1:]) for part in value)


@interpreter("transform", {"function": Packed})
def _transform(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    function = to.value(block["function"])
    if not callable(function):
        raise ExportedFileError(f"{block['says']} transforms by {shown(function)}, which is no function")
    return lambda recorder, value: function(value)


@interpreter("one_hot", {"elements": Packed, "dtype": Dtype, "strict": bool})
def _one_hot(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    elements = to.value(block["elements"])
    if not isinstance(elements, (list, tuple)):
        raise ExportedFileError(f"{block['says']} has {shown(elements)} for elements, which is no list")
    places = {element: place for place, element in enumerate(elements)}
    rows: dict[int | None, Array] = {} if block["strict"] else {None: np.zeros(len(elements), block["dtype"])}

    def row_of(place: int | None) -> Array | None:
        """Made when it is asked for: all of them would be as many numbers as the square of the elements."""
        if place is not None and place not in rows:
            rows[place] = np.zeros(len(elements), block["dtype"])
            rows[place][place] = 1
        return rows.get(place)

    def run(recorder: Any, value: Any) -> Any:
        if recorder is not None and value.__class__ is tuple:
            look_through(recorder.meter, value)
        row = row_of(places.get(value))
        if row is None:
            raise MissingKeyError(
                f"{block['says']} was given {shown(value)}, which is none of its {len(places)} elements"
            )
        return recorder.shared_value(row, block["says"])

    return run
