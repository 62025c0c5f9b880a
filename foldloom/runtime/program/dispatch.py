"""Interpreters of blocks that choose between others, and of recursion."""

from __future__ import annotations

from typing import Any

from foldloom.errors import MissingKeyError
from foldloom.runtime.program.registry import Interpreting, RecorderRun, interpreter
from foldloom.runtime.program.sequences import block_or_zeros


@interpreter("one_of")
def _one_of(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    key_of = to.block(block["key"])
    pre = None if block["pre"] is None else to.block(block["pre"])
    cases = {to.value(key): to.block(number) for key, number in block["cases"]}

    def run(recorder: Any, value: Any) -> Any:
        key = key_of(recorder, value)
        try:
            case = cases[key]
        except (KeyError, TypeError) as error:
            raise MissingKeyError(
                f"{block['says']} has no case for the key {key!r:.60}; it has {', '.join(map(repr, cases))}"
            ) from error
        return case(recorder, value if pre is None else pre(recorder, value))

    return run


@interpreter("optional")
def _optional(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    some, none = to.block(block["some"]), block_or_zeros(block, "none", to)
    return lambda recorder, value: none(recorder, None) if value is None else some(recorder, value)


@interpreter("reference")
def _reference(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """The block that it refers to may contain it, so its function is looked up at the first call."""
    target: list[RecorderRun] = []

    def run(recorder: Any, value: Any) -> Any:
        if not target:
            target.append(to.block(block["block"]))
        return target[0](recorder, value)

    return run
