"""The examples of a recorder in fibers: who waits for a value pauses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from foldloom.errors import CellError
from foldloom.execution.interrupts import Interrupts
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.recording.recorder import Recorder

Advance = Callable[[set[Hashable]], Iterable[tuple[int, BaseException]]]


def fibers_of(recorder: Recorder, function: Callable[..., Any], interrupts: Interrupts, advance: Advance) -> Fibers:
    """Fibers for examples that are recorded; ``advance`` flushes what they wait for."""
    fibers = Fibers(advance, noun="example", function=function, interrupts=interrupts)
    recorder.flushes.on_demand = fibers.park
    fibers.settled = recorder.settled
    fibers.can_go_on = lambda: not recorder.flushes.has_failed
    fibers.is_of_later = _is_of_later
    recorder.fibers = recorder.outside.fibers = fibers
    return fibers


def _is_of_later(error: BaseException, example: int) -> bool:
    return isinstance(error, CellError) and error.example is not None and error.example > example
