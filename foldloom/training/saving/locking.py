"""One training at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from foldloom.errors import RunError
from foldloom.training.saving import durable

NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process trains in the folder. The operating system unlocks it if this one dies."""
    durable.make_folder(folder)
    with durable.told("write", folder / NAME):
        lock = FileLock(folder / NAME)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise RunError(
                f"another process trains in {folder} just now: wait for it, or give another folder"
            ) from error
    try:
        yield
    finally:
        lock.release()
