"""What a training may be told, as plain values with defaults that train well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, get_type_hints

from foldloom.errors import ArgumentError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every task has. Tasks add their own; all are booleans, whole numbers, numbers or strings."""

    seed: int = 0
    epochs: int = 10
    batch: int = 32
    """Examples of a step, all processes together."""
    learning_rate: float = 1e-3
    """The highest."""
    clip: float = 5.0
    """The greatest norm of a gradient; 0 lets all pass."""

    def changed(self, written: Mapping[str, str]) -> Self:
        """With some of them as they are written on a command line.

        >>> Settings().changed({"epochs": "3"}).epochs
        3
        """
        types = get_type_hints(type(self))
        for name in written:
            if name not in types:
                raise ArgumentError(
                    f"there is no setting {name!r}; there are {', '.join(f.name for f in fields(self))}"
                )
        values: dict[str, Any] = {name: _read(name, text, types[name]) for name, text in written.items()}
        return replace(self, **values)


def _read(name: str, text: str, type: type) -> Any:
    try:
        return _BOOLEANS[text] if type is bool else type(text)
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"expected {_WORD_FOR[type]} for the setting {name!r}, not {text!r}") from error


_BOOLEANS = {"true": True, "false": False}
_WORD_FOR = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
