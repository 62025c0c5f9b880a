"""What expressions in a file may do: functions of plain data, each ours, with bounded cost.

Plain data are numbers, strings, None, and lists, tuples, sets, dicts, ranges and arrays of them. Objects of other classes can be passed on,
asked for their length and for items, and no more: nothing here looks up an attribute that a file names, nor calls what a file made.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Set
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from foldloom.runtime.limits import Meter

MOST_ITEMS = 1_000_000
"""The longest list, string or array that an expression may make, and the most parts of what is compared, sorted or used as a key."""

MOST_LEVELS = 100
"""The deepest value that may be compared, sorted or used as a key."""

MOST_BITS = 4096
"""The largest product of integers."""

_SCALARS = frozenset((type(None), bool, int, float, complex, str, bytes))
_NUMBERS = (int, float, complex, np.number, np.bool_)
_SEQUENCES: tuple[Any, ...] = (str, list, tuple, bytes)
_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
TYPES: dict[str, type] = {
    cls.__name__: cls for cls in (bool, dict, float, frozenset, int, list, range, set, str, tuple)
}
"""What `isinstance` can be asked for."""


# ---- Bounds.


def look_through(meter: Meter, value: Any) -> None:
    """Refuse a value with too many parts or levels. One whose parts stand in many places is as large as if they were copies."""
    if type(value) in _SCALARS or not isinstance(value, (list, tuple, set, frozenset, dict)):
        return
    count, waiting = 0, [(value, 1)]
    while waiting:
        container, level = waiting.pop()
        count += len(container)
        if count > MOST_ITEMS or level > MOST_LEVELS:
            raise ValueError(f"a value of more than {MOST_ITEMS:,} parts or {MOST_LEVELS} levels")
        meter.spend(1 + len(container) // 8)
        parts = [*container, *container.values()] if isinstance(container, dict) else container
        if not _SCALARS.issuperset(map(type, parts)):
            waiting += [(part, level + 1) for part in parts if isinstance(part, (list, tuple, set, frozenset, dict))]


def _check_length(meter: Meter, length: int) -> None:
    if length > MOST_ITEMS:
        raise ValueError(f"it would have {length:,} items, more than {MOST_ITEMS:,}")
    meter.spend(length // 8)


def items_of(meter: Meter, value: Any) -> Collection[Any]:
    """A value to go through."""
    if isinstance(value, _CODE) or not isinstance(value, Collection):
        raise TypeError(f"{type(value).__name__} has no items")
    _check_length(meter, len(value))
    meter.spend(len(value))
    return value


def _is_number(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc" and value.size <= MOST_ITEMS
    return isinstance(value, _NUMBERS)


def _cannot(sign: str, left: Any, right: Any) -> TypeError:
    return TypeError(f"{type(left).__name__} {sign} {type(right).__name__}")


# ---- Operators.


def add(meter: Meter, left: Any, right: Any) -> Any:
    if _is_number(left) and _is_number(right):
        return left + right
    for kind in _SEQUENCES:
        if isinstance(left, kind) and isinstance(right, kind):
            _check_length(meter, len(left) + len(right))
            return kind.__add__(left, right)
    raise _cannot("+", left, right)


def multiply(meter: Meter, left: Any, right: Any) -> Any:
    if _is_number(left) and _is_number(right):
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MOST_BITS:
            raise ValueError(f"a product of more than {MOST_BITS} bits")
        return left * right
    if isinstance(left, int):
        left, right = right, left
    for kind in _SEQUENCES:
        if isinstance(left, kind) and isinstance(right, int):
            _check_length(meter, len(left) * max(0, right))
            return kind.__mul__(left, right)
    raise _cannot("*", left, right)


_SPECIFIERS = re.compile(r"%([sdifgr%])")


def modulo(meter: Meter, left: Any, right: Any) -> Any:
    if _is_number(left) and _is_number(right):
        return left % right
    values: tuple[Any, ...] = right if isinstance(right, tuple) else (right,)
    if isinstance(left, str) and _SCALARS.issuperset(map(type, values)):
        if "%" in _SPECIFIERS.sub("", left):
            raise ValueError("a format of other than %s, %d, %i, %f, %g and %r")
        _check_length(meter, len(left) + sum([len(value) if isinstance(value, str) else 1300 for value in values]))
        return str.__mod__(left, values)
    raise _cannot("%", left, right)


def _numeric(sign: str, compute: Callable[[Any, Any], Any], also: tuple[Any, ...] = ()) -> Callable[..., Any]:
    def operate(meter: Meter, left: Any, right: Any) -> Any:
        if _is_number(left) and _is_number(right):
            return compute(left, right)
        if also and isinstance(left, also) and isinstance(right, also):
            _check_length(meter, len(left) + len(right))
            return compute(left, right)
        raise _cannot(sign, left, right)

    return operate


BINARY: dict[str, Callable[..., Any]] = {
    "Add": add,
    "Mult": multiply,
    "Mod": modulo,
    "Sub": _numeric("-", operator.sub, (Set,)),
    "Div": _numeric("/", operator.truediv),
    "FloorDiv": _numeric("//", operator.floordiv),
    "BitAnd": _numeric("&", operator.and_, (Set,)),
    "BitOr": _numeric("|", operator.or_, (Set, dict)),
    "BitXor": _numeric("^", operator.xor, (Set,)),
}

_UNARY: dict[str, Callable[[Any], Any]] = {"UAdd": operator.pos, "USub": operator.neg, "Invert": operator.invert}


def unary(name: str, value: Any) -> Any:
    if name == "Not":
        return not truth(value)
    if not _is_number(value):
        raise TypeError(f"a sign before {type(value).__name__}")
    return _UNARY[name](value)


def truth(value: Any) -> bool:
    if isinstance(value, _CODE):
        raise TypeError("a function is neither true nor false")
    return bool(value)


def _is_in(meter: Meter, item: Any, container: Any) -> bool:
    if isinstance(container, range):
        return isinstance(item, int) and item in container
    if isinstance(container, (str, bytes)):
        meter.spend(len(container) // 8)
        return item in container
    look_through(meter, item)
    if not isinstance(container, (dict, set, frozenset)):
        items_of(meter, container)
        look_through(meter, container)
    return item in container


_ORDERINGS = {"Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge}  # fmt: skip


def compare(meter: Meter, name: str, left: Any, right: Any) -> Any:
    if name == "Is":
        return left is right
    if name == "IsNot":
        return left is not right
    if name == "In":
        return _is_in(meter, left, right)
    if name == "NotIn":
        return not _is_in(meter, left, right)
    look_through(meter, left)
    look_through(meter, right)
    return _ORDERINGS[name](left, right)


def item(meter: Meter, value: Any, key: Any) -> Any:
    """``value[key]``."""
    if isinstance(value, _CODE):
        raise TypeError(f"{type(value).__name__} has no items")
    if type(key) not in _SCALARS:
        if isinstance(value, np.ndarray) and not all(
            isinstance(part, (int, slice, type(None))) for part in (key if isinstance(key, tuple) else (key,))
        ):
            raise TypeError("an array takes numbers and slices in brackets")
        look_through(meter, key)
    if isinstance(key, slice):
        meter.spend(len(value) // 8)
    return value[key]


def attribute(value: Any, path: str) -> Any:
    """A field of a dataclass or of a named tuple, or of one in it: ``head.word``. Properties and methods are none."""
    for name in path.split("."):
        cls = type(value)
        if isinstance(value, tuple) and name in getattr(cls, "_fields", ()):
            value = tuple.__getitem__(value, cls._fields.index(name))
        elif name in getattr(cls, "__dataclass_fields__", ()) and name in getattr(value, "__dict__", ()):
            value = value.__dict__[name]
        elif name in getattr(cls, "__dataclass_fields__", ()) and isinstance(vars(cls).get(name), MemberDescriptorType):
            value = vars(cls)[name].__get__(value)
        else:
            raise TypeError(
                f"{cls.__name__} has no field {name!r:.60}: fields are those of dataclasses and named tuples"
            )
    return value


# ---- Functions.


def _text(meter: Meter, value: Any = "") -> str:
    look_through(meter, value)
    if isinstance(value, _CODE):
        raise TypeError("a function has no text")
    text = str(value)
    _check_length(meter, len(text))
    return text


def _total(meter: Meter, values: Any, start: Any = 0) -> Any:
    for value in items_of(meter, values):
        start = add(meter, start, value)
    return start


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def find(meter: Meter, *values: Any, **default: Any) -> Any:
        candidates = items_of(meter, values[0]) if len(values) == 1 else values
        look_through(meter, list(candidates))
        return choose(candidates, **_only(default, "default"))

    return find


def _only(given: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in given:
        if name not in names:
            raise TypeError(f"there is no argument {name!r:.60}")
    return given


def _sorted(meter: Meter, values: Any, **reverse: Any) -> list[Any]:
    candidates = list(items_of(meter, values))
    look_through(meter, candidates)
    meter.spend(len(candidates))
    return sorted(candidates, **_only(reverse, "reverse"))


def _rounded(meter: Meter, value: Any, digits: Any = None) -> Any:
    if not isinstance(value, _NUMBERS) or (digits is not None and (not isinstance(digits, int) or abs(digits) > 400)):
        raise TypeError("round takes a number, and at most 400 digits")
    return round(value, digits)  # type: ignore[arg-type]


def _integer(meter: Meter, value: Any = 0, base: Any = None) -> int:
    if not isinstance(value, (*_NUMBERS, str, bytes)):
        raise TypeError(f"int of {type(value).__name__}")
    return int(value) if base is None else int(value, base)  # type: ignore[arg-type]


def _floating(meter: Meter, value: Any = 0.0) -> float:
    if not isinstance(value, (*_NUMBERS, str)):
        raise TypeError(f"float of {type(value).__name__}")
    return float(value)  # type: ignore[arg-type]


def _length(meter: Meter, value: Any) -> int:
    if isinstance(value, _CODE):
        raise TypeError(f"len of {type(value).__name__}")
    return len(value)


def _zipped(meter: Meter, *values: Any, strict: bool = False) -> list[Any]:
    return list(zip(*[items_of(meter, value) for value in values], strict=strict))


def _counted(meter: Meter, values: Any, start: int = 0) -> list[Any]:
    return list(enumerate(items_of(meter, values), operator.index(start)))


def _hashed(make: Callable[..., Any]) -> Callable[..., Any]:
    def collect(meter: Meter, values: Any = ()) -> Any:
        look_through(meter, list(items_of(meter, values)))
        return make(values)

    return collect


def _mapping(meter: Meter, values: Any = ()) -> dict[Any, Any]:
    if isinstance(values, dict):
        items_of(meter, values)
        return dict(values)
    pairs = [tuple(items_of(meter, pair)) for pair in items_of(meter, values)]
    look_through(meter, [key for key, _ in pairs])
    return dict(pairs)


def _absolute(meter: Meter, value: Any) -> Any:
    if not _is_number(value):
        raise TypeError(f"abs of {type(value).__name__}")
    return abs(value)


def _range(meter: Meter, *bounds: Any) -> range:
    return range(*map(operator.index, bounds))


def _divided(meter: Meter, left: Any, right: Any) -> Any:
    if not (_is_number(left) and _is_number(right)):
        raise _cannot("divmod", left, right)
    return divmod(left, right)


def _instance(meter: Meter, value: Any, kinds: Any) -> bool:
    found = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(kind in TYPES.values() for kind in found):
        raise TypeError(f"isinstance takes {', '.join(TYPES)}")
    return isinstance(value, found)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _absolute,
    "all": lambda meter, values: all(map(truth, items_of(meter, values))),
    "any": lambda meter, values: any(map(truth, items_of(meter, values))),
    "bool": lambda meter, value=False: truth(value),
    "dict": _mapping,
    "divmod": _divided,
    "enumerate": _counted,
    "float": _floating,
    "frozenset": _hashed(frozenset),
    "int": _integer,
    "isinstance": _instance,
    "len": _length,
    "list": lambda meter, values=(): list(items_of(meter, values)),
    "max": _extreme(max),
    "min": _extreme(min),
    "ord": lambda meter, value: ord(value),
    "range": _range,
    "reversed": lambda meter, values: list(items_of(meter, values))[::-1],
    "round": _rounded,
    "set": _hashed(set),
    "sorted": _sorted,
    "str": _text,
    "sum": _total,
    "tuple": lambda meter, values=(): tuple(items_of(meter, values)),
    "zip": _zipped,
}

_OF_TEXT = (
    "casefold", "count", "endswith", "index", "isalpha", "isdigit", "islower", "isupper", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
)  # fmt: skip
_METHODS: dict[type, frozenset[str]] = {
    str: frozenset(_OF_TEXT),
    bytes: frozenset(_OF_TEXT) - {"casefold"},
    dict: frozenset(("get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
    range: frozenset(("count", "index")),
}
METHODS = frozenset().union(*_METHODS.values())


def method(meter: Meter, name: str, value: Any, *args: Any) -> Any:
    """``value.name(*args)``, by the method of Python's own class."""
    for kind, names in _METHODS.items():
        if isinstance(value, kind) and name in names:
            break
    else:
        raise TypeError(f"{type(value).__name__} has no .{name:.60}()")
    for arg in args:
        look_through(meter, arg)
    if kind in (list, tuple):
        look_through(meter, value)
    elif kind is range and not all(isinstance(arg, int) for arg in args):
        raise TypeError(f"range.{name} takes an integer")
    elif kind in (str, bytes):
        _check_length(meter, _length_after(name, value, args))
    meter.spend(1)
    return getattr(kind, name)(value, *args)


def _length_after(name: str, value: Any, args: tuple[Any, ...]) -> int:
    if name != "replace" or len(args) < 2 or not all(isinstance(arg, type(value)) for arg in args[:2]):
        return len(value)
    return len(value) + int(value.count(args[0])) * len(args[1])
