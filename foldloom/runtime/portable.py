"""Python values and functions from JSON: the inverse of `exporting.packing`."""

from __future__ import annotations

import functools
import importlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

from foldloom.errors import ExportedFileError
from foldloom.runtime.expressions import FUNCTIONS, METHODS, function_of


class NotPortableError(ValueError):
    """A value or block that cannot be expressed as JSON."""


CONTAINERS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def unpacked(value: Any, modules: Sequence[str] = ()) -> Any:
    """Plain values are themselves; anything else is a dict whose first key is its kind.

    ``modules`` are those whose functions a file may call by name. Builtins that only read data are always allowed.
    """
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    if kind in CONTAINERS:
        return CONTAINERS[kind]([unpacked(item, modules) for item in content])
    if kind == "slice":
        return slice(*content)
    if kind == "range":
        return range(*content)
    if kind == "dict":
        return {unpacked(key, modules): unpacked(item, modules) for key, item in content}
    if kind == "method":
        return getattr(unpacked(value["of"], modules), _checked(content, content in METHODS))
    if kind == "made_by":
        args = [unpacked(item, modules) for item in value["args"]]
        return _maker(content, args)(*args, **unpacked(value["kwargs"], modules))
    if kind == "expression":
        return function_of(content, value["argument"], unpacked(value["constants"]))
    return imported(content, modules)


def _maker(name: str, args: Sequence[Any]) -> Callable[..., Any]:
    makers = {"itemgetter": True, "partial": True, "attrgetter": not any("__" in str(arg) for arg in args)}
    makers["methodcaller"] = bool(args) and args[0] in METHODS
    _checked(name, makers.get(name, False))
    return functools.partial if name == "partial" else getattr(operator, name)


def _checked(name: str, allowed: bool) -> str:
    if not allowed:
        raise ExportedFileError(f"the program of this file calls {name}, which no program of a file may call")
    return name


def imported(name: str, modules: Sequence[str]) -> Callable[..., Any]:
    """A function from ``module:qualified.name``."""
    module, _, path = name.partition(":")
    owner, _, method = path.partition(".")
    if module == "builtins":
        _checked(path, owner in FUNCTIONS and (not method or method in METHODS))
    elif module not in modules:
        raise ExportedFileError(
            f"the program of this file calls {path} of the module {module}. If you know what that does, allow it: "
            f"`Model(path, modules=[{module!r}])`, or `foldloom predict --allow {module}`"
        )
    try:
        found = find(module, path)
    except ImportError as error:
        raise ExportedFileError(
            f"the program of this file calls {path} of {module}, which cannot be imported here: {error}. Install it, or put it on the path"
        ) from error
    if found is None:
        raise ExportedFileError(f"the program of this file calls {path} of {module}, which has no such function here")
    return found  # type: ignore[no-any-return]


def find(module: str, path: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
