"""How much a file may take: steps of its program, depth, memory, time. Files may come from anywhere.

Steps are counted, not timed, so that what a file can do does not depend on how busy the machine is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from foldloom.errors import ArgumentError, ExportedFileError


@dataclass(frozen=True)
class Limits:
    """What a file may take. Each can be raised for a file that is known: ``Model(path, limits=Limits(steps=10**8))``.

    >>> Limits(depth=100)
    Limits(steps=1000000, depth=100, memory=536870912, nodes=60000, seconds=None)
    """

    steps: int = 1_000_000
    """Blocks that run, and parts of expressions, for one example. A list or string counts by its length."""
    depth: int = 10_000
    """Levels of recursion: of a tree, say."""
    memory: int = 1 << 29
    """Bytes of a batch's inputs, and of what the graph computes beyond its weights."""
    nodes: int = 60_000
    """Operators of the graph with what they take and give, and its weights: loading a graph takes time, too."""
    seconds: float | None = None
    """Time for the graph to run a batch; it ends with the operator that is running. By default 4, and 0.05 for each call of a cell."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise ArgumentError(f"a limit of {field.name} is a number above zero, not {value!r:.60}")


class Meter:
    """What is left of the steps for one example."""

    __slots__ = ("left", "limits")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.left = limits.steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise too_much("steps", self.limits.steps, "its program takes more than {:,} steps for one example")


def too_much(name: str, limit: float, problem: str) -> ExportedFileError:
    """The error of a limit that is reached."""
    return ExportedFileError(
        f"{problem.format(limit)}. If you know the file, raise the limit: `Model(path, limits=Limits({name}=...))`, "
        f"or `foldloom predict --limit {name}=...`"
    )


_thread = threading.local()


def current_meter() -> Meter:
    """The meter of the example that this thread is at. Functions of a file that run by themselves have one for each call."""
    meter: Meter | None = getattr(_thread, "meter", None)
    return Meter(Limits()) if meter is None else meter


@contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Within it, functions of a file count on this meter."""
    before = getattr(_thread, "meter", None)
    _thread.meter = meter
    try:
        yield
    finally:
        _thread.meter = before
