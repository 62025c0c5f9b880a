"""Functions of one argument that are a single expression, as text. Most functions of Python objects in blocks are such.

An expression may use its argument, constants, and those builtin functions and methods that only read data. So a file
from elsewhere cannot run other code.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from typing import Any

from foldloom.errors import ExportedFileError

FUNCTIONS = frozenset(
    (
        "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "frozenset", "int", "isinstance", "len", "list", "max", "min",
        "ord", "range", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip",
    )
)  # fmt: skip
METHODS = frozenset(
    (
        "casefold", "count", "endswith", "get", "index", "isalpha", "isdigit", "islower", "isupper", "items", "keys", "lower", "lstrip",
        "partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
        "strip", "title", "upper", "values",
    )
)  # fmt: skip
_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.IfExp, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Call,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Attribute, ast.boolop, ast.unaryop, ast.cmpop,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor,
)  # fmt: skip


def problem_with(expression: ast.AST) -> str | None:
    """What an expression contains that is not allowed, if anything."""
    for node in ast.walk(expression):
        if not isinstance(node, _NODES):
            return f"it has {type(node).__name__} in it"
        if isinstance(node, ast.Attribute) and node.attr not in METHODS:
            return f"it asks for .{node.attr}"
    return None


def free_names(expression: ast.AST, argument: str) -> list[str]:
    """The names in an expression besides its argument and the allowed builtins."""
    names = {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
    return sorted(names - FUNCTIONS - {argument})


def function_of(text: str, argument: str, constants: Mapping[str, Any]) -> Callable[[Any], Any]:
    """The function with this expression as its body."""
    expression = ast.parse(text, mode="eval")
    problem = problem_with(expression)
    if problem is not None or not argument.isidentifier():
        raise ExportedFileError(
            f"the program of this file has an expression that is not allowed, because {problem}: {text}"
        )
    own = {name: getattr(builtins, name) for name in FUNCTIONS}
    function: Callable[[Any], Any] = eval(  # checked above, and no other names are visible to it
        compile(ast.parse(f"lambda {argument}: ({text})", mode="eval"), "<exported>", "eval"),
        {"__builtins__": {}, **own, **constants},
    )
    return function
