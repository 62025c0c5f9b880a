"""Sections of text and tables: plain for pipes and files, in colour where rich is installed and a terminal listens."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple, TextIO

HEADING, NAME, FAINT, WARNING, GOOD = "bold", "cyan", "dim", "yellow", "bold green"


class Piece(NamedTuple):
    """A few words in one style."""

    text: str
    style: str = ""


Line = Sequence[Piece]


@dataclass(frozen=True)
class Column:
    title: str
    to_the_right: bool = False
    style: str = ""


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def lines(self) -> Iterator[Line]:
        """Padded to the widest of each column; columns with nothing in them are left out."""
        used = [n for n, _ in enumerate(self.columns) if any(row[n] for row in self.rows)]
        widths = {n: max(len(cell) for cell in (self.columns[n].title, *[row[n] for row in self.rows])) for n in used}
        yield [Piece(self._aligned(n, self.columns[n].title, widths[n], n == used[-1]), FAINT) for n in used]
        for row in self.rows:
            yield [Piece(self._aligned(n, row[n], widths[n], n == used[-1]), self.columns[n].style) for n in used]

    def _aligned(self, column: int, cell: str, width: int, is_last: bool) -> str:
        if self.columns[column].to_the_right:
            return cell.rjust(width) + ("" if is_last else "  ")
        return cell if is_last else cell.ljust(width) + "  "


@dataclass(frozen=True)
class Text:
    """Lines with styles. ``str`` leaves the styles away."""

    lines: Sequence[Line]

    def __str__(self) -> str:
        return "\n".join("".join(piece.text for piece in line).rstrip() for line in self.lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """In a notebook: as wide as it is, in the colours of a terminal."""
        lines = ["".join(_in_html(piece) for piece in line).rstrip() for line in self.lines]
        return f'<pre style="overflow-x: auto; white-space: pre">{chr(10).join(lines)}</pre>'

    def __rich__(self) -> Any:
        from rich.text import Text as RichText

        pieces = [piece for line in self.lines for piece in (*line, Piece("\n"))]
        return RichText.assemble(*[(piece.text, piece.style) for piece in pieces[:-1]], no_wrap=True)

    def print(self, file: TextIO | None = None) -> None:
        """In colour on a terminal, if rich is installed; plain otherwise."""
        out = sys.stdout if file is None else file
        if out.isatty() and importlib.util.find_spec("rich") is not None:
            from rich.console import Console

            Console(file=out, soft_wrap=True).print(self)
        else:
            out.write(f"{self}\n")


_IN_HTML = {
    HEADING: "font-weight: bold",
    NAME: "color: #0086a8",
    FAINT: "opacity: 0.6",
    WARNING: "color: #b07d00",
    GOOD: "font-weight: bold; color: #2a8a3e",
}


def _in_html(piece: Piece) -> str:
    """In colours that can be read on white and on black."""
    words = escape(piece.text)
    return f'<span style="{_IN_HTML[piece.style]}">{words}</span>' if piece.style else words


def heading(words: str) -> Line:
    return (Piece(words, HEADING),)


def plain(words: str, style: str = "") -> Line:
    return (Piece(words, style),)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
