"""Python values and functions as JSON: constants by value, functions as an expression or by their qualified name."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import operator
import textwrap
from collections.abc import Callable, Mapping
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from foldloom.runtime.expressions import free_names, problem_with
from foldloom.runtime.plain import FUNCTIONS, METHODS
from foldloom.runtime.portable import CONTAINERS, NotPortableError, defined_in

_PLAIN = (type(None), bool, int, float, str)
_MAKERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


def packed(value: Any) -> Any:
    """A function, or a value of Python's builtin types, as JSON."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    for name, container in CONTAINERS.items():
        if kind is container:
            return {name: [packed(item) for item in value]}
    if kind is slice:
        return {"slice": [packed(value.start), packed(value.stop), packed(value.step)]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is dict:
        return {"dict": [[packed(key), packed(item)] for key, item in value.items()]}
    if callable(value):
        return _packed_function(value)
    raise NotPortableError(f"{value!r:.60} ({kind.__name__}) is neither a number, a string nor made of such")


def _packed_function(function: Any) -> Any:
    if isinstance(function, (BuiltinMethodType, MethodType)) and not isinstance(function.__self__, (ModuleType, type)):
        if isinstance(function, MethodType) or function.__name__ not in METHODS:
            raise NotPortableError(
                f"{function!r:.60} is a method that a file may not call: it may call {', '.join(sorted(METHODS))}"
            )
        return {"method": function.__name__, "of": packed(function.__self__)}
    if isinstance(function, _MAKERS):
        args: Any = function.__reduce__()[1]
        return {"made_by": type(function).__name__, "args": [packed(item) for item in args], "kwargs": packed({})}
    if isinstance(function, functools.partial):
        given = [packed(item) for item in (function.func, *function.args)]
        return {"made_by": "partial", "args": given, "kwargs": packed(function.keywords)}
    if isinstance(function, FunctionType):
        expression = _packed_expression(function)
        if expression is not None:
            return expression
    return _named(function)


def _named(function: Any) -> Any:
    module, path = getattr(function, "__module__", None) or "builtins", getattr(function, "__qualname__", "")
    if module == "builtins":
        owner, _, method = path.partition(".")
        is_known = owner in FUNCTIONS and (not method or method in METHODS)
    else:
        is_known = bool(path) and "<" not in path and defined_in(module, path) is function
    if not is_known:
        raise NotPortableError(
            f"{function!r:.60} is more than an expression over its argument, and cannot be found by its name. Write it with `def` at the "
            "top of a module that needs no torch"
        )
    return {"function": f"{module}:{path}"}


def _packed_expression(function: FunctionType) -> Any:
    """A function of one argument whose body is one expression, as that expression. None if it is not, or if the
    expression is not allowed."""
    arguments = inspect.signature(function).parameters
    found = _lambda_body(function.__code__) if function.__name__ == "<lambda>" else _returned(function)
    if found is None or len(arguments) != 1:
        return None
    (argument,) = arguments
    known, names = _names_of(function), free_names(found, argument)
    try:
        constants = {name: packed_constant(known[name]) for name in names}
    except (KeyError, NotPortableError):
        return None
    if problem_with(found, argument, names) is not None:
        return None
    return {
        "expression": ast.unparse(found),
        "argument": argument,
        "constants": {"dict": [[name, value] for name, value in constants.items()]},
    }


def packed_constant(value: Any) -> Any:
    """A constant that an expression refers to. Code is not allowed."""
    if callable(value):
        raise NotPortableError(f"{value!r:.60} is code")
    return packed(value)


def _names_of(function: FunctionType) -> Mapping[str, Any]:
    enclosed = inspect.getclosurevars(function)
    return {**enclosed.globals, **enclosed.nonlocals}


def _returned(function: Callable[..., Any]) -> ast.expr | None:
    """The expression of a function that consists of one return statement, possibly after a docstring."""
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
    definition = module.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    statements = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    only = statements[0] if len(statements) == 1 else None
    return only.value if isinstance(only, ast.Return) else None


def _lambda_body(code: CodeType) -> ast.expr | None:
    """The expression of a lambda: the only one on its line that encloses the source positions of all its
    instructions."""
    try:
        module = ast.parse("".join(linecache.getlines(code.co_filename)))
    except SyntaxError:
        return None
    # Instructions that the compiler inserted have an empty source range.
    places = [
        (line, column)
        for line, last_line, column, last_column in code.co_positions()
        if line is not None and column is not None and (line, column) != (last_line, last_column)
    ]
    arguments = list(code.co_varnames[: code.co_argcount])
    found = {
        ast.unparse(node.body): node.body
        for node in ast.walk(module)
        if isinstance(node, ast.Lambda)
        and node.lineno == code.co_firstlineno
        and [argument.arg for argument in node.args.args] == arguments
        and all(_is_within(node, place) for place in places)
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _is_within(node: ast.expr, place: tuple[int, int]) -> bool:
    return (node.lineno, node.col_offset) <= place <= (node.end_lineno or 0, node.end_col_offset or 0)
