"""Results in the nesting in which examples return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foldloom.graph.recording import map_items
from foldloom.runtime.recorder import Recorder, Value


class Rows:
    """An array in a result whose rows are values of one type."""

    __slots__ = ("type", "values")

    def __init__(self, type: int, values: Sequence[Value]) -> None:
        self.type, self.values = type, values


class Place:
    """The position of a value in the outputs of its type, or the positions of the rows of an array."""

    __slots__ = ("number", "type")

    def __init__(self, type: int, number: int | list[int]) -> None:
        self.type, self.number = type, number


def requested(recorder: Recorder, result: Any) -> Any:
    """Request all values in a result as outputs; returns the result with places instead of values."""
    if isinstance(result, Value):
        return Place(result.type, recorder.add_output(result))
    if isinstance(result, Rows):
        return Place(result.type, [recorder.add_output(value) for value in result.values])
    return map_items(result, lambda item: requested(recorder, item))


def filled(template: Any, outputs: Sequence[Any]) -> Any:
    if isinstance(template, Place):
        return outputs[template.type][template.number]
    return map_items(template, lambda item: filled(item, outputs))
