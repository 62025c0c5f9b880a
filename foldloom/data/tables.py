"""CSV files with a header: columns by name, and what to say if they have other names."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence

from foldloom.errors import DataError

_DELIMITERS = (",", ";", "\t")
_MISSING = frozenset(("", "na", "n/a", "nan", "none", "null", "-"))


class Header:
    """The first line of a table: its columns and what stands between them, a comma, a semicolon or a tab."""

    def __init__(self, text: str) -> None:
        self._delimiter = max(_DELIMITERS, key=lambda delimiter: len(_fields(text, delimiter)))
        self.columns = [name.strip() for name in _fields(text, self._delimiter)]

    def row(self, text: str) -> dict[str, str]:
        """What a line has in each column; nothing in those that it lacks."""
        fields = _fields(text, self._delimiter)
        if len(fields) > len(self.columns):
            raise DataError(f"expected {len(self.columns)} columns, as in the header, not {len(fields)}")
        return dict(zip(self.columns, [*fields, *[""] * len(self.columns)], strict=False))

    def numeric(self, text: str) -> list[str]:
        """The columns in which a line has numbers."""
        row = self.row(text)
        return [name for name in self.columns if _is_number(row[name])]


def _fields(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter), [])
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
