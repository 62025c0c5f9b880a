"""Code generation: blocks that only pass values on become the Python function that one would write by hand.

A list, loop or call that blocks add would be paid at every node of every example. So these blocks do not call each other: each
emits its lines into a `CodeBuilder`, which compiles them to one function. That of a recursive block calls itself.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from foldloom.blocks.lowering.lowering import Lowerable, Lowering, Run
from foldloom.blocks.types import BlockType, TupleType
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.scope import scope

_HERE = os.path.dirname(os.path.abspath(__file__))
_DEEPEST = 20
"""Levels of indentation after which a block gets a function of its own: Python limits them."""

LOOKUP_ERRORS = (KeyError, IndexError, TypeError, AttributeError)


class Generated(Lowerable):
    """A mixin of `Block`, for blocks that generate code."""

    @abstractmethod
    def emit(self, code: CodeBuilder, value: str) -> str:
        """Emit the lines of this block. ``value`` is an expression for the input; the result is one for the output. Both are
        free to evaluate several times: a name, an item of a name, or a tuple of such."""

    def lowered(self, lower: Lowering) -> Run:
        return CodeBuilder(lower).function(self)


class CodeBuilder:
    """The source of one function under construction."""

    def __init__(self, lower: Lowering) -> None:
        self.lower = lower
        self._lines: list[str] = []
        self._indentation = "    "
        self._items: dict[str, Sequence[str]] = {}
        self._records = False

    def function(self, block: Generated) -> Run:
        """The function of a block."""
        result = block.emit(self, "value")
        head = ["def run(value):", *(["    recorder = scope.recorder"] if self._records else [])]
        source = "\n".join([*head, *self._lines, f"    return {result}"])
        # Its file name is in this package, so error messages do not point to it as a line of the user's.
        compiled = compile(source, os.path.join(_HERE, f"<{type(block).__name__}>"), "exec")
        made: dict[str, Run] = {}
        self.lower.namespace["scope"] = scope
        exec(compiled, self.lower.namespace, made)
        return made["run"]

    def block(self, block: Lowerable, value: str) -> str:
        """The output of a part: its code inlined, or a call of its function."""
        inlined = isinstance(block, Generated) and not self.lower.is_shared(block)
        if inlined and len(self._indentation) < 4 * _DEEPEST:
            assert isinstance(block, Generated)
            return block.emit(self, value)
        return self.assign(f"{self.lower.name_of(block)}({value})")

    def line(self, text: str) -> None:
        self._lines.append(self._indentation + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        outer = self._indentation
        # A tuple that is unpacked in one branch may not be unpacked in another.
        items = dict(self._items)
        self._indentation += "    "
        yield
        self._indentation, self._items = outer, items

    def assign(self, expression: str) -> str:
        """A new variable with the value of an expression."""
        name = self.lower.new_name("value")
        self.line(f"{name} = {expression}")
        return name

    def name(self, thing: Any, hint: str = "constant") -> str:
        """A global name for an object that the code refers to."""
        name = self.lower.new_name(hint)
        self.lower.namespace[name] = thing
        return name

    def tuple(self, items: Sequence[str]) -> str:
        expression = f"({', '.join(items)},)" if items else "()"
        self._items[expression] = items
        return expression

    def items(self, value: str, count: int) -> Sequence[str]:
        """Names for the items of a tuple of this length. It is unpacked once."""
        if value not in self._items:
            names = [self.lower.new_name("value") for _ in range(count)]
            self.line(f"{''.join([f'{name}, ' for name in names]) or '()'} = {value}")
            self._items[value] = names
        return self._items[value]

    def flat(self, value: str, type: BlockType) -> list[str]:
        """The leaves of nested tuples."""
        if not isinstance(type, TupleType):
            return [value]
        items = zip(self.items(value, len(type.items)), type.items, strict=True)
        return [part for item, item_type in items for part in self.flat(item, item_type)]

    def call(self, cell: Cell, arguments: Sequence[str]) -> str:
        """A call of a cell. While recording it goes straight to the recorder."""
        self._records = True
        name, listed = self.name(cell, "cell"), ", ".join(arguments)
        comma = "," if len(arguments) == 1 else ""
        return self.assign(
            f"{name}({listed}) if recorder is None else recorder.call({name}, ({listed}{comma}), {self.name({}, 'no_settings')})"
        )

    def lookup(self, value: str, key: Any, otherwise: Callable[[Any], Any]) -> str:
        """``value[key]``. If that fails, ``otherwise(value)``, which raises an error with more to say."""
        found = self.lower.new_name("value")
        self.line(f"try: {found} = {value}[{self.name(key, 'key')}]")
        self.line(f"except {self.name(LOOKUP_ERRORS)}: {found} = {self.name(otherwise, 'look')}({value})")
        return found
