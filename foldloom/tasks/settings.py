"""What a training may be told, as plain values with defaults that train well, each with its meaning and its range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self, get_type_hints

from foldloom.data.opening import MIB, Limits
from foldloom.errors import ArgumentError

LARGEST_SIZE = 4096
"""Of vectors and states: weights of a layer grow with its square."""


@dataclass(frozen=True)
class Range:
    """Which values a setting may have."""

    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: Sequence[str] = ()

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, str):
            return not self.choices or value in self.choices
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (self.at_least is None or value >= self.at_least)
            and (self.at_most is None or value <= self.at_most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """After the kind of value that it is: ``from 1 to 10``."""
        if self.choices:
            return " or ".join(self.choices)
        parts = [
            f"{word} {limit:,}"
            for word, limit in (
                ("above", self.above),
                ("from", self.at_least),
                ("to", self.at_most),
                ("below", self.below),
            )
            if limit is not None
        ]
        return " ".join(parts)


_TYPES: dict[type, dict[str, Any]] = {}


def types_of(kind: type) -> dict[str, Any]:
    """Of the fields of a class. Annotations are texts, which Python evaluates anew each time that it is asked."""
    if kind not in _TYPES:
        _TYPES[kind] = get_type_hints(kind)
    return _TYPES[kind]


def setting(default: Any, meaning: str, **range: Any) -> Any:
    """A field of `Settings`; ``range`` is that of a `Range`.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Mine(Settings):
    ...     hidden: int = setting(64, "The size of states.", at_least=1, at_most=512)
    >>> Mine().changed({"hidden": "0"})
    Traceback (most recent call last):
    foldloom.errors.ArgumentError: expected a whole number from 1 to 512 for the setting 'hidden', not 0
    """
    return field(default=default, metadata={"meaning": meaning, "range": Range(**range)})


def size(default: int, meaning: str) -> Any:
    """A setting that is a size of vectors or states."""
    return setting(default, meaning, at_least=1, at_most=LARGEST_SIZE)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every task has. Tasks add their own; all are booleans, whole numbers, numbers or strings. Fields that are plain, without
    `setting`, may have any value of their type.

    >>> from foldloom import tasks
    >>> settings = tasks.TASKS["adding"].defaults()
    >>> settings.changed({"epochs": "3"}).epochs
    3
    >>> settings.changed({"epochs": "0"})
    Traceback (most recent call last):
        ...
    foldloom.errors.ArgumentError: expected a whole number from 1 to 1,000,000 for the setting 'epochs', not 0
    """

    seed: int = setting(0, "Of weights, order, dropout and examples that are made up.", at_least=0, at_most=2**32 - 1)
    epochs: int = setting(10, "How often all examples are seen.", at_least=1, at_most=1_000_000)
    batch: int = setting(32, "Examples of a step, all processes together.", at_least=1, at_most=1_000_000)
    learning_rate: float = setting(1e-3, "The highest.", above=0, at_most=100)
    clip: float = setting(5.0, "The greatest norm of a gradient; 0 lets all pass.", at_least=0)
    file_limit: int = setting(
        1024, "Files of data of more MiB than this, unpacked, are refused.", at_least=1, at_most=1 << 20
    )
    line_limit: int = setting(16, "Lines of more MiB than this are refused.", at_least=1, at_most=1024)

    def __post_init__(self) -> None:
        types = types_of(type(self))
        for each in fields(self):
            kind, value = types[each.name], getattr(self, each.name)
            is_whole = kind is float and type(value) is int
            if not (type(value) is kind or is_whole) or value not in _about(type(self), each.name).range:
                raise _refused(type(self), each.name, kind, value)

    def changed(self, written: Mapping[str, str]) -> Self:
        """With some of them as they are written on a command line.

        >>> Settings().changed({"epochs": "3"}).epochs
        3
        """
        types = types_of(type(self))
        names = [each.name for each in fields(self)]
        for name in written:
            if name not in names:
                raise ArgumentError(f"there is no setting {_cut(name)}; there are {', '.join(names)}")
        return replace(self, **{name: self._read(name, text, types[name]) for name, text in written.items()})

    def _read(self, name: str, text: str, kind: type) -> Any:
        try:
            return _BOOLEANS[text] if kind is bool else kind(text)
        except (KeyError, ValueError) as error:
            raise _refused(type(self), name, kind, text) from error

    @property
    def limits(self) -> Limits:
        """How large data may be."""
        return Limits(line=self.line_limit * MIB, file=self.file_limit * MIB)

    def described(self) -> Iterator[tuple[str, str, str, str]]:
        """For each setting its name, its value, what it may be, and its meaning."""
        types = types_of(type(self))
        for each in fields(self):
            about, value = _about(type(self), each.name), getattr(self, each.name)
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            yield each.name, shown, about.wanted(types[each.name]), about.meaning


@dataclass(frozen=True)
class _About:
    meaning: str = ""
    range: Range = Range()

    def wanted(self, kind: type) -> str:
        return str(self.range) if self.range.choices else f"{_WORD_FOR.get(kind, kind.__name__)} {self.range}".rstrip()


def _about(settings: type[Settings], name: str) -> _About:
    """Of a setting, or of the one that it is a new default for."""
    for kind in settings.__mro__:
        own = getattr(kind, "__dataclass_fields__", {}).get(name)
        if own is not None and own.metadata:
            return _About(own.metadata["meaning"], own.metadata["range"])
    return _About()


def _refused(settings: type[Settings], name: str, kind: type, value: Any) -> ArgumentError:
    wanted = _about(settings, name).wanted(kind)
    return ArgumentError(f"expected {wanted} for the setting {name!r}, not {_cut(value)}")


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


_BOOLEANS = {"true": True, "false": False}
_WORD_FOR = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
