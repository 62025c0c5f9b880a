"""Blocks that only pass values on, written out as the function that one would write by hand.

Every list, loop and call around a block's own would be paid at every node of every example. So such blocks do not call each other:
each adds its lines to a *page*, which becomes one Python function. That of a tree is called once for a node, and calls itself.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from foldloom.blocks.types import BlockType, TupleType
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.scope import scope

if TYPE_CHECKING:
    from foldloom.blocks.block import Block
    from foldloom.blocks.compiler.lowering import Lowering, Run

_HERE = os.path.dirname(os.path.abspath(__file__))
_DEEPEST = 20
"""Levels of indentation, beyond which a block gets a function of its own: Python has a limit, and a reader too."""


class Written:
    """What a block that writes itself out has to say. A mixin of `Block`."""

    @abstractmethod
    def write(self, page: Page, value: str) -> str:
        """Add the lines that this block needs; an expression for its output, given one for its input. Both cost nothing to
        evaluate again: a name, an item of a name, or a tuple of such."""

    def lowered(self, lower: Lowering) -> Run:
        return Page(lower).function(self)


class Page:
    """A function under construction."""

    def __init__(self, lower: Lowering) -> None:
        self.lower = lower
        self._lines: list[str] = []
        self._indentation = "    "
        self._items: dict[str, Sequence[str]] = {}
        self._records = False

    def function(self, block: Written) -> Run:
        result = block.write(self, "value")
        head = ["def run(value):", *(["    recorder = scope.recorder"] if self._records else [])]
        source = "\n".join([*head, *self._lines, f"    return {result}"])
        # A file of ours, so that nobody takes it for the user's.
        code = compile(source, os.path.join(_HERE, f"<{type(block).__name__}>"), "exec")
        made: dict[str, Run] = {}
        self.lower.namespace["scope"] = scope
        exec(code, self.lower.namespace, made)
        return made["run"]

    def block(self, block: Block, value: str) -> str:
        """The output of a part."""
        if isinstance(block, Written) and not self.lower.is_shared(block) and len(self._indentation) < 4 * _DEEPEST:
            return block.write(self, value)
        return self.assign(f"{self.lower.name_of(block)}({value})")

    def line(self, text: str) -> None:
        self._lines.append(self._indentation + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer = self._indentation
        # What is unpacked within may not have been elsewhere.
        items = dict(self._items)
        self._indentation += "    "
        yield
        self._indentation, self._items = outer, items

    def assign(self, expression: str) -> str:
        """A name for the value of an expression."""
        name = self.lower.new_name("value")
        self.line(f"{name} = {expression}")
        return name

    def name(self, thing: Any, hint: str = "constant") -> str:
        """A name for something that is there before any example is."""
        name = self.lower.new_name(hint)
        self.lower.namespace[name] = thing
        return name

    def tuple(self, items: Sequence[str]) -> str:
        expression = f"({', '.join(items)},)" if items else "()"
        self._items[expression] = items
        return expression

    def items(self, value: str, count: int) -> Sequence[str]:
        """The parts of a tuple of so many."""
        if value not in self._items:
            names = [self.lower.new_name("value") for _ in range(count)]
            self.line(f"{''.join([f'{name}, ' for name in names]) or '()'} = {value}")
            self._items[value] = names
        return self._items[value]

    def flat(self, value: str, type: BlockType) -> list[str]:
        """The parts of nested tuples, one for each terminal type."""
        if not isinstance(type, TupleType):
            return [value]
        items = zip(self.items(value, len(type.items)), type.items, strict=True)
        return [part for item, item_type in items for part in self.flat(item, item_type)]

    def call(self, cell: Cell, arguments: Sequence[str]) -> str:
        """A call of a cell; straight to the recorder, where there is one."""
        self._records = True
        name, listed = self.name(cell, "cell"), ", ".join(arguments)
        comma = "," if len(arguments) == 1 else ""
        return self.assign(
            f"{name}({listed}) if recorder is None else recorder.call({name}, ({listed}{comma}), {self.name({}, 'no_settings')})"
        )

    def looked_up(self, value: str, key: Any, otherwise: Callable[[Any], Any]) -> str:
        """``value[key]``; whatever is there instead of a value that has it, ``otherwise`` is called and says so."""
        found = self.lower.new_name("value")
        self.line(f"try: {found} = {value}[{self.name(key, 'key')}]")
        self.line(f"except {self.name(LOOKUP_ERRORS)}: {found} = {self.name(otherwise, 'look')}({value})")
        return found


LOOKUP_ERRORS = (KeyError, IndexError, TypeError, AttributeError)
