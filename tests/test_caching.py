"""Properties that are computed once."""

from __future__ import annotations

import threading

from foldloom.caching import cached_property


class Slow:
    def __init__(self, may_go_on: threading.Event | None) -> None:
        self._may_go_on = may_go_on
        self.begun = threading.Event()
        self.count = 0

    @cached_property
    def value(self) -> int:
        """Of what is slow."""
        self.count += 1
        self.begun.set()
        if self._may_go_on is not None:
            self._may_go_on.wait()
        return self.count


def test_they_are_computed_once() -> None:
    slow = Slow(None)
    assert (slow.value, slow.value, slow.count) == (1, 1, 1)
    assert Slow.value.__doc__ == "Of what is slow."


def test_one_object_does_not_wait_for_another() -> None:
    """As a child of a fork would, for ever, if its parent was computing one."""
    may_go_on = threading.Event()
    held, free = Slow(may_go_on), Slow(None)
    thread = threading.Thread(target=lambda: held.value)
    thread.start()
    held.begun.wait()
    other = threading.Thread(target=lambda: free.value, daemon=True)
    other.start()
    other.join(20)
    is_done = not other.is_alive()
    may_go_on.set()
    thread.join()
    assert is_done
    assert (held.value, free.value) == (1, 1)
