"""Signals that arrive at a bad moment.

Python runs a signal's handler between any two instructions, and Ctrl-C raises KeyboardInterrupt there: for instance when torch's modes
have been taken off the stack and nobody has noted them yet. During a batch a handler that arrives while `held` is
set is called as soon as it no longer is. Only the main thread runs handlers, so in others there is nothing to do.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = [
    number
    for name in ("SIGHUP", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGINT")
    if (number := getattr(signal, name, None)) is not None
]


class Interrupts:
    """Within it, handlers of signals wait while ``held`` is true, which it is at the beginning and at the end."""

    __slots__ = ("_handlers", "held", "pending")

    def __init__(self) -> None:
        self.held = False
        self.pending: list[tuple[int, FrameType | None]] = []
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}

    def __enter__(self) -> Interrupts:
        self.held = True
        if threading.get_ident() == threading.main_thread().ident:
            try:
                for number in _SIGNALS:
                    handler = signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        signal.signal(number, self._receive)
            except BaseException:  # a handler that was not ours yet
                self._put_back(list(self._handlers))
                raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._put_back(list(self._handlers))
        finally:
            self.let_in()

    def let_in(self) -> None:
        """From here on handlers are called when they come; first those that have waited."""
        self.held = False
        while self.pending:
            number, frame = self.pending.pop(0)
            self._handlers[number](number, frame)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            self.pending.append((number, frame))
        else:
            self._handlers[number](number, frame)

    def _put_back(self, numbers: list[int]) -> None:
        """All of them, whatever the handlers that are put back raise meanwhile. One that the program has set in the batch stays."""
        if not numbers:
            return
        try:
            if signal.getsignal(numbers[0]) == self._receive:
                signal.signal(numbers[0], self._handlers[numbers[0]])
        finally:
            self._put_back(numbers[1:])
