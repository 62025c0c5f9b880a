"""Results in the nesting in which examples return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from foldloom.pytrees import Template, template_of
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


class Requested(NamedTuple):
    """A result without its values, and where they will be."""

    template: Template
    places: list[Place]

    def filled(self, outputs: Sequence[Any]) -> Any:
        return self.template.filled([outputs[place.type][place.number] for place in self.places])


def requested(recorder: Recorder, result: Any) -> Requested:
    """Request all values in a result as outputs."""
    template, values = template_of(result, (Value, Rows))
    return Requested(template, [_place(recorder, value) for value in values])


def _place(recorder: Recorder, value: Value | Rows) -> Place:
    if isinstance(value, Rows):
        return Place(value.type, [recorder.add_output(row) for row in value.values])
    return Place(value.type, recorder.add_output(value))
