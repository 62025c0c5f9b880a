"""Nested values: how containers of any class are taken apart, and put together again or changed where they stand.

There is one `Kind` for each sort of container, and everything that walks over nested values goes by it. No code of the user's
runs: an object is copied by its attributes, not by calling its class, and a subclass of dict is read and written as a dict.
This module knows no torch; who does says which of its classes are not to be looked into (`keep_whole`).
"""

from __future__ import annotations

import dataclasses
import enum
import gc
import sys
import types
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

Entries = Sequence[tuple[Any, Any]]
"""What a container holds: a key, which says where, and an item each."""


class Kind(ABC):
    """How containers of one class are taken apart and made. Kinds have no state: one serves for all containers of a class."""

    is_mutable = True
    is_list = False
    """Whether it may have any length, so that a stack of several is ragged."""
    is_object = False
    can_make = True
    """Whether one can be made without calling its class."""

    def extra(self, value: Any) -> Hashable:
        """What a container has beside its entries."""
        return None

    @abstractmethod
    def entries(self, value: Any) -> Entries: ...

    @abstractmethod
    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any: ...

    def add(self, value: Any, entries: Entries) -> None:
        """Fill a container that was made without entries."""
        raise TypeError(f"a {type(value).__name__} does not change")

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        """Change one item where it stands, if it is still there."""
        raise TypeError(f"a {type(value).__name__} does not change")


class _Tuple(Kind):
    is_mutable = False

    def entries(self, value: Any) -> Entries:
        return list(enumerate(tuple.__iter__(value)))

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        return maker_of_tuples(cls)([item for _, item in entries])


class _List(Kind):
    is_list = True

    def __init__(self, base: Any = list) -> None:
        self._base = base

    def entries(self, value: Any) -> Entries:
        return list(enumerate(self._base.__iter__(value)))

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        made = self._base.__new__(cls)
        self.add(made, entries)
        return made

    def add(self, value: Any, entries: Entries) -> None:
        self._base.extend(value, [item for _, item in entries])

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        if key < self._base.__len__(value) and self._base.__getitem__(value, key) is old:
            self._base.__setitem__(value, key, new)


class _Deque(_List):
    def __init__(self) -> None:
        super().__init__(deque)

    def extra(self, value: Any) -> Hashable:
        return value.maxlen  # type: ignore[no-any-return]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        made: Any = deque.__new__(cls)
        length: Any = extra
        deque.__init__(made, [item for _, item in entries], length)
        return made


class _Dict(Kind):
    def __init__(self, base: Any = dict) -> None:
        self._base = base

    def entries(self, value: Any) -> Entries:
        return list(self._base.items(value))

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        made = self._base.__new__(cls)
        self.add(made, entries)
        return made

    def add(self, value: Any, entries: Entries) -> None:
        for key, item in entries:
            self._base.__setitem__(value, key, item)

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        if dict.get(value, key) is old:
            self._base.__setitem__(value, key, new)


class _DefaultDict(_Dict):
    def extra(self, value: Any) -> Hashable:
        return value.default_factory  # type: ignore[no-any-return]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        made = super().make(cls, None, entries)
        made.default_factory = extra
        return made


class _Set(Kind):
    def entries(self, value: Any) -> Entries:
        return [(None, item) for item in set.__iter__(value)]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        made: set[Any] = set.__new__(cls)
        self.add(made, entries)
        return made

    def add(self, value: Any, entries: Entries) -> None:
        set.update(value, [item for _, item in entries])

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        if old in value:
            set.discard(value, old)
            set.add(value, new)


class _FrozenSet(Kind):
    is_mutable = False

    def entries(self, value: Any) -> Entries:
        return [(None, item) for item in frozenset.__iter__(value)]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        return frozenset.__new__(cls, [item for _, item in entries])


