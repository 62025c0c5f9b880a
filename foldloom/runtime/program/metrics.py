"""Interpreters of blocks that collect metrics or drop values."""

from __future__ import annotations

from typing import Any

from foldloom.runtime.program.registry import Interpreting, RecorderRun, interpreter
from foldloom.runtime.schema import Name


@interpreter("metric", {"name": Name, "labelled": bool})
def _metric(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    name, labelled = block["name"], block["labelled"]

    def run(recorder: Any, value: Any) -> None:
        row, label = value if labelled else (value, None)
        made = recorder.value_of(row, block["says"])
        recorder.metrics[name].append((made, label) if labelled else made)

    return run


@interpreter("void", {})
def _void(block: dict[str, Any], to: Interpreting) -> RecorderRun:
    return lambda recorder, _: None
