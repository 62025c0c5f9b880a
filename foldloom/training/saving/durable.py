"""Files that outlast a power cut.

A disk may keep a new name and lose what was written under it, unless it was told to keep both. So a file is written beside its place and
synced, then it takes its place, then the folder is synced. Whoever is cut off on the way leaves the old file. Everything in the folder of
a training is written by the functions here.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foldloom.data.opening import read_regular
from foldloom.errors import RunError

UNFINISHED = ".new"
"""What ends the name of something that is not complete. Whoever wrote it was cut off, and it may go."""

_ADVICE = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EROFS: "give another folder, --folder FOLDER",
    errno.EACCES: "give another folder, --folder FOLDER",
    errno.EPERM: "give another folder, --folder FOLDER",
    errno.ENOTDIR: "a file stands where a folder is needed; give another folder, --folder FOLDER",
    errno.EEXIST: "a file stands where a folder is needed; give another folder, --folder FOLDER",
}


@contextmanager
def told(doing: str, path: Path) -> Iterator[None]:
    """What the operating system refuses is said in a line: ``doing`` is ``"write"``, say."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0) if doing == "write" else None
        said = f"cannot {doing} {path}: {error.strerror or error}"
        raise RunError(f"{said} ({advice})" if advice else said) from error


def write(path: Path, data: bytes) -> None:
    """A file in the place of the one that was there, if any."""
    written = path.with_name(f".{path.name}{UNFINISHED}")
    with told("write", path):
        try:
            _write_and_sync(written, data)
            os.replace(written, path)
        except OSError:
            written.unlink(missing_ok=True)  # half a file on a full disk does nobody any good
            raise
        sync_folder(path.parent)


def write_within(folder: Path, files: dict[str, bytes]) -> None:
    """Files of a new folder, which is synced."""
    for name, data in files.items():
        with told("write", folder / name):
            _write_and_sync(folder / name, data)
    with told("write", folder):
        sync_folder(folder)


def _write_and_sync(path: Path, data: bytes) -> None:
    """As a new file. What has its name, left by somebody who was cut off or put there by a stranger, goes: nothing is written through links."""
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
    with os.fdopen(number, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """With those above it, as far as they are missing."""
    with told("write", path):
        _make_folder(path)


def make_folder_within(folder: Path, name: str) -> Path:
    """A folder in that of a training, which may be a stranger's: where it leads to is written, and files are removed there."""
    path = folder / name
    if path.is_symlink():
        raise RunError(
            f"{path} is a link to elsewhere, and nothing is written through links: put a folder in its place"
        )
    make_folder(path)
    return path


def _make_folder(path: Path) -> None:
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def put_in_place(folder: Path, place: Path) -> None:
    """A folder that is complete takes its name."""
    with told("write", place):
        folder.rename(place)
        sync_folder(place.parent)


def remove_folder(path: Path) -> None:
    """It loses its name first: half of it must not be taken for the whole."""
    with told("remove", path):
        if not path.name.endswith(UNFINISHED):
            path = path.rename(path.with_name(f"{path.name}.old{UNFINISHED}"))
        shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read(path: Path, at_most: int) -> bytes:
    """All of a file, which must be one of so many bytes at most."""
    with told("read", path):
        return read_regular(path, at_most)
