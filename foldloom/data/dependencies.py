"""Sentences with their dependency trees, in the CoNLL-U format of Universal Dependencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from foldloom.data import opening
from foldloom.data.reading import Piece, Reader, installed
from foldloom.data.structures import ParsedSentence
from foldloom.errors import DataError


class ConlluReader(Reader[ParsedSentence]):
    r"""The syntactic words of each sentence, with their universal tags.

    Spellings of several words (``3-4``) and words that are not written (``5.1``) are no syntactic words.

    >>> from foldloom import data
    >>> lines = ["1\tIt\t_\tPRON\t_\t_\t2\tnsubj\t_\t_", "2\tworks\t_\tVERB\t_\t_\t0\troot\t_\t_"]
    >>> next(iter(data.ConlluReader(lines)))
    ParsedSentence(words=('It', 'works'), tags=('PRON', 'VERB'), heads=(1, -1), relations=('nsubj', 'root'))
    """

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        """A sentence is what stands between blank lines."""
        piece = opening.Piece(self.limits.line)
        for number, line in enumerate(lines, 1):
            text = line.rstrip("\r\n")
            if text:
                piece.add(number, text)
            elif piece:
                yield piece.take()
        if piece:
            yield piece.take()

    def parse(self, text: str) -> ParsedSentence:
        rows = [(number, row) for number, row in _rows(text) if isinstance(row["id"], int)]
        if not rows:
            raise DataError(
                "expected a word of the sentence, but there are only spellings of several, or words that are not written"
            )
        for position, (line, row) in enumerate(rows, 1):
            _check(row, position, len(rows), line)
        columns = zip(*[(row["form"], row["upos"], row["head"] - 1, row["deprel"]) for _, row in rows], strict=True)
        return ParsedSentence(*columns)


def _rows(text: str) -> list[tuple[int, Any]]:
    """Each row with its line."""
    conllu = installed("conllu", extra="data", to="read CoNLL-U files")
    rows = []
    for line, row in enumerate(text.split("\n"), 1):
        if row.startswith("#"):
            continue
        try:
            token = conllu.parser.parse_line(row, conllu.parser.DEFAULT_FIELDS, _parsers(conllu.parser))
        except (conllu.exceptions.ParseException, ValueError) as error:
            raise DataError(
                f"expected ten columns of CoNLL-U, separated by tabs: {str(error)[:200]}", line=line
            ) from error
        rows.append((line, token))
    if not rows:
        raise DataError("expected the rows of a sentence, but there are only comments")
    return rows


def _check(row: Any, position: int, words: int, line: int) -> None:
    if row["id"] != position:
        raise DataError(f"expected word {position} of the sentence, not word {row['id']}", line=line)
    head = row.get("head")
    if not isinstance(head, int) or not 0 <= head <= words or head == position:
        raise DataError(
            f"expected the number of another word, or 0 for the root, as the head of {row['form']!r}, not {head}",
            line=line,
        )
    if "deprel" not in row:
        raise DataError(f"expected a relation for {row['form']!r} in the eighth column", line=line)


def _parsers(parser: Any) -> dict[str, Any]:
    """Of the columns that are used: features and enhanced dependencies take most of the time."""
    return {name: parser.DEFAULT_FIELD_PARSERS[name] for name in ("id", "head")}
