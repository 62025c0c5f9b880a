"""Interpreters of blocks that choose between others, and of recursion."""

from __future__ import annotations

from typing import Any

from foldloom.errors import MissingKeyError
from foldloom.pytrees.messages import shown
from foldloom.runtime.plain import look_through
from foldloom.runtime.program.registry import (
    Constant,
    Interpreting,
    OptionalPart,
    Packed,
    Part,
    RecorderRun,
    interpreter,
)
from foldloom.runtime.program.sequences import block_or_zeros


@interpreter("one_of", {"key": Part, "pre": OptionalPart, "cases": list[tuple[Packed, Part]]})
def _one_of(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    key_of = to.block(block["key"])
    pre = None if block["pre"] is None else to.block(block["pre"])
    cases = {to.value(key): to.block(number) for key, number in block["cases"]}

    def run(recorder: Any, value: Any) -> Any:
        key = key_of(recorder, value)
        try:
            if recorder is not None and key.__class__ is tuple:
                look_through(recorder.meter, key)
            case = cases[key]
        except (KeyError, TypeError, ValueError) as error:
            raise MissingKeyError(
                f"{block['says']} has no case for the key {shown(key)}; it has {', '.join([shown(case) for case in list(cases)[:20]])}"
            ) from error
        return case(recorder, value if pre is None else pre(recorder, value))

    return run


@interpreter("optional", {"some": Part, "none": OptionalPart, "zeros": Constant})
def _optional(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    some, none = to.block(block["some"]), block_or_zeros(block, "none", to)
    return lambda recorder, value: none(recorder, None) if value is None else some(recorder, value)


@interpreter("reference", {"block": Part})
def _reference(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """The block that it refers to may contain it, so its function is looked up at the first call."""
    target: list[RecorderRun] = []

    def run(recorder: Any, value: Any) -> Any:
        if not target:
            target.append(to.block(block["block"]))
        return target[0](recorder, value) if recorder is None else recorder.deeper(target[0], value)

    return run
