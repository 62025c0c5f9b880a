"""Smaller programs that fail as a large one does."""

from __future__ import annotations

import ast
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Edit = Callable[[ast.Module], None]
Body = list[ast.stmt]

BLOCKS = ("body", "orelse", "finalbody")


def minimised(source: str, fails: Callable[[str], bool], *, seconds: float = 40.0) -> str:
    """The smallest found in the time there is: an edit is kept if what remains still fails."""
    until = time.monotonic() + seconds
    current = ast.unparse(ast.parse(source))
    if not fails(current):
        return source  # it hangs on how it is written
    while True:
        smaller = _one_pass(current, fails, until)
        if smaller == current or time.monotonic() > until:
            return smaller
        current = smaller


def _one_pass(source: str, fails: Callable[[str], bool], until: float) -> str:
    """Every edit once. After one that was kept, the edits of what remains are tried from the same place on."""
    place = 0
    while time.monotonic() < until:
        edits = list(_edits(ast.parse(source)))
        if place >= len(edits):
            break
        candidate = _edited(source, edits[place])
        if candidate is not None and len(candidate) < len(source) and fails(candidate):
            source = candidate
        else:
            place += 1
    return source


def _edited(source: str, edit: Edit) -> str | None:
    tree = ast.parse(source)
    try:
        edit(tree)
        text = ast.unparse(ast.fix_missing_locations(tree))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # half of a program may well call a number
            compile(text, "<candidate>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, IndexError):
        return None
    return text


def _edits(tree: ast.Module) -> Iterator[Edit]:
    """Large ones first: runs of statements, then blocks for their statements, then examples, then parts of expressions."""
    bodies = list(_bodies(tree))
    for size in (16, 8, 4, 2, 1):
        for number, body in enumerate(bodies):
            if size <= len(body):
                yield from (
                    _deletion(number, start, size) for start in range(0, len(body) - size + 1, max(1, size // 2))
                )
    for number, body in enumerate(bodies):
        yield from (
            _unwrapping(number, place, name) for place, s in enumerate(body) for name in BLOCKS if hasattr(s, name)
        )
    for number, body in enumerate(bodies):
        yield from (_inlining(number, place) for place, s in enumerate(body) if isinstance(s, ast.Assign))
    for number, node in enumerate(ast.walk(tree)):
        yield from (_shortening(number, place) for place in range(len(_items(node))))
    for number, node in enumerate(_expressions(tree)):
        yield from (_hoisting(number, place) for place in range(len(list(_parts(node)))))
    yield from (_unwrapping_expression(number) for number in range(len(list(_expressions(tree)))))


def _bodies(tree: ast.AST) -> Iterator[Body]:
    """All lists of statements, outer ones first."""
    for node in ast.walk(tree):
        for name in (*BLOCKS, "handlers"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                yield body


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.expr) and list(_parts(node)))


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions that might stand in the place of this one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.keyword) or (isinstance(child, ast.Attribute) and isinstance(node, ast.Call)):
            yield child.value
        elif isinstance(child, ast.expr):
            yield child


def _items(node: ast.AST) -> list[Any]:
    """What a list, a call or an import could do without."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if isinstance(node, ast.Call):
        return node.args
    return node.names if isinstance(node, ast.Import) else []


def _deletion(number: int, start: int, size: int) -> Edit:
    def edit(tree: ast.Module) -> None:
        body = list(_bodies(tree))[number]
        is_handlers = isinstance(body[0], ast.excepthandler)
        del body[start : start + size]
        if not body and not is_handlers:
            body.append(ast.Pass())

    return edit


def _unwrapping(number: int, place: int, name: str) -> Edit:
    def edit(tree: ast.Module) -> None:
        body = list(_bodies(tree))[number]
        body[place : place + 1] = getattr(body[place], name)

    return edit


def _inlining(number: int, place: int) -> Edit:
    """What a variable is given in its place, everywhere."""

    def edit(tree: ast.Module) -> None:
        body = list(_bodies(tree))[number]
        assignment = body.pop(place)
        assert isinstance(assignment, ast.Assign)
        target = assignment.targets[0]
        for node in list(ast.walk(tree)):
            if isinstance(node, ast.Name) and isinstance(target, ast.Name) and node.id == target.id:
                _Replacing(node, copy.deepcopy(assignment.value)).visit(tree)
        if not body:
            body.append(ast.Pass())

    return edit


def _shortening(number: int, place: int) -> Edit:
    def edit(tree: ast.Module) -> None:
        del _items(list(ast.walk(tree))[number])[place]

    return edit


def _hoisting(number: int, place: int) -> Edit:
    """A part of an expression in its place: `v` for `v.tanh()`."""

    def edit(tree: ast.Module) -> None:
        whole = list(_expressions(tree))[number]
        _Replacing(whole, copy.deepcopy(list(_parts(whole))[place])).visit(tree)

    return edit


def _unwrapping_expression(number: int) -> Edit:
    """A constant in the place of an expression."""

    def edit(tree: ast.Module) -> None:
        _Replacing(list(_expressions(tree))[number], ast.Constant(1)).visit(tree)

    return edit


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)
