"""The one way in which files of data are opened: plain or gzipped, in UTF-8, line by line, within limits.

Whatever goes wrong, a file that is missing, forbidden, a folder, cut short, damaged, not text, or too large, is a `DataError` with the
file's name and, once it is open, the line.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from foldloom.errors import DataError

Source = str | Path | Iterable[str]
"""A path, of a plain or gzipped file, or lines: an open file, a list."""

MIB = 1 << 20
_BOM = b"\xef\xbb\xbf"
_SIGNATURES = {
    b"\x1f\x8b": "it is gzipped: give it a name that ends in .gz",
    b"\xff\xfe": "it is text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "it is text in UTF-16: save it as UTF-8",
    b"BZh": "it is packed with bzip2: unpack it",
    b"PK\x03\x04": "it is a zip file: unpack it",
    b"\xfd7zXZ": "it is packed with xz: unpack it",
}
"""What files that are no text begin with."""


@dataclass(frozen=True)
class Limits:
    """How large data may be. What is larger is refused with an error, before it takes time or memory: a small file may unpack to a huge
    one, and a line may be a whole file.

    >>> from foldloom import data
    >>> list(data.SentimentReader(["(4 " + "very " * 9 + "good)"], limits=data.Limits(line=16)))
    Traceback (most recent call last):
        ...
    foldloom.errors.DataError: input, line 1: expected lines of at most 16 bytes; to allow more: --set line_limit=MIB, or limits=Limits(line=BYTES) in Python
    """

    line: int = 16 * MIB
    """Bytes of a line, and of the lines that make one piece."""
    file: int = 1024 * MIB
    """Bytes of a file, unpacked."""
    expansion: int = 100
    """How many times as large a gzipped file may become, from a MiB on."""
    depth: int = 30_000
    """Brackets that are open at once."""


DEFAULT = Limits()
_EXPANDED = MIB
"""Smaller files may expand as they like."""
_OFTEN = MIB // 4
"""After so many bytes the size of a file is looked at again."""


@contextmanager
def opened(source: Source, limits: Limits = DEFAULT) -> Iterator[tuple[str, Iterator[str]]]:
    """The name of a source, and its lines. Bytes that are not UTF-8 are lone surrogates in them; see `check_text`."""
    if not isinstance(source, str | Path):
        yield (name := str(getattr(source, "name", "input"))), _given(source, name, limits)
        return
    with _open(Path(source)) as raw:
        packed = Path(source).suffix == ".gz"
        file: Any = gzip.GzipFile(fileobj=raw) if packed else raw
        with file:
            yield str(source), _lines(file, raw if packed else None, str(source), limits)


def _open(path: Path) -> io.BufferedReader:
    try:
        # A pipe that nobody writes to would keep us waiting, were it not for this; one that somebody writes to is waited for.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        os.set_blocking(number, True)
        return os.fdopen(number, "rb")
    except FileNotFoundError as error:
        raise DataError("expected a file, and there is none", str(path)) from error
    except IsADirectoryError as error:
        raise DataError("expected a file, not a folder", str(path)) from error
    except (OSError, ValueError) as error:
        raise DataError(f"expected a file that can be read: {_reason(error)}", _printable(path)) from error


def open_regular(path: Path) -> io.BufferedReader:
    """A file, and no pipe, which would be waited for, nor a device, which may have no end; raises OSError."""
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return os.fdopen(number, "rb")


def read_regular(path: Path, at_most: int) -> bytes:
    """All of a file of so many bytes at most; raises OSError, for a file that changes meanwhile too."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > at_most:
            raise OSError(
                errno.EFBIG, f"it has {size:,} bytes, more than the {at_most:,} that are expected at most", str(path)
            )
        data = file.read(size + 1)
    if len(data) != size:
        raise OSError(errno.EIO, "it was changed while it was read", str(path))
    return data


def _lines(file: IO[bytes], raw: IO[bytes] | None, name: str, limits: Limits) -> Iterator[str]:
    """``raw`` is what a gzipped file is unpacked from."""
    number, size, looked = 0, 0, 0
    longest = limits.line
    while True:
        number += 1
        try:
            line = file.readline(longest + 1)
        except (OSError, EOFError, zlib.error) as error:
            what = "a gzipped file that is complete" if raw is not None else "a file that can be read"
            raise DataError(f"expected {what}: {_reason(error)}", name, number) from error
        if not line:
            return
        size += len(line)
        if number == 1:
            line = _without_signature(line, name)
        if len(line) > longest or size - looked > _OFTEN or size > limits.file:
            looked = size
            problem = _too_large(len(line), size, None if raw is None else raw.tell(), limits)
            if problem is not None:
                raise DataError(problem, name, number)
        yield line.decode("utf-8", "surrogateescape")


def _given(source: Iterable[Any], name: str, limits: Limits) -> Iterator[str]:
    """Lines that somebody else opened."""
    lines = iter(source)
    number, size = 0, 0
    while True:
        number += 1
        try:
            line = next(lines, None)
        except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
            raise DataError(f"expected text in UTF-8 that can be read: {_reason(error)}", name, number) from error
        if line is None:
            return
        if isinstance(line, bytes):
            line = (_without_signature(line, name) if number == 1 else line).decode("utf-8", "surrogateescape")
        if not isinstance(line, str):
            raise DataError(f"expected lines of text, not {type(line).__name__}", name, number)
        line = line.removeprefix("\ufeff") if number == 1 else line
        size += len(line)
        problem = _too_large(len(line), size, None, limits)
        if problem is not None:
            raise DataError(problem, name, number)
        yield line


def _too_large(line: int, size: int, packed: int | None, limits: Limits) -> str | None:
    if line > limits.line:
        return f"expected lines of at most {limits.line:,} bytes{_raise('line')}"
    if size > limits.file:
        return f"expected a file of at most {limits.file:,} bytes{_raise('file')}"
    if packed is not None and size > _EXPANDED and size > limits.expansion * packed:
        return f"expected a file that unpacks to at most {limits.expansion} times its size; if it is meant, unpack it first"
    return None


def _raise(name: str) -> str:
    return f"; to allow more: --set {name}_limit=MIB, or limits=Limits({name}=BYTES) in Python"


def _without_signature(line: bytes, name: str) -> bytes:
    for signature, problem in _SIGNATURES.items():
        if line.startswith(signature):
            raise DataError(f"expected text in UTF-8, but {problem}", name, 1)
    return line.removeprefix(_BOM)


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _printable(path: Path) -> str:
    return str(path).replace("\0", "\\0")


def check_text(text: str) -> None:
    """That all of it was UTF-8; raises `DataError`, whose line counts from the first of the text."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        byte, start = ord(text[error.start]) & 0xFF, text.rfind("\n", 0, error.start) + 1
        raise DataError(
            f"expected text in UTF-8, but character {error.start - start + 1} of the line is the byte {byte:#04x}",
            line=1 + text.count("\n", 0, error.start),
        ) from error


class Piece:
    """Lines that belong together, up to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size, self._start = limit, 0, 0
        self._lines: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, number: int, text: str) -> None:
        self._size += len(text) + 1
        if self._size > self._limit:
            raise DataError(
                f"expected at most {self._limit:,} bytes in what begins in line {self._start}{_raise('line')}",
                line=number,
            )
        self._start = self._start if self._lines else number
        self._lines.append(text)

    def take(self) -> tuple[int, str]:
        """The number of its first line, from 1, and its text; what is added next is another one."""
        start, text = self._start, "\n".join(self._lines)
        self._lines, self._size = [], 0
        return start, text
