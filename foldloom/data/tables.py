"""CSV files with a header: columns by name, and what to say if they have other names."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Sequence

from foldloom.data.opening import Limits, Piece
from foldloom.errors import DataError

_QUOTES = re.compile('"+')
_DELIMITERS = (",", ";", "\t")
_MISSING = frozenset(("", "na", "n/a", "nan", "none", "null", "-"))


class Header:
    """The first line of a table: its columns and what stands between them, a comma, a semicolon or a tab."""

    def __init__(self, text: str) -> None:
        self._delimiter = _delimiter_of(text)
        # Spreadsheets break long names in lines.
        self.columns = [" ".join(name.splitlines()).strip() for name in _fields(text, self._delimiter)]

    def row(self, text: str) -> dict[str, str]:
        """What a line has in each column; nothing in those that it lacks."""
        fields = _fields(text, self._delimiter)
        if len(fields) > len(self.columns):
            raise DataError(f"expected {len(self.columns)} columns, as in the header, not {len(fields)}")
        return dict(zip(self.columns, [*fields, *[""] * len(self.columns)], strict=False))

    def numeric(self, text: str) -> list[str]:
        """The columns in which a line has numbers; none, if it is malformed."""
        try:
            row = self.row(text)
        except DataError:
            return []
        return [name for name in self.columns if _is_number(row[name])]


def rows(lines: Iterable[str], limits: Limits) -> Iterator[tuple[int, str]]:
    """The header and the rows, each with the number of its first line. What stands in quotes may go on over several lines."""
    piece, begun, is_open, is_header = Piece(limits.line), 1, dict.fromkeys(_DELIMITERS, False), True
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if not any(is_open.values()):
            begun = number
            if not text.strip(" \t"):
                continue
        piece.add(number, text)
        # Before the header is known, each of them may be the delimiter.
        is_open = {delimiter: _ends_in_quotes(text, delimiter, open) for delimiter, open in is_open.items()}
        if not any(is_open.values()):
            row = piece.take()
            if is_header:
                is_open, is_header = {_delimiter_of(row[1]): False}, False
            yield row
    if any(is_open.values()):
        raise DataError("expected the double quote before a field of this row to be closed", line=begun)


def _delimiter_of(header: str) -> str:
    def count(delimiter: str) -> int:
        try:
            return len(_fields(header, delimiter))
        except DataError:  # where it would end within quotes
            return 0

    return max(_DELIMITERS, key=count)


def _ends_in_quotes(text: str, delimiter: str, is_open: bool) -> bool:
    """Whether the last field of a line goes on in the next one; ``is_open`` says so of the line before."""
    place = 0
    while True:
        if is_open:
            # Two quotes are one character of a field; what is left of an odd number of them ends it.
            ending = next((run for run in _QUOTES.finditer(text, place) if len(run[0]) % 2), None)
            if ending is None:
                return True
            place, is_open = ending.end(), False
        elif place == 0 and text.startswith('"'):
            place, is_open = 1, True
        else:
            # Quotes in a field that does not begin with one are characters of it, too.
            place = text.find(f'{delimiter}"', place) + 2
            is_open = place > 1
            if not is_open:
                return False


def _fields(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter, strict=True), [])
    except csv.Error as error:
        raise DataError(f"expected a line of a CSV file: {error}") from error


def number_in(row: dict[str, str], name: str) -> float | None:
    text = row[name].strip()
    if text.lower() in _MISSING:
        return None
    if not _is_number(text):
        raise DataError(f"expected a number or nothing in column {name!r}, not {text[:60]!r}")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def names_in(text: str) -> list[str]:
    """Names of columns with commas between them; a name that holds a comma stands in double quotes.

    >>> names_in('exp,"solubility, measured"')
    ['exp', 'solubility, measured']
    """
    return [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def written(names: Sequence[str]) -> str:
    """As `names_in` reads them.

    >>> written(["exp", "solubility, measured"])
    'exp,"solubility, measured"'
    """
    return ",".join(f'"{name}"' if "," in name or '"' in name else name for name in names)
