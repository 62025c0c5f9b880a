"""Inside a composition: reading the output of a block, or one item of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from foldloom.errors import WiringError
from foldloom.tracing.scope import user_line


@dataclass(frozen=True, eq=False)
class Wire:
    """One output of a block, by its position, a slice of positions, or the key of a record."""

    source: object
    key: Any

    def __getitem__(self, key: Any) -> Wire:
        return Wire(self, key)

    def __repr__(self) -> str:
        return f"{self.source!r}[{self.key!r}]"


class Wirable(Protocol):
    """A composition."""

    def wire(self, block: Any, sources: Sequence[Any]) -> None: ...

    def check_unused(self) -> None: ...


Composition = TypeVar("Composition", bound=Wirable)


class _Open(threading.local):
    def __init__(self) -> None:
        self.compositions: list[Wirable] = []


_open = _Open()


class Scope(Generic[Composition]):
    """Within it, ``block.reads(...)`` connects blocks of this composition."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition

    def __enter__(self) -> Composition:
        _open.compositions.append(self._composition)
        return self._composition

    def __exit__(self, kind: object, *_: object) -> None:
        _open.compositions.pop()
        if kind is None:
            self._composition.check_unused()


def connect_in_scope(block: object, sources: Sequence[Any]) -> None:
    if not _open.compositions:
        raise WiringError(
            f"{block!r:.80} reads other blocks, which only a composition allows. Write `comp = fb.Composition()` and then, inside "
            f"`with comp.scope():`, this line; or `>>` for one block after another\n  at {user_line()}"
        )
    _open.compositions[-1].wire(block, sources)
