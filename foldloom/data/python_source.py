"""Python programs as syntax trees, by the standard library's own parser."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from foldloom.data.reading import Piece, Reader, opened
from foldloom.data.structures import SourceFile, SyntaxTree
from foldloom.errors import DataError

HIDDEN = "Hidden"
"""The kind of an operator that `hide_operator` took away."""

_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""What was installed into a folder, the standard library's say, is not part of it."""


class PythonReader(Reader[SourceFile]):
    """The program of a file, or those of all files in a folder and the folders below.

    >>> [file] = PythonReader(["def half(x):", "    return x / 2"])
    >>> [(node.kind, node.text) for node in file.functions()]
    [('FunctionDef', 'half')]
    """

    def __iter__(self) -> Iterator[SourceFile]:
        if not isinstance(self.source, str | Path) or not Path(self.source).is_dir():
            yield from super().__iter__()
            return
        for path in sorted(Path(self.source).rglob("*.py")):
            if not _INSTALLED.isdisjoint(path.relative_to(self.source).parts):
                continue
            try:
                with opened(path) as (name, lines):
                    items = list(self._items(name, self.pieces(lines)))
            except DataError:
                # Not UTF-8. What is malformed otherwise has been skipped and counted already.
                if self.strict:
                    raise
                self.skipped += 1
                continue
            yield from items

    def _items(self, name: str, pieces: Iterable[Piece]) -> Iterator[SourceFile]:
        for file in super()._items(name, pieces):
            yield replace(file, name=name)

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        yield 1, "\n".join([line.rstrip("\r\n") for line in lines])

    def parse(self, text: str) -> SourceFile:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what a program should not write is not our concern
                return SourceFile("input", _tree_of(ast.parse(text), role=""))
        except SyntaxError as error:
            raise DataError(f"expected a Python program: {error.msg}", line=error.lineno or 1) from error
        except (RecursionError, MemoryError, ValueError) as error:
            raise DataError(f"expected a Python program that can be parsed: {error}") from error


def _tree_of(node: ast.AST, role: str) -> SyntaxTree:
    children = []
    text = None
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            if name != "ctx":  # whether a name is read or written, its place says already
                children.append(_tree_of(value, name))
        elif isinstance(value, list):
            children += [_tree_of(item, name) for item in value if isinstance(item, ast.AST)]
        elif name in _NAMES and isinstance(value, str):
            text = value
        elif name == "value":
            text = repr(value)
    return SyntaxTree(type(node).__name__, role, text, getattr(node, "lineno", 0), tuple(children))


_NAMES = frozenset(("id", "attr", "arg", "name", "module"))


def _kinds(*bases: type[ast.AST]) -> frozenset[str]:
    return frozenset(kind.__name__ for base in bases for kind in base.__subclasses__())


OPERATORS = _kinds(ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
EXPRESSIONS = _kinds(ast.expr)


def expressions_with_operators(tree: SyntaxTree) -> Iterator[SyntaxTree]:
    """The outermost expressions that hold an operator at least, in the order of the program."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if node.kind not in EXPRESSIONS:
            pending += reversed(node.children)
        elif any(part.kind in OPERATORS for part in node):
            yield node


def hide_operator(tree: SyntaxTree, which: int) -> tuple[SyntaxTree, str]:
    """The tree without one of its operators, counted children first; and the kind of that operator.

    >>> [file] = PythonReader(["a + b * c"])
    >>> [expression] = expressions_with_operators(file.tree)
    >>> hide_operator(expression, 1)[1]
    'Mult'
    """
    operators = [node for node in tree if node.kind in OPERATORS]
    hidden = operators[which]
    return _without(tree, hidden), hidden.kind


def _without(tree: SyntaxTree, hidden: SyntaxTree) -> SyntaxTree:
    if tree is hidden:
        return replace(tree, kind=HIDDEN)
    children = [_without(child, hidden) for child in tree.children]
    if all(new is old for new, old in zip(children, tree.children, strict=True)):
        return tree
    return replace(tree, children=tuple(children))
