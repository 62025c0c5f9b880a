"""The garbage collector, at rest.

Recording and running make many objects that all stay alive for a while. The collector walks them again and again, which costs
more than making them, and finds nothing.
"""

from __future__ import annotations

import gc


class gc_paused:  # noqa: N801 (used like a function)
    """A class, because entering a generator takes several times as long, and small examples are recorded in microseconds."""

    __slots__ = ("_was_enabled",)

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()
