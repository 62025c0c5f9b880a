"""Names and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from foldloom.errors import DataError


class Vocabulary:
    """Numbers for names, from 0 on; with ``unknown`` number 0 stands for whatever name it does not have.

    >>> words = Vocabulary.of("a rose is a rose".split(), at_least=2, unknown=True)
    >>> words["rose"], words["is"], len(words)
    (2, 0, 3)
    >>> words.names
    ['<unknown>', 'a', 'rose']
    """

    UNKNOWN = "<unknown>"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        """What a configuration keeps: ``Vocabulary(names)`` is the same again."""
        self._number_of = {name: number for number, name in enumerate(self.names)}
        if len(self._number_of) != len(self.names):
            raise DataError("expected every name of a vocabulary once")

    @classmethod
    def of(cls, names: Iterable[str], *, at_least: int = 1, unknown: bool = False) -> Vocabulary:
        """The names that come so often at least, the most frequent ones first."""
        counts = Counter(names).most_common()
        return cls([*([cls.UNKNOWN] if unknown else []), *[name for name, count in counts if count >= at_least]])

    @property
    def has_unknown(self) -> bool:
        return self.names[:1] == [self.UNKNOWN]

    def __getitem__(self, name: str) -> int:
        number = self._number_of.get(name, 0 if self.has_unknown else None)
        if number is None:
            raise DataError(f"expected one of the {len(self)} names of the vocabulary, not {name!r}")
        return number

    def get(self, name: str) -> int | None:
        """None for a name that it does not have, even if a number stands for those."""
        return self._number_of.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._number_of

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __repr__(self) -> str:
        return f"Vocabulary of {len(self)}: {', '.join(self.names[:5])}, ..."
