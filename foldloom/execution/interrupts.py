"""Signals that arrive at a bad moment.

Python runs a signal's handler between any two instructions, and Ctrl-C raises KeyboardInterrupt there: for instance when torch's modes
have been taken off the stack and nobody has noted them yet, or at the first instruction of an `__exit__`. During a batch handlers are
called only while the user's function runs, and at places that ask for it (`check_interrupts`). Only the main thread runs
handlers, so in others there is nothing to do.
"""

from __future__ import annotations

import signal as signals
import threading
from _signal import getsignal, signal  # type: ignore[import-not-found]  # in C: nothing can happen inside
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = [
    getattr(signals, name)
    for name in ("SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGINT")
    if hasattr(signals, name)
]

pending: list[tuple[Callable[[int, FrameType | None], Any], int, FrameType | None]] = []
"""Handlers that wait to be called."""


def check_interrupts() -> None:
    """Call the handlers that wait, if there are any. What they raise is raised here."""
    if threading.get_ident() == threading.main_thread().ident:
        while pending:
            handler, number, frame = pending.pop(0)
            handler(number, frame)


class Interrupts:
    """Within it, handlers of signals wait while ``held`` is true, which it is at the beginning."""

    __slots__ = ("_handlers", "held")

    def __init__(self) -> None:
        self.held = False
        self._handlers: list[tuple[int, Callable[[int, FrameType | None], Any]]] = []

    def __enter__(self) -> Interrupts:
        self.held = True
        if threading.get_ident() == threading.main_thread().ident:
            try:
                for number in _SIGNALS:
                    handler = getsignal(number)
                    if callable(handler):
                        self._handlers.append((number, handler))
                        signal(number, self._receive)
            except BaseException:  # a handler that was not ours yet
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        # A handler that the program has set meanwhile stays.
        try:
            for number, handler in self._handlers:
                if getsignal(number) == self._receive:
                    signal(number, handler)
        except BaseException:  # one that has just been put back
            for number, handler in self._handlers:
                if getsignal(number) == self._receive:
                    signal(number, handler)
            raise
        self.held = False
        if pending:
            check_interrupts()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        handler = next(handler for known, handler in self._handlers if known == number)
        if self.held:
            pending.append((handler, number, frame))
        else:
            handler(number, frame)
