"""Two threads of which one runs at a time: the lanes have a stack and a torch state of their own, and the user's thread has its own.

Fibers must find the stack below them as it was when they were started, and the modes of torch that they left. In the thread of whoever asks for the next result
neither would hold. So lanes run in a thread, and turns are handed to and fro: nothing runs at the same time, and everything happens in the
same order each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any


class Stopped(BaseException):
    """Raised in the thread when nobody wants to hear from it any more."""


def _closed() -> threading.Lock:
    """A door for one, that whoever is on the other side opens. (A semaphore takes ten times as long.)"""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Relay:
    """Runs ``work`` in a thread whenever `resume` is called, until it calls `pause`."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._mine, self._theirs = _closed(), _closed()
        self._message: Any = None
        self._is_stopping = False
        self.is_done = False
        self._is_running = False
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True)

    # ---- In the user's thread.

    def resume(self, answer: Any = None) -> Any:
        """What the thread says when it pauses next; None when it is done. ``answer`` is what its last `pause` returns."""
        if self.is_done:
            return None
        if not self._is_running:
            self._message = answer
            self._go_on()
        self._theirs.acquire()  # an interrupt may come here: then the thread is still running
        self._is_running = False
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return None if self.is_done else self._message

    def stop(self) -> None:
        """Have the thread end where it is. Returns when it has."""
        self._is_stopping = True
        if self.is_done or self._thread.ident is None:
            self.is_done = True
            return
        if self._is_running:  # whoever asked was interrupted
            self._theirs.acquire()
        if not self.is_done:
            self._go_on()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self.is_done = True

    def _go_on(self) -> None:
        self._is_running = True
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._mine.release()

    # ---- In the thread.

    def pause(self, message: Any) -> Any:
        """Say something, and return what is answered."""
        self.check()
        self._message = message
        self._theirs.release()
        self._mine.acquire()
        self.check()
        answer, self._message = self._message, None
        return answer

    def check(self) -> None:
        if self._is_stopping:
            raise Stopped

    def _run(self) -> None:
        try:
            self._work()
        except Stopped:  # the other side has asked for it: that is no error
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.is_done = True
            self._theirs.release()
