"""Reading one block's output from another, inside a composition."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foldloom.errors import WiringError
from foldloom.tracing.scope import user_line

if TYPE_CHECKING:
    from foldloom.blocks.block import Block
    from foldloom.blocks.combinators.composition import Composition


@dataclass(frozen=True, eq=False)
class Wire:
    """One of the outputs of a block, by its position, a slice of positions, or the key of a record."""

    source: Block | Wire
    key: Any

    def __getitem__(self, key: Any) -> Wire:
        return Wire(self, key)

    def __repr__(self) -> str:
        return f"{self.source!r}[{self.key!r}]"


class _Open(threading.local):
    def __init__(self) -> None:
        self.compositions: list[Composition] = []


_open = _Open()


class Scope:
    """While it lasts, blocks that read others do so in this composition."""

    def __init__(self, composition: Composition) -> None:
        self._composition = composition

    def __enter__(self) -> Composition:
        _open.compositions.append(self._composition)
        return self._composition

    def __exit__(self, kind: object, *_: object) -> None:
        _open.compositions.pop()
        if kind is None:
            self._composition.check_unused()


def connect_in_scope(block: Block, sources: Sequence[Any]) -> None:
    if not _open.compositions:
        raise WiringError(
            f"{block!r:.80} reads other blocks, which only a composition allows. Write `comp = fb.Composition()` and then, inside "
            f"`with comp.scope():`, this line; or `>>` for one block after another\n  at {user_line()}"
        )
    _open.compositions[-1].wire(block, sources)
