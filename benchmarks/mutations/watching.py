"""What a file must not make a process do, seen by the interpreter's own audit events."""

from __future__ import annotations

import os
import sys
from typing import Any

_FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill", "os.remove", "os.rename", "os.rmdir", "os.mkdir",
    "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown", "os.putenv", "os.startfile", "shutil.", "subprocess.", "pty.", "socket.",
    "ctypes.", "pickle.find_class", "code.__new__", "urllib.", "ftplib.", "smtplib.", "webbrowser.",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Notes forbidden events while it is on. A hook cannot be taken off again, so there is one for each process."""

    def __init__(self, also_allowed: tuple[str, ...] = ()) -> None:
        self.is_on = False
        self.seen: list[str] = []
        self._forbidden = tuple([event for event in _FORBIDDEN if event not in also_allowed])
        self._may_write = "open" in also_allowed
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "code.__new__" and _is_of_a_program():
            return
        if event.startswith(self._forbidden) or self._writes(event, arguments) or _runs_text(event, arguments):
            self.seen.append(f"{event} {arguments!r:.100}")

    def _writes(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event != "open" or self._may_write or str(arguments[0]) == os.devnull:
            return False
        return bool(arguments[2] & _WRITING)


def _is_of_a_program() -> bool:
    """Whether code is made of a program's own functions, which automatic cells divide in segments."""
    frame: Any = sys._getframe(2)
    return str(frame.f_globals.get("__name__", "")).startswith("foldloom.tracing.automatic.")


def _runs_text(event: str, arguments: tuple[Any, ...]) -> bool:
    """Code that comes from no file."""
    return event == "exec" and getattr(arguments[0], "co_filename", "").startswith("<") and not _is_frozen(arguments[0])


def _is_frozen(code: Any) -> bool:
    return str(code.co_filename).startswith("<frozen")
