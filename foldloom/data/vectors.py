"""Word vectors that were trained elsewhere."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt

from foldloom.data.opening import DEFAULT, Limits, check_text, opened, read_regular
from foldloom.data.vocabulary import Vocabulary
from foldloom.errors import DataError

Table = npt.NDArray[np.float32]


class WordVectors:
    """Words and a vector for each, from a list of words, one a line, and a numpy file with a row for each line.

    >>> import numpy as np
    >>> from foldloom import data
    >>> vectors = data.WordVectors(["good", "bad"], np.array([[1.0, 0.0], [0.0, 1.0]], np.float32))
    >>> vectors.size, vectors.row("Bad"), vectors.row("unknown")
    (2, 1, None)
    """

    def __init__(self, words: list[str], table: Table) -> None:
        if table.ndim != 2 or len(table) != len(words):
            raise DataError(f"expected a row for each of {len(words)} words, not a table of shape {list(table.shape)}")
        self.table = table
        self._row_of = {word: row for row, word in enumerate(words)}

    @classmethod
    def read(cls, words: str | Path, table: str | Path, limits: Limits = DEFAULT) -> WordVectors:
        with opened(words, limits) as (name, lines):
            names = []
            for number, line in enumerate(lines, 1):
                try:
                    check_text(line)
                except DataError as error:
                    raise DataError(error.problem, name, number) from error
                names.append(line.rstrip("\r\n"))
        return cls(names, _table_in(Path(table), len(names), limits))

    @property
    def size(self) -> int:
        return int(self.table.shape[1])

    def row(self, word: str) -> int | None:
        """As it is written, or else in lower case."""
        return self._row_of.get(word, self._row_of.get(word.lower()))

    def for_vocabulary(self, vocabulary: Vocabulary, *, spread: float = 0.05, seed: int = 0) -> Table:
        """A row for each name: its vector if it has one, else small random numbers."""
        source = np.random.default_rng(seed)
        table = source.uniform(-spread, spread, (len(vocabulary), self.size)).astype(np.float32)
        rows = [(number, self.row(name)) for number, name in enumerate(vocabulary)]
        known = [(number, row) for number, row in rows if row is not None]
        if known:
            numbers, found = map(list, zip(*known, strict=True))
            table[numbers] = self.table[found]
        return table


def _table_in(path: Path, rows: int, limits: Limits) -> Table:
    """Arrays of Python objects are refused by numpy."""
    try:
        data = read_regular(path, limits.file)
        if not data.startswith(b"\x93NUMPY"):
            raise DataError("expected a table in numpy's format, .npy", str(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what numpy thinks of a header that it reads all the same
            table = np.load(io.BytesIO(data), allow_pickle=False)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"expected a table in numpy's format, .npy: {error.strerror or error}", str(path)) from error
    except Exception as error:  # a header is read by Python's tokenizer and parser, and raises what they do
        raise DataError(f"expected a table in numpy's format, .npy: {error}", str(path)) from error
    if table.ndim != 2 or len(table) != rows or table.dtype.kind != "f":
        raise DataError(
            f"expected a row of numbers for each of {rows:,} words, not {table.dtype} of shape {list(table.shape)}",
            str(path),
        )
    numbers = np.array(table, np.float32)
    if not np.isfinite(numbers).all():
        raise DataError("expected numbers, but some are infinite or none", str(path))
    return numbers
