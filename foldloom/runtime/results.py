"""Results in the nesting in which examples gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foldloom.runtime.recorder import Recorder, Value


class Place:
    """Where in the outputs of its type a value will be."""

    __slots__ = ("number", "type")

    def __init__(self, type: int, number: int) -> None:
        self.type, self.number = type, number


def asked_for(recorder: Recorder, result: Any) -> Any:
    """A result with places instead of values."""
    if isinstance(result, Value):
        return Place(*recorder.add_output(result))
    if isinstance(result, dict):
        return {key: asked_for(recorder, item) for key, item in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)([asked_for(recorder, item) for item in result])
    return result


def filled(template: Any, outputs: Sequence[Any]) -> Any:
    if isinstance(template, Place):
        return outputs[template.type][template.number]
    if isinstance(template, dict):
        return {key: filled(item, outputs) for key, item in template.items()}
    if isinstance(template, (list, tuple)):
        return type(template)([filled(item, outputs) for item in template])
    return template