class _Slice(Kind):
    is_mutable = False

    def entries(self, value: Any) -> Entries:
        return list(enumerate((value.start, value.stop, value.step)))

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        return slice(*[item for _, item in entries])


class _View(Kind):
    """A view of a dict: the dict is its one item, as the view must go on showing that very dict."""

    is_mutable = False

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._make = make

    def entries(self, value: Any) -> Entries:
        return [(0, gc.get_referents(value)[0])]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        return self._make(entries[0][1])


class _Object(Kind):
    """Any object whose attributes are in its `__dict__` or in slots."""

    is_object = True

    def __init__(self, cls: type) -> None:
        self._slots = {
            name: found
            for base in cls.__mro__
            for name, found in vars(base).items()
            if type(found) is types.MemberDescriptorType and _is_of_python(base)
        }
        self._has_dict = cls.__dictoffset__ != 0
        static = next(base for base in cls.__mro__ if not _is_of_python(base))
        self.can_make = static in (object, types.SimpleNamespace)
        self._new: Any = static.__new__

    @property
    def has_attributes(self) -> bool:
        return self._has_dict or bool(self._slots)

    def entries(self, value: Any) -> Entries:
        entries = list(value.__dict__.items()) if self._has_dict else []
        for name, slot in self._slots.items():
            try:
                entries.append((name, slot.__get__(value)))
            except AttributeError:
                continue  # not set
        return entries

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        made = self._new(cls)
        self.add(made, entries)
        return made

    def add(self, value: Any, entries: Entries) -> None:
        for name, item in entries:
            self._set(value, name, item)

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        slot = self._slots.get(key)
        if (value.__dict__.get(key) if slot is None else slot.__get__(value)) is old:
            self._set(value, key, new)

    def _set(self, value: Any, name: str, item: Any) -> None:
        """Past a `__setattr__` that refuses, as that of frozen dataclasses does, or that does more than to set."""
        slot = self._slots.get(name)
        if slot is None:
            value.__dict__[name] = item
        else:
            slot.__set__(value, item)


class _Attribute(NamedTuple):
    """The key of an attribute of a container, beside which the container has keys of its own."""

    name: str


class _WithAttributes(Kind):
    """A subclass of a container, whose instances have attributes too: what HuggingFace's models return is a dict and a dataclass."""

    def __init__(self, inner: Kind, attributes: _Object) -> None:
        self._inner, self._attributes = inner, attributes
        self.is_mutable, self.is_list = inner.is_mutable, inner.is_list

    def extra(self, value: Any) -> Hashable:
        return self._inner.extra(value)

    def entries(self, value: Any) -> Entries:
        of_attributes = [(_Attribute(name), item) for name, item in self._attributes.entries(value)]
        return [*self._inner.entries(value), *of_attributes]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        inner = [(key, item) for key, item in entries if type(key) is not _Attribute]
        made = self._inner.make(cls, extra, inner)
        self._attributes.add(made, [(key.name, item) for key, item in entries if type(key) is _Attribute])
        return made

    def add(self, value: Any, entries: Entries) -> None:
        self._inner.add(value, [(key, item) for key, item in entries if type(key) is not _Attribute])
        self._attributes.add(value, [(key.name, item) for key, item in entries if type(key) is _Attribute])

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        if type(key) is _Attribute:
            self._attributes.replace(value, key.name, old, new)
        else:
            self._inner.replace(value, key, old, new)


def maker_of_tuples(cls: type) -> Callable[[Sequence[Any]], Any]:
    """What makes a tuple of this class of its items."""
    # A named tuple may have a `__new__` of its own; classes made in C, those of torch.return_types say, must be called.
    is_of_c = hasattr(cls, "n_sequence_fields") or not _is_of_python(cls)
    return cls if is_of_c else partial(tuple.__new__, cls)


_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8


def _is_of_python(cls: type) -> bool:
    """Whether a class was made by a class statement, so that nothing of its instances is hidden in C."""
    return cls.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE


