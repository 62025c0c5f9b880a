"""Interpreters of blocks that look values up by key, position and length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foldloom.errors import MissingKeyError
from foldloom.pytrees.messages import shown
from foldloom.runtime.program.inputs import number_maker
from foldloom.runtime.program.registry import Interpreting, Packed, RecorderRun, interpreter
from foldloom.runtime.schema import Dtype


def getter(block: dict[str, Any], key: Any) -> Callable[[Any], Any]:
    """Looks a key up in a value; an error names the block."""

    def get(value: Any) -> Any:
        try:
            return value[key]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise MissingKeyError(
                f"{shown(value)} ({type(value).__name__}) has no item {shown(key)}, which {block['says']} asks for"
            ) from error

    return get


@interpreter("get_item", {"key": Packed})
def _get_item(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    get = getter(block, to.value(block["key"]))
    return lambda recorder, value: get(value)


@interpreter("nth", {})
def _nth(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    def run(recorder: Any, pair: Any) -> Any:
        sequence, position = pair
        return getter(block, position)(sequence)

    return run


@interpreter("first", {})
def _first(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """`nth` of a broadcast sequence, which is represented by its one element."""
    return lambda recorder, pair: pair[0]


@interpreter("length", {"dtype": Dtype})
def _length(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    make = number_maker(block["dtype"])
    return lambda recorder, value: make(len(value))
