"""Interpreters of blocks in series, side by side, and wired to each other."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from foldloom.errors import ExportedFileError
from foldloom.runtime.program.items import getter
from foldloom.runtime.program.registry import Interpreting, Packed, Part, Parts, RecorderRun, interpreter
from foldloom.runtime.schema import Number


@interpreter("identity", {})
def _identity(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    return lambda recorder, value: value


@interpreter("pipe", {"stages": Parts})
def _pipe(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    runs = [to.block(number) for number in block["stages"]]
    if len(runs) == 2:
        first, second = runs
        return lambda recorder, value: second(recorder, first(recorder, value))

    def run(recorder: Any, value: Any) -> Any:
        for stage in runs:
            value = stage(recorder, value)
        return value

    return run


@interpreter("record", {"fields": list[tuple[Packed, Part]]})
def _record(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    fields = [(getter(block, to.value(key)), to.block(number)) for key, number in block["fields"]]
    return lambda recorder, value: tuple([run(recorder, get(value)) for get, run in fields])


@interpreter("all_of", {"blocks": Parts})
def _all_of(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    runs = [to.block(number) for number in block["blocks"]]
    return lambda recorder, value: tuple([run(recorder, value) for run in runs]) if runs else None


@interpreter("composition", {"steps": list[tuple[Part, list[Number]]], "output": list[Number]})
def _composition(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """``steps`` lists blocks in topological order, each with the values it reads: 0 is the input, n the output of step n."""
    described = block["steps"]
    for place, (_, sources) in enumerate([*described, (None, block["output"])]):
        if any(source > place for source in sources):
            raise ExportedFileError(f"{block['says']} reads what comes after it")
    steps = [(to.block(number), _reader(sources)) for number, sources in described]
    result = _reader(block["output"])

    def run(recorder: Any, value: Any) -> Any:
        values = [value]
        for compute, read in steps:
            values.append(compute(recorder, read(values)))
        return result(values)

    return run


def _reader(sources: Sequence[int]) -> Callable[[Sequence[Any]], Any]:
    if not sources:
        return lambda values: None
    return operator.itemgetter(*sources)
