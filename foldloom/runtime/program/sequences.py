"""Interpreters of blocks over sequences."""

from __future__ import annotations

import itertools
from typing import Any

from foldloom.runtime.program.registry import Constant, Interpreting, OptionalPart, Part, RecorderRun, interpreter
from foldloom.runtime.schema import Number


@interpreter("map", {"element": Part})
def _map(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    each = to.block(block["element"])
    return lambda recorder, values: [each(recorder, value) for value in values]


@interpreter("zip", {"endless": list[bool]})
def _zip(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """``endless`` tells which sequences are broadcast. It is empty for a Python object, which may have any number of sequences."""
    endless = block["endless"]
    if endless and all(endless):
        return lambda recorder, values: tuple(values)
    if not any(endless):
        return lambda recorder, sequences: list(zip(*sequences, strict=False))

    def run(recorder: Any, values: Any) -> Any:
        sequences = [itertools.repeat(value) if ends else value for value, ends in zip(values, endless, strict=True)]
        return list(zip(*sequences, strict=False))

    return run


@interpreter("ngrams", {"n": Number})
def _ngrams(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    n = max(1, block["n"])

    def run(recorder: Any, values: Any) -> Any:
        count = max(0, len(values) - n + 1)
        if count == 0:
            return []
        if recorder is not None:
            recorder.meter.spend(n * count)
        return list(zip(*[values[start : start + count] for start in range(n)], strict=True))

    return run


@interpreter("fold", {"combine": Part, "start": Part})
def _fold(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    combine, start = to.block(block["combine"]), to.block(block["start"])

    def run(recorder: Any, values: Any) -> Any:
        state = start(recorder, None)
        for value in values:
            state = combine(recorder, (state, value))
        return state

    return run


@interpreter("reduce", {"combine": Part, "default": OptionalPart, "zeros": Constant})
def _reduce(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    """Combines neighbours level by level, so that the depth is the logarithm of the length. An odd last one moves up unchanged."""
    combine, default = to.block(block["combine"]), block_or_zeros(block, "default", to)

    def run(recorder: Any, values: Any) -> Any:
        if not values:
            return default(recorder, None)
        level = values
        while len(level) > 1:
            pairs = [combine(recorder, pair) for pair in zip(level[::2], level[1::2], strict=False)]
            level = [*pairs, level[-1]] if len(level) % 2 else pairs
        return level[0]

    return run


@interpreter("rnn", {"rnn_cell": Part, "initial": OptionalPart, "zeros": Constant, "from_input": bool})
def _rnn(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    cell = to.block(block["rnn_cell"])
    initial = None if block["from_input"] else block_or_zeros(block, "initial", to)

    def run(recorder: Any, value: Any) -> Any:
        values, state = value if initial is None else (value, initial(recorder, None))
        outputs = []
        for element in values:
            output, state = cell(recorder, (element, state))
            outputs.append(output)
        return outputs, state

    return run


def block_or_zeros(block: dict[str, Any], part: str, to: Interpreting) -> RecorderRun:
    """A part that takes no input, or zeros if there is no such part."""
    return to.constant(block["zeros"], block["says"]) if block[part] is None else to.block(block[part])
