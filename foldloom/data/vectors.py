"""Word vectors that were trained elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from foldloom.data.reading import opened
from foldloom.data.vocabulary import Vocabulary
from foldloom.errors import DataError

Table = npt.NDArray[np.float32]


class WordVectors:
    """Words and a vector for each, from a list of words, one a line, and a numpy file with a row for each line."""

    def __init__(self, words: list[str], table: Table) -> None:
        if table.ndim != 2 or len(table) != len(words):
            raise DataError(f"expected a row for each of {len(words)} words, not a table of shape {list(table.shape)}")
        self.table = table
        self._row_of = {word: row for row, word in enumerate(words)}

    @classmethod
    def read(cls, words: str | Path, table: str | Path) -> WordVectors:
        with opened(words) as (_, lines):
            names = [line.rstrip("\r\n") for line in lines]
        return cls(names, np.load(table).astype(np.float32))

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
