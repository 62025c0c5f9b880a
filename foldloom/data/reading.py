"""What all readers share: a file is a stream of pieces, and a piece that cannot be read says where it stands and what is wrong.

A format says two things: how lines make pieces (`pieces`), and what one piece is (`parse`). Names and lines in errors, and going on after
a malformed piece, are here; `opening` has how files are opened.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Generic, TypeVar

from foldloom.data.opening import DEFAULT, Limits, Source, check_text, opened
from foldloom.errors import DataError

Item = TypeVar("Item")
Piece = tuple[int, str]
"""The number of its first line, from 1, and its text."""


class Reader(ABC, Generic[Item]):
    """The items of a source, read as they are asked for.

    A malformed piece raises `DataError`; with ``strict=False`` it is left out, and counted in ``skipped``. What is larger than
    ``limits`` allow raises it in any case.

    >>> from foldloom import data
    >>> reader = data.SentimentReader(["(4 good)", "(4 good"], strict=False)
    >>> [tree.words for tree in reader], reader.skipped
    ([['good']], 1)
    """

    def __init__(self, source: Source = (), *, strict: bool = True, limits: Limits = DEFAULT) -> None:
        self.source, self.strict, self.limits = source, strict, limits
        self.skipped = 0
        """How many pieces were left out since the reader was made."""
        self._first_skipped: DataError | None = None

    def __iter__(self) -> Iterator[Item]:
        return self._read(self.source)

    def _read(self, source: Source) -> Iterator[Item]:
        with opened(source, self.limits) as (name, lines):
            try:
                yield from self._items(name, self.pieces(lines))
            except DataError as error:
                if error.source is not None:
                    raise
                raise DataError(error.problem, name, error.line) from error

    def _items(self, name: str, pieces: Iterable[Piece]) -> Iterator[Item]:
        for line, text in pieces:
            try:
                item = self._parsed(text)
            except DataError as error:
                located = DataError(error.problem, name, line + (error.line or 1) - 1)
                if self.strict:
                    raise located from error
                self.skipped += 1
                self._first_skipped = self._first_skipped or located
                continue
            yield item

    def notes(self, of: str) -> list[str]:
        """What to say of pieces that were left out, rows say: how many, and why the first."""
        if self._first_skipped is None:
            return []
        return [f"{self.skipped:,} {of} left out; the first: {self._first_skipped}"]

    def _parsed(self, text: str) -> Item:
        check_text(text)
        try:
            return self.parse(text)
        except RecursionError as error:
            raise DataError("expected something that is nested less deeply") from error

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        """One for each line that is not blank."""
        for number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n")
            if text.strip(" \t"):
                yield number, text

    @abstractmethod
    def parse(self, text: str) -> Item:
        """What one piece says; raises `DataError`, whose lines count from the piece's first."""


def installed(module: str, *, extra: str, to: str) -> ModuleType:
    """A module of an optional dependency."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"to {to}, {package} is needed: pip install 'foldloom[{extra}]'", name=package
        ) from error
