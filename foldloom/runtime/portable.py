"""Python values and functions as JSON: constants by what they are, functions by where they are found."""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any

from foldloom.errors import ExportedFileError

_PLAIN = (type(None), bool, int, float, str)
_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_MAKERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller, functools.partial)


class NotPortableError(ValueError):
    """What cannot be written down as JSON and found again elsewhere."""


def packed(value: Any) -> Any:
    """A value of Python's own kinds, or a function, as JSON."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    for name, container in _CONTAINERS.items():
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
        return {"method": function.__name__, "of": packed(function.__self__)}
    if isinstance(function, _MAKERS):
        return _packed_call(function)
    module, path = getattr(function, "__module__", None) or "builtins", getattr(function, "__qualname__", "")
    # `str.split` does not know its module, but its owner does.
    if not path or "<" in path or _found(module, path) is not function:
        raise NotPortableError(
            f"{function!r:.60} cannot be found by its name. Write it with `def` at the top of a module that needs no torch"
        )
    return {"function": f"{module}:{path}"}


def _packed_call(function: Any) -> Any:
    if isinstance(function, functools.partial):
        return {
            "call": "functools:partial",
            "args": [packed(item) for item in (function.func, *function.args)],
            "kwargs": packed(function.keywords),
        }
    maker, args = function.__reduce__()[:2]
    return {"call": f"operator:{maker.__name__}", "args": [packed(item) for item in args], "kwargs": packed({})}


def unpacked(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    ((kind, content),) = list(value.items())[:1]
    if kind in _CONTAINERS:
        return _CONTAINERS[kind](map(unpacked, content))
    if kind == "slice":
        return slice(*map(unpacked, content))
    if kind == "range":
        return range(*content)
    if kind == "dict":
        return {unpacked(key): unpacked(item) for key, item in content}
    if kind == "method":
        return getattr(unpacked(value["of"]), content)
    if kind == "call":
        return _imported(content)(*map(unpacked, value["args"]), **unpacked(value["kwargs"]))
    return _imported(content)


def _imported(name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    try:
        found = _found(module, path)
    except ImportError as error:
        raise ExportedFileError(
            f"the program of this file calls {path} of {module}, which cannot be imported here: {error}. Install it, or put it on the path"
        ) from error
    if found is None:
        raise ExportedFileError(f"the program of this file calls {path} of {module}, which has no such function here")
    return found  # type: ignore[no-any-return]


def _found(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
