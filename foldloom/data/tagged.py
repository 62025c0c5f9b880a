"""Sentences of ``word|TAG`` tokens, one sentence a line."""

from __future__ import annotations

from foldloom.data.reading import Reader
from foldloom.data.structures import TaggedSentence
from foldloom.errors import DataError


class TaggedReader(Reader[TaggedSentence]):
    """Words may hold the separator, tags never do.

    >>> TaggedReader().parse("either|or|CONJ way|NOUN")
    TaggedSentence(words=('either|or', 'way'), tags=('CONJ', 'NOUN'))
    """

    def parse(self, text: str) -> TaggedSentence:
        pairs = []
        # ASCII spaces alone: words may hold others.
        for token in text.split(" "):
            if not token:
                continue
            word, separator, tag = token.rpartition("|")
            if not (word and separator and tag):
                raise DataError(f"expected tokens such as word|TAG, separated by spaces, not {token[:60]!r}")
            pairs.append((word, tag))
        if not pairs:
            raise DataError("expected tokens such as word|TAG, but there are none")
        words, tags = zip(*pairs, strict=True)
        return TaggedSentence(words, tags)