class _Function(Kind):
    """A function of Python's, which may hold values in its closure and in its defaults. It is a leaf, but in a result it is looked into."""

    is_object = True
    can_make = False

    def entries(self, value: Any) -> Entries:
        cells = [cell for cell in value.__closure__ or () if cell != types.CellType()]
        defaults = list(enumerate(value.__defaults__ or ()))
        return [*[(cell, cell.cell_contents) for cell in cells], *defaults, *(value.__kwdefaults__ or {}).items()]

    def make(self, cls: type, extra: Hashable, entries: Entries) -> Any:
        raise TypeError("a function is not copied")

    def replace(self, value: Any, key: Any, old: Any, new: Any) -> None:
        if isinstance(key, int):
            value.__defaults__ = (*value.__defaults__[:key], new, *value.__defaults__[key + 1 :])
        elif isinstance(key, str):
            value.__kwdefaults__[key] = new
        elif key.cell_contents is old:
            key.cell_contents = new


FUNCTION = _Function()

# The most special first.
_CONTAINERS: tuple[tuple[type, Kind], ...] = (
    (tuple, _Tuple()),
    (list, _List()),
    (defaultdict, _DefaultDict(defaultdict)),
    (OrderedDict, _Dict(OrderedDict)),
    (dict, _Dict()),
    (deque, _Deque()),
    (set, _Set()),
    (frozenset, _FrozenSet()),
    (slice, _Slice()),
    (types.MappingProxyType, _View(types.MappingProxyType)),
    (type({}.values()), _View(dict.values)),
    (type({}.items()), _View(dict.items)),
)
_whole: tuple[type, ...] = (type, types.FunctionType, types.ModuleType, enum.Enum, BaseException)
_kind_of: dict[type, Kind | None] = {}

Class = TypeVar("Class", bound=type)


def keep_whole(*classes: type) -> None:
    """Instances of these classes, and of classes made of them, are leaves."""
    global _whole
    _whole = (*_whole, *classes)
    _kind_of.clear()


def leaf(cls: Class) -> Class:
    """A decorator for tuples of ours that stand for one thing."""
    keep_whole(cls)
    return cls


def is_whole(cls: type) -> bool:
    return issubclass(cls, _whole)


def kind_of(cls: type) -> Kind | None:
    """How instances of a class are taken apart; None if they are leaves."""
    try:
        return _kind_of[cls]
    except KeyError:
        return _kind_of.setdefault(cls, _find_kind(cls))


def _find_kind(cls: type) -> Kind | None:
    if is_whole(cls):
        return None
    for base, kind in _CONTAINERS:
        if cls is base:
            return kind
        if issubclass(cls, base):
            attributes = _Object(cls)
            return _WithAttributes(kind, attributes) if _is_of_python(cls) and attributes.has_attributes else kind
    module = str(cls.__module__).partition(".")[0]
    if module in sys.stdlib_module_names and module != "collections" and not is_record(cls):
        return None  # loggers, locks, files: what they hold is their own affair
    found = _Object(cls)
    return found if found.has_attributes else None


def is_record(cls: type) -> bool:
    """Whether instances of a class are nothing but their attributes."""
    return dataclasses.is_dataclass(cls) or hasattr(cls, "__attrs_attrs__") or issubclass(cls, types.SimpleNamespace)


def map_items(value: Any, function: Callable[[Any], Any]) -> Any:
    """A tuple, list or dict with each item replaced; anything else as it is."""
    if type(value) is list:
        return [function(item) for item in value]
    if type(value) is tuple:
        return tuple([function(item) for item in value])
    if type(value) is dict:
        return {key: function(item) for key, item in value.items()}
    kind = kind_of(type(value)) if isinstance(value, (tuple, list, dict)) else None
    if kind is None:
        return value
    entries = [(key, function(item)) for key, item in kind.entries(value)]
    return kind.make(type(value), kind.extra(value), entries)
