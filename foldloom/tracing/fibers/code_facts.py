"""What a function may write, read from its bytecode.

Not what it will write: a name that is stored on some line counts, whether the line is reached or not. What is written in ways that
bytecode does not show (`setattr` with a computed name, a list under another name) is noticed when it happens.
"""

from __future__ import annotations

import dis
import weakref
from collections.abc import Iterator
from functools import reduce
from itertools import pairwise
from types import CodeType
from typing import NamedTuple

_MUTATORS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "sort",
        "reverse",
        "appendleft",
        "popleft",
        "extendleft",
        "rotate",
        "add",
        "discard",
        "update",
        "setdefault",
        "popitem",
        "subtract",
        "difference_update",
        "intersection_update",
        "symmetric_difference_update",
        "move_to_end",
        "__setitem__",
        "__delitem__",
        "__iadd__",
        "push",
        "put",
    ]
)
_NOTHING: frozenset[str] = frozenset()


class Facts(NamedTuple):
    """Names in one function, with the functions that are written inside it."""

    attributes: frozenset[str] = _NOTHING
    """Attributes that are stored or deleted: `self.h = ...`."""
    changed_attributes: frozenset[str] = _NOTHING
    """Attributes whose object is changed: `self.log.append(...)`, `self.table[key] = ...`."""
    globals: frozenset[str] = _NOTHING
    """Globals that are stored."""
    cells: frozenset[str] = _NOTHING
    """Variables of enclosing functions that are stored."""
    changed_globals: frozenset[str] = _NOTHING
    """Globals whose object is changed: `log.append(...)`, `table[key] = ...`, `state.count = ...`."""
    changed_cells: frozenset[str] = _NOTHING
    """Variables of enclosing functions whose object is changed."""
    stored_into: frozenset[str] = _NOTHING
    """Variables, of any kind, an attribute of whose object is stored: `state.count = ...`."""
    loaded: frozenset[str] = _NOTHING
    """Globals that are read."""
    names: frozenset[str] = _NOTHING
    """Attributes and methods that are looked up on anything."""

    def union(self, other: Facts) -> Facts:
        return Facts(*[mine | theirs for mine, theirs in zip(self, other, strict=True)])


_facts: dict[int, tuple[weakref.ref[CodeType], Facts]] = {}
"""By the id of the code, because comparing code compares all of it."""


def facts_of(code: CodeType) -> Facts:
    known = _facts.get(id(code))
    if known is not None and known[0]() is code:
        return known[1]
    inner = [facts_of(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    # A variable of this function that an inner one stores is not from outside.
    outside = frozenset(code.co_freevars)
    facts = reduce(Facts.union, inner, _own_facts(code))
    facts = facts._replace(cells=facts.cells & outside, changed_cells=facts.changed_cells & outside)
    key = id(code)
    _facts[key] = weakref.ref(code, lambda _: _facts.pop(key, None)), facts
    return facts


def _own_facts(code: CodeType) -> Facts:
    found: dict[str, set[str]] = {field: set() for field in Facts._fields}
    for line in _lines(code):
        _note_stores(line, found)
        _note_changes(line, found)
    return Facts(**{field: frozenset(names) for field, names in found.items()})


def _lines(code: CodeType) -> Iterator[list[dis.Instruction]]:
    """The instructions of each line: a statement that stores into an object loads it on the same line, nearly always."""
    line: list[dis.Instruction] = []
    for instruction in dis.get_instructions(code):
        if instruction.starts_line is not None and line:
            yield line
            line = []
        line.append(instruction)
    yield line


_STORES = {
    "STORE_ATTR": "attributes", "DELETE_ATTR": "attributes", "STORE_GLOBAL": "globals", "DELETE_GLOBAL": "globals",
    "STORE_DEREF": "cells", "DELETE_DEREF": "cells", "LOAD_GLOBAL": "loaded", "LOAD_NAME": "loaded", "LOAD_ATTR": "names",
    "LOAD_METHOD": "names", "IMPORT_FROM": "names",
}  # fmt: skip


def _note_stores(line: list[dis.Instruction], found: dict[str, set[str]]) -> None:
    for instruction in line:
        field = _STORES.get(instruction.opname)
        if field is not None:
            found[field].add(instruction.argval)


_ROOTS = {
    "LOAD_GLOBAL": "changed_globals", "LOAD_NAME": "changed_globals", "LOAD_DEREF": "changed_cells",
    "LOAD_ATTR": "changed_attributes",
}  # fmt: skip


def _note_changes(line: list[dis.Instruction], found: dict[str, set[str]]) -> None:
    stores_attribute = any(instruction.opname in ("STORE_ATTR", "DELETE_ATTR") for instruction in line)
    for instruction, following in pairwise(line):
        mutates = following.opname in ("LOAD_METHOD", "LOAD_ATTR") and following.argval in _MUTATORS
        # `x.a = ...` loads x just before it stores, `x.a += ...` copies it.
        stores = stores_attribute and following.opname in ("STORE_ATTR", "DELETE_ATTR", "COPY")
        if mutates or stores:
            _note_root(instruction, found)
        if stores and instruction.opname in _ROOTS:
            found["stored_into"].add(instruction.argval)
    jumps = any("JUMP" in instruction.opname for instruction in line)
    for position, instruction in enumerate(line):
        if instruction.opname not in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            continue
        if jumps:  # the stack cannot be followed: any of these may be what is changed
            for other in line[:position]:
                _note_root(other, found)
        else:
            copies = [n for n, other in enumerate(line[:position]) if other.opname == "COPY"]
            is_augmented = position > 0 and line[position - 1].opname == "SWAP" and copies
            _note_root(_before_key(line[: copies[0] if is_augmented else position]), found)


def _before_key(line: list[dis.Instruction]) -> dis.Instruction | None:
    """Of `container[key]`, what loads the container: the instruction before those that leave one key on the stack."""
    wanted = 1
    for position in range(len(line) - 1, 0, -1):
        instruction = line[position]
        wanted -= dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if wanted <= 0:
            return line[position - 1]
    return None


def _note_root(instruction: dis.Instruction | None, found: dict[str, set[str]]) -> None:
    field = None if instruction is None else _ROOTS.get(instruction.opname)
    if instruction is not None and field is not None:
        found[field].add(instruction.argval)
