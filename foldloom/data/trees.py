"""Phrase-structure trees in the bracket notation of the Penn Treebank, such as ``(3 (2 a) (4 joy))``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from foldloom.data.brackets import Bracket, parse_brackets, pieces_in_brackets
from foldloom.data.reading import Piece, Reader
from foldloom.data.structures import Tree
from foldloom.errors import DataError


class TreeReader(Reader[Tree]):
    """A tree begins at the margin and goes on over the indented lines after it.

    >>> tree = TreeReader().parse("(3 (2 a) (4 joy))")
    >>> tree.label, tree.words
    ('3', ['a', 'joy'])
    """

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        return pieces_in_brackets(lines, self.limits)

    def parse(self, text: str) -> Tree:
        return _tree_of(parse_brackets(text, self.limits))


class SentimentReader(TreeReader):
    """Trees of the Stanford Sentiment Treebank (Socher et al. 2013): labels from 0 to 4, and two phrases in every phrase that is
    not a word.

    >>> SentimentReader().parse("(5 joy)")
    Traceback (most recent call last):
    foldloom.errors.DataError: line 1: expected a label from 0, very negative, to 4, very positive, not '5'
    """

    def parse(self, text: str) -> Tree:
        bracket = parse_brackets(text, self.limits)
        tree = _tree_of(bracket)
        for node in tree:
            if node.label not in _SENTIMENTS:
                raise DataError(
                    f"expected a label from 0, very negative, to 4, very positive, not {node.label[:20]!r}",
                    line=bracket.line,
                )
            if node.word is None and len(node.children) != 2:
                raise DataError(f"expected two phrases in a phrase, not {len(node.children)}", line=bracket.line)
        return tree


_SENTIMENTS = frozenset("01234")


def _tree_of(root: Bracket) -> Tree:
    """Without recursion: trees may be deeper than Python's stack."""
    pending, backwards = [root], []
    while pending:
        bracket = pending.pop()
        backwards.append(bracket)
        pending += [item for item in bracket.items if isinstance(item, Bracket)]
    tree_of: dict[int, Tree] = {}
    for bracket in reversed(backwards):
        tree_of[id(bracket)] = _node(bracket, tree_of)
    return tree_of[id(root)]


def _node(bracket: Bracket, tree_of: dict[int, Tree]) -> Tree:
    # The outermost bracket of a treebank's tree often has no label.
    label, *items = bracket.items if bracket.items and isinstance(bracket.items[0], str) else ["", *bracket.items]
    children = tuple([tree_of[id(item)] for item in items if isinstance(item, Bracket)])
    if isinstance(label, str) and items:
        if len(children) == len(items):
            return Tree(label, children=children)
        if len(items) == 1 and isinstance(items[0], str):
            return Tree(label, word=items[0])
    shown = " ".join(item if isinstance(item, str) else "(...)" for item in bracket.items)
    cut = f"{shown[:60]} ..." if len(shown) > 60 else shown
    raise DataError(f"expected a label and then one word or trees alone, not ({cut})", line=bracket.line)
