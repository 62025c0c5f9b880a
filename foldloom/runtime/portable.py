"""Python values and functions from JSON: the inverse of `exporting.packing`."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

from foldloom.errors import ExportedFileError
from foldloom.pytrees.messages import shown
from foldloom.runtime import plain
from foldloom.runtime.expressions import Computed, called, function_of
from foldloom.runtime.limits import Limits, Meter

MOST_LEVELS = 50
"""The deepest nesting of a packed value."""


class NotPortableError(ValueError):
    """A value or block that cannot be expressed as JSON."""


CONTAINERS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_KEYS = {"method": {"method", "of"}, "made_by": {"made_by", "args", "kwargs"}, "expression": {"expression", "argument", "constants"}}  # fmt: skip
_PLAIN = (type(None), bool, int, float, str)


def unpacked(value: Any, modules: Sequence[str] = (), level: int = 0) -> Any:
    """Plain values are themselves; anything else is a dict whose first key is its kind.

    ``modules`` are those whose functions a file may call by name. Functions that only read data are always allowed.
    """
    if not isinstance(value, dict):
        if type(value) not in _PLAIN:
            raise _malformed(value)
        return value
    kind = next(iter(value), None)
    if level > MOST_LEVELS or not isinstance(kind, str) or set(value) != _KEYS.get(kind, {kind}):
        raise _malformed(value)
    content = value[kind]
    if kind in _READERS:
        try:
            return _READERS[kind](content, modules, level + 1)
        except (TypeError, ValueError, OverflowError) as error:  # unhashable, or not what a list of such is
            raise _malformed(value) from error
    if kind == "method":
        return _bound(content, unpacked(value["of"], modules, level + 1))
    if kind == "made_by":
        return _made_by(content, value["args"], value["kwargs"], modules, level + 1)
    if kind == "expression":
        constants = unpacked(value["constants"], (), level + 1)
        if not isinstance(constants, dict) or any(map(callable, constants.values())):
            raise _malformed(value)
        return function_of(content, value["argument"], constants)
    return imported(content, modules)


def _malformed(value: Any) -> ExportedFileError:
    return ExportedFileError(f"its program holds a value that no export writes: {shown(value)}")


def _items(content: Any, modules: Sequence[str], level: int) -> list[Any]:
    if not isinstance(content, list):
        raise TypeError("no list")
    return [unpacked(item, modules, level) for item in content]


def _container(make: Callable[..., Any], is_hashed: bool) -> Callable[..., Any]:
    def read(content: Any, modules: Sequence[str], level: int) -> Any:
        items = _items(content, modules, level)
        if is_hashed:
            plain.look_through(Meter(Limits()), items)
        return make(items)

    return read


def _slice(content: Any, modules: Sequence[str], level: int) -> slice:
    start, stop, step = _items(content, modules, level)
    if any(type(bound) not in (int, type(None)) for bound in (start, stop, step)):
        raise TypeError("a slice is of integers")
    return slice(start, stop, step)


def _mapping(content: Any, modules: Sequence[str], level: int) -> dict[Any, Any]:
    if not isinstance(content, list):
        raise TypeError("no list")
    return {unpacked(key, modules, level): unpacked(item, modules, level) for key, item in content}


_READERS: dict[str, Callable[[Any, Sequence[str], int], Any]] = {
    **{name: _container(make, "set" in name) for name, make in CONTAINERS.items()},
    "slice": _slice,
    "range": lambda content, modules, level: range(*_items(content, modules, level)),
    "dict": _mapping,
}


# ---- Functions.


def _checked(name: Any, allowed: bool) -> str:
    if not allowed or not isinstance(name, str):
        raise ExportedFileError(f"the program of this file calls {shown(name)}, which no program of a file may call")
    return name


def _is_method(name: Any) -> bool:
    return isinstance(name, str) and name in plain.METHODS


def _bound(name: Any, owner: Any) -> Callable[[Any], Any]:
    """A method of a constant: ``vocabulary.get``."""
    _checked(name, _is_method(name))
    return called(lambda value, meter: plain.method(meter, name, owner, value), f"{shown(owner, 20)}.{name}")


def _made_by(name: Any, args: Any, kwargs: Any, modules: Sequence[str], level: int) -> Callable[[Any], Any]:
    """What `operator.itemgetter`, `attrgetter`, `methodcaller` and `functools.partial` make, by functions of ours."""
    if name == "partial":
        return _partial(args, kwargs, modules, level)
    given, keywords = unpacked({"list": args}, (), level), unpacked(kwargs, (), level)
    _checked(name, name in ("itemgetter", "attrgetter", "methodcaller") and keywords == {} and len(given) > 0)
    if name == "methodcaller":
        _checked(given[0], _is_method(given[0]))
        return called(lambda value, meter: plain.method(meter, given[0], value, *given[1:]), f".{given[0]}(...)")
    if name == "attrgetter":
        for path in given:
            _checked(path, isinstance(path, str) and "__" not in path)
        return called(_several(lambda value, path, meter: plain.attribute(value, path), given), "attrgetter")
    return called(_several(lambda value, key, meter: plain.item(meter, value, key), given), "itemgetter")


def _several(get: Callable[[Any, Any, Meter], Any], keys: Sequence[Any]) -> Computed:
    if len(keys) == 1:
        return lambda value, meter: get(value, keys[0], meter)
    return lambda value, meter: tuple([get(value, key, meter) for key in keys])


def _partial(args: Any, kwargs: Any, modules: Sequence[str], level: int) -> Callable[[Any], Any]:
    if not isinstance(args, list) or not args or not isinstance(args[0], dict):
        raise _malformed(args)
    given, keywords = unpacked({"list": args[1:]}, modules, level), unpacked(kwargs, modules, level)
    if not isinstance(keywords, dict) or not all(isinstance(key, str) for key in keywords):
        raise _malformed(kwargs)
    name = args[0].get("function")
    if isinstance(name, str) and name.startswith("builtins:"):
        compute = _builtin(name.partition(":")[2])
        return called(lambda value, meter: compute(meter, *given, value, **keywords), f"partial({name})")
    function = unpacked(args[0], modules, level)
    if not callable(function):
        raise _malformed(args[0])
    return lambda value: function(*given, value, **keywords)


def _builtin(path: str) -> Callable[..., Any]:
    """One of Python's own, as our function of a meter and its arguments."""
    owner, _, method = path.partition(".")
    _checked(path, owner in plain.FUNCTIONS and (not method or (method in plain.METHODS and owner in plain.TYPES)))
    if not method:
        return plain.FUNCTIONS[owner]
    kind = plain.TYPES[owner]

    def call(meter: Meter, value: Any, *args: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{path} takes {owner}, not {type(value).__name__}")
        return plain.method(meter, method, value, *args)

    return call


def imported(name: Any, modules: Sequence[str]) -> Callable[..., Any]:
    """A function from ``module:qualified.name``."""
    if not isinstance(name, str) or len(name) > 500:
        raise _malformed(name)
    module, _, path = name.partition(":")
    if module == "builtins":
        compute = _builtin(path)
        return called(lambda value, meter: compute(meter, value), path)
    if module not in modules:
        raise ExportedFileError(
            f"the program of this file calls {_word(path)} of the module {_word(module)}. If you know what that does, allow it: "
            f"`Model(path, modules=[{shown(module)}])`, or `foldloom predict --allow {_word(module)}`"
        )
    try:
        found = defined_in(module, path)
    except ImportError as error:
        raise ExportedFileError(
            f"the program of this file calls {_word(path)} of {module}, which cannot be imported here: {error}. Install it, or put it on the path"
        ) from error
    if found is None:
        raise ExportedFileError(
            f"the program of this file calls {_word(path)} of {module}, which defines no such function itself"
        )
    return found  # type: ignore[no-any-return]


def _word(name: str) -> str:
    """A name in a message, as it is if it is one."""
    return name if re.fullmatch(r"[\w.]{1,200}", name) else shown(name)


def find(module: str, path: str) -> Any:
    """What stands under a qualified name in a module, whoever defined it."""
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def defined_in(module: str, path: str) -> Any:
    """A function, class or method that a module itself defines; None for anything that it has from elsewhere."""
    holder: Any = importlib.import_module(module)
    found: Any = None
    for part in path.split("."):
        if part.startswith("__") or (found is not None and not isinstance(found, type)):
            return None
        member = vars(holder).get(part)
        found = holder = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
        is_code = isinstance(found, (type, FunctionType, BuiltinFunctionType)) or hasattr(found, "__wrapped__")
        if not is_code or getattr(found, "__module__", None) != module:
            return None
    return find(module, path)  # methods of classes as Python binds them
