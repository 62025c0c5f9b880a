"""What all readers share: a file is a stream of pieces, and a piece that cannot be read says where it stands and what is wrong.

A format says two things: how lines make pieces (`pieces`), and what one piece is (`parse`). Everything else, files and open
files, compressed ones, names and lines in errors, going on after a malformed piece, is here.
"""

from __future__ import annotations

import gzip
import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Generic, TextIO, TypeVar

from foldloom.errors import DataError

Item = TypeVar("Item")
Source = str | Path | Iterable[str]
"""A path, of a plain or gzipped file, or lines: an open file, a list."""

Piece = tuple[int, str]
"""The number of its first line, from 1, and its text."""


class Reader(ABC, Generic[Item]):
    """The items of a source, read as they are asked for.

    A malformed piece raises `DataError`; with ``strict=False`` it is left out, and counted in ``skipped``.
    """

    def __init__(self, source: Source = (), *, strict: bool = True) -> None:
        self.source, self.strict = source, strict
        self.skipped = 0
        """How many pieces were left out since the reader was made."""

    def __iter__(self) -> Iterator[Item]:
        with opened(self.source) as (name, lines):
            try:
                yield from self._items(name, self.pieces(lines))
            except DataError as error:
                if error.source is not None:
                    raise
                raise DataError(error.problem, name, error.line) from error

    def _items(self, name: str, pieces: Iterable[Piece]) -> Iterator[Item]:
        for line, text in pieces:
            try:
                item = self.parse(text)
            except DataError as error:
                if self.strict:
                    raise DataError(error.problem, name, line + (error.line or 1) - 1) from error
                self.skipped += 1
                continue
            yield item

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        """One for each line that is not blank."""
        for number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n")
            if text.strip(" \t"):
                yield number, text

    @abstractmethod
    def parse(self, text: str) -> Item:
        """What one piece says; raises `DataError`, whose lines count from the piece's first."""


@contextmanager
def opened(source: Source) -> Iterator[tuple[str, Iterable[str]]]:
    """The name of a source, and its lines."""
    if not isinstance(source, str | Path):
        yield str(getattr(source, "name", "input")), source
        return
    path = Path(source)
    try:
        # Newlines stay as they are: some texts have other line separators in the middle of a word.
        with _open(path) as file:
            yield str(path), file
    except UnicodeDecodeError as error:
        raise DataError(f"expected text in UTF-8, but {error.reason} at byte {error.start}", str(path)) from error


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="\n")
    return path.open(encoding="utf-8", newline="\n")


def installed(module: str, *, extra: str, to: str) -> ModuleType:
    """A module of an optional dependency."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"to {to}, {package} is needed: pip install 'foldloom[{extra}]'", name=package
        ) from error
