"""Text in brackets, as treebanks and arithmetic files have it: ``(S (NP we) (VP read))``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from foldloom.data.opening import DEFAULT, Limits, Piece
from foldloom.errors import DataError

# Words end at ASCII white space alone: treebanks have words with a no-break space in them.
_TOKEN = re.compile(r"[()]|[^() \t\r\n]+")


@dataclass(slots=True)
class Bracket:
    """What stands between two brackets, in order: words and brackets."""

    line: int
    items: list[str | Bracket] = field(default_factory=list)


def pieces_in_brackets(lines: Iterable[str], limits: Limits) -> Iterator[tuple[int, str]]:
    """Lines that belong together: one that begins at the margin, and those after it that are indented.

    Brackets are not counted, so that one that is missing spoils one piece and not all that follow.
    """
    piece = Piece(limits.line)
    for number, line in enumerate(lines, 1):
        text = line.rstrip(" \t\r\n")
        if piece and not line.startswith((" ", "\t")):
            yield piece.take()
        if text:
            piece.add(number, text)
    if piece:
        yield piece.take()


def parse_brackets(text: str, limits: Limits = DEFAULT) -> Bracket:
    """The one bracket that a text consists of."""
    stack: list[Bracket] = []
    line = 1
    position = 0
    for match in _TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        token = match[0]
        if token == "(":
            stack.append(Bracket(line))
            if len(stack) > limits.depth:
                raise DataError(f"expected at most {limits.depth:,} brackets that are open at once", line=line)
        elif not stack:
            raise DataError(f"expected `(`, not {token[:20]!r}", line=line)
        elif token != ")":
            stack[-1].items.append(token)
        elif len(stack) > 1:
            closed = stack.pop()
            stack[-1].items.append(closed)
        else:
            rest = text[match.end() :].strip(" \t\r\n")
            if rest:
                raise DataError(f"expected nothing after the last bracket, not {rest[:20]!r}", line=line)
            return stack[0]
    opened = f"the bracket that opens in line {stack[-1].line} is not closed" if stack else "there is none"
    raise DataError(f"expected brackets, but {opened}", line=stack[-1].line if stack else 1)
