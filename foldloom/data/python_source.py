"""Python programs as syntax trees, by the standard library's own parser."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from foldloom.data import opening
from foldloom.data.reading import Item, Piece, Reader
from foldloom.data.structures import SourceExpression, SourceFile, SyntaxTree
from foldloom.errors import DataError

HIDDEN = "Hidden"
"""The kind of an operator that `hide_operator` took away."""

_INSTALLED = frozenset(("site-packages", "dist-packages"))
"""What was installed into a folder, the standard library's say, is not part of it."""


class _ProgramReader(Reader[Item]):
    """Something of the program in a file, or of those in all files of a folder and the folders below."""

    def __iter__(self) -> Iterator[Item]:
        if not isinstance(self.source, str | Path):
            yield from super().__iter__()
            return
        for path in python_files(self.source) if os.path.isdir(self.source) else [self.source]:
            try:
                items = list(self._read(path))
            except DataError:
                # Too large, or it cannot be opened. What is malformed otherwise has been skipped and counted already.
                if self.strict:
                    raise
                self.skipped += 1
                continue
            yield from items

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        program = opening.Piece(self.limits.line)
        for number, line in enumerate(lines, 1):
            program.add(number, line.rstrip("\r\n"))
        yield 1, program.take()[1]


class PythonReader(_ProgramReader[SourceFile]):
    """The program of a file, or those of all files in a folder and the folders below.

    >>> [file] = PythonReader(["def half(x):", "    return x / 2"])
    >>> [(node.kind, node.text) for node in file.functions()]
    [('FunctionDef', 'half')]
    """

    def _items(self, name: str, pieces: Iterable[Piece]) -> Iterator[SourceFile]:
        for file in super()._items(name, pieces):
            yield replace(file, name=name)

    def parse(self, text: str) -> SourceFile:
        with _not_too_deep():
            return SourceFile("input", _tree_of(_parsed(text), role=""))


class ExpressionReader(_ProgramReader[list[SourceExpression]]):
    """Of each program the outermost expressions that hold an operator at least. The rest of it never becomes a tree of ours.

    >>> [expressions] = ExpressionReader(["x = (a + 1) * 2", "f(x, y)", "g(not x)"])
    >>> [(expression.line, expression.text) for expression in expressions]
    [(1, '(a + 1) * 2'), (3, 'g(not x)')]
    """

    def _items(self, name: str, pieces: Iterable[Piece]) -> Iterator[list[SourceExpression]]:
        for expressions in super()._items(name, pieces):
            yield [replace(expression, name=name) for expression in expressions]

    def parse(self, text: str) -> list[SourceExpression]:
        program, lines = _parsed(text), text.encode().split(b"\n")
        with _not_too_deep():
            return [
                SourceExpression("input", node.lineno, _text_of(node, lines), _tree_of(node, role=""))
                for node in _expressions_with_operators(program)
            ]


def python_files(folder: str | Path) -> list[Path]:
    """The programs in a folder and the folders below, without what was installed there."""
    paths = sorted(Path(folder).rglob("*.py"))
    return [path for path in paths if _INSTALLED.isdisjoint(path.relative_to(folder).parts)]


def _parsed(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a program should not write is not our concern
            return ast.parse(text)
    except SyntaxError as error:
        raise DataError(f"expected a Python program: {error.msg}", line=error.lineno or 1) from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise DataError(
            f"expected a Python program that can be parsed: {str(error) or type(error).__name__}"
        ) from error


@contextmanager
def _not_too_deep() -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise DataError("expected a Python program that is nested less deeply") from error
    except DataError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise DataError(f"expected a Python program that can be read: {error}") from error


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
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)
OPERATORS = {
    "Add": "+", "Sub": "-", "Mult": "*", "MatMult": "@", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**",
    "LShift": "<<", "RShift": ">>", "BitOr": "|", "BitXor": "^", "BitAnd": "&",
    "Invert": "~", "Not": "not", "UAdd": "+", "USub": "-", "And": "and", "Or": "or",
    "Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=",
    "Is": "is", "IsNot": "is not", "In": "in", "NotIn": "not in",
}  # fmt: skip
"""The kinds of operators, and how each is written."""


def _expressions_with_operators(program: ast.AST) -> Iterator[ast.expr]:
    """The outermost ones, in the order of the program."""
    pending = [program]
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.expr):
            pending += reversed(list(ast.iter_child_nodes(node)))
        elif any(isinstance(part, _OPERATIONS) for part in ast.walk(node)):
            yield node


def _text_of(node: ast.expr, lines: list[bytes]) -> str:
    """As `ast.get_source_segment`, which splits the whole program anew for every node."""
    assert node.end_lineno is not None
    covered = lines[node.lineno - 1 : node.end_lineno]
    covered[-1] = covered[-1][: node.end_col_offset]
    covered[0] = covered[0][node.col_offset :]
    return b"\n".join(covered).decode()


def hide_operator(tree: SyntaxTree, which: int) -> tuple[SyntaxTree, str]:
    """The tree without one of its operators, counted children first; and the kind of that operator.

    >>> [[expression]] = ExpressionReader(["a + b * c"])
    >>> hide_operator(expression.tree, 1)[1]
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


def show_hidden(text: str, which: int, hole: str = "▢") -> str | None:
    """An expression as it is written, with a hole where `hide_operator` takes an operator away.

    None where Python's parser does not tell the place: inside f-strings, before Python 3.12.

    >>> show_hidden("a + b * c", 1)
    'a + b ▢ c'
    """
    # In brackets it may go on in another line.
    expression = ast.parse(f"({text}\n)", mode="eval").body
    operation, operator, number = list(_operators_in(expression))[which]
    operands = [node for node in ast.iter_child_nodes(operation) if isinstance(node, ast.expr)]
    source = f"({text}".encode()
    lines = [0, *accumulate(len(line) + 1 for line in source.split(b"\n"))]
    starts = [lines[node.lineno - 1] + node.col_offset for node in operands]
    ends = [lines[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0) for node in operands]
    if isinstance(operation, ast.UnaryOp):
        ends, starts = [lines[operation.lineno - 1] + operation.col_offset], [0, *starts]
    gaps = list(zip(ends, starts[1:], strict=False))
    written = re.compile(rb"\s+".join(re.escape(word.encode()) for word in OPERATORS[type(operator).__name__].split()))
    # Of several values that `and` joins, all gaps are the same operator's.
    for start, end in reversed(gaps if isinstance(operation, ast.BoolOp) else gaps[number : number + 1]):
        shown, found = written.subn(hole.encode(), source[start:end], count=1)
        if not found:
            return None
        source = source[:start] + shown + source[end:]
    return source[1:].decode()


def _operators_in(node: ast.AST) -> Iterator[tuple[ast.expr, ast.AST, int]]:
    """Each operation with its operator and the number of that among its operators, in the order in which trees have them."""
    for _, value in ast.iter_fields(node):
        for number, child in enumerate(value if isinstance(value, list) else [value]):
            if type(child).__name__ in OPERATORS:
                assert isinstance(node, ast.expr)
                yield node, child, number
            elif isinstance(child, ast.AST):
                yield from _operators_in(child)
