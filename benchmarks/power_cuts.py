"""What a disk holds after a power cut, simulated: everything since the last `fsync` is lost.

While a training runs in this process, `Disk` watches what it writes below a folder. A file keeps what it held when it was last synced, and a
folder the names that it had when it was last synced. `Disk.left` writes down what would be left if the power went now, in two ways: names
that were not synced are lost, or they are kept and the files under them are empty, as file systems do that write names first.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRITES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate")
"""Audit events of Python that come before something is changed."""

_watchers: list[Callable[[], None]] = []
_hooked = False


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._held: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._kept_open: list[int] = []

    def sync(self, number: int) -> None:
        status = os.fstat(number)
        # A number of a file that was removed would be given to another one, if nobody had it open.
        self._kept_open.append(os.dup(number))
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(number)}
        else:
            self._held[status.st_ino] = Path(f"/proc/self/fd/{number}").read_bytes()

    def left(self, target: Path, *, names_first: bool) -> None:
        """Written to a new folder."""
        kinds = {path.stat().st_ino: path.is_dir() for path in (self.folder, *self.folder.rglob("*"))}
        self._leave(self.folder.stat().st_ino, self.folder if names_first else None, kinds, target)

    def _leave(self, number: int, now: Path | None, kinds: dict[int, bool], target: Path) -> None:
        target.mkdir(parents=True)
        entries = {entry.name: entry.inode() for entry in os.scandir(now)} if now else self._names.get(number, {})
        for name, held in entries.items():
            if kinds.get(held, held in self._names):
                self._leave(held, now / name if now else None, kinds, target / name)
            else:
                (target / name).write_bytes(self._held.get(held, b""))

    def close(self) -> None:
        for number in self._kept_open:
            os.close(number)


@contextmanager
def before_each_change(watch: Callable[[], None]) -> Iterator[None]:
    """Call something before each change of files, by whatever means of Python's, and before each sync."""
    global _hooked
    if not _hooked:
        sys.addaudithook(_heard)  # for good: hooks cannot be taken off
        _hooked = True
    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watchers or event not in WRITES:
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        return
    watchers = _watchers[:]
    _watchers.clear()  # what they do themselves is not watched
    try:
        for watch in watchers:
            watch()
    finally:
        _watchers.extend(watchers)


@contextmanager
def watched(disk: Disk) -> Iterator[None]:
    """Each sync is told to the disk."""
    system: Any = os
    original = os.fsync

    def fsync(file: Any) -> None:
        number = file if isinstance(file, int) else file.fileno()
        for watch in _watchers[:]:
            watch()
        original(number)
        disk.sync(number)

    system.fsync = fsync
    try:
        yield
    finally:
        system.fsync = original
