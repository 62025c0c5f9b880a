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
    changed_weights: frozenset[str] = _NOTHING
    """Methods that list weights, which are then changed: `for weight in model.parameters(): weight.zero_()`."""
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
    lines = list(_lines(code))
    aliases = _aliases(lines)
    for line in lines:
        _note_stores(line, found)
        _note_changes(line, found, aliases)
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


def _changes(method: str) -> bool:
    """Whether a method of this name changes its object: `append`, or `add_` of a tensor."""
    return method in _MUTATORS or (method.endswith("_") and not method.startswith("_"))


_ROOTS = {
    "LOAD_GLOBAL": "changed_globals", "LOAD_NAME": "changed_globals", "LOAD_DEREF": "changed_cells",
    "LOAD_ATTR": "changed_attributes",
}  # fmt: skip


_Aliases = dict[str, list[dis.Instruction]]
"""By the name of a local variable: what loads the things that it may be another name of."""

_OF_ITSELF = frozenset(("data", "T", "mT", "grad"))
"""Attributes of a tensor that share its memory, or belong to it."""
_WEIGHTS = frozenset(("parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "values", "items"))
_COMPUTING = ("CALL", "BINARY_OP", "COMPARE_OP", "UNARY_")


def _aliases(lines: list[list[dis.Instruction]]) -> _Aliases:
    """Of `row = self.table` and `for weight in model.parameters():`. A line that computes something makes something new."""
    found: _Aliases = {}
    for line in lines:
        stored = [instruction.argval for instruction in line if instruction.opname == "STORE_FAST"]
        lists_weights = any(instruction.argval in _WEIGHTS for instruction in line if "LOAD" in instruction.opname)
        computes = any(instruction.opname.startswith(_COMPUTING) for instruction in line)
        if stored and (lists_weights or not computes):
            roots = [i for i in line if i.opname in _ROOTS or (i.opname == "LOAD_METHOD" and i.argval in _WEIGHTS)]
            for name in stored:
                found.setdefault(name, []).extend(roots)
    return found


def _without_own_parts(line: list[dis.Instruction]) -> dis.Instruction:
    """Of `weight.data`, what loads the weight."""
    position = len(line) - 1
    while position and line[position].opname == "LOAD_ATTR" and line[position].argval in _OF_ITSELF:
        position -= 1
    return line[position]


def _note_changes(line: list[dis.Instruction], found: dict[str, set[str]], aliases: _Aliases) -> None:
    stores_attribute = any(instruction.opname in ("STORE_ATTR", "DELETE_ATTR") for instruction in line)
    for position, (last, following) in enumerate(pairwise(line)):
        instruction = _without_own_parts(line[: position + 1])
        mutates = following.opname in ("LOAD_METHOD", "LOAD_ATTR") and _changes(following.argval)
        # `x.a = ...` loads x just before it stores, `x.a += ...` copies it.
        stores = stores_attribute and following.opname in ("STORE_ATTR", "DELETE_ATTR", "COPY")
        if mutates or stores:
            _note_root(instruction, found, aliases)
        if stores and last.opname in _ROOTS:
            found["stored_into"].add(last.argval)
    _note_augmented(line, found, aliases)
    jumps = any("JUMP" in instruction.opname for instruction in line)
    for position, instruction in enumerate(line):
        if instruction.opname not in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            continue
        if jumps:  # the stack cannot be followed: any of these may be what is changed
            for other in line[:position]:
                _note_root(other, found, aliases)
        else:
            copies = [n for n, other in enumerate(line[:position]) if other.opname == "COPY"]
            is_augmented = position > 0 and line[position - 1].opname == "SWAP" and copies
            _note_root(_before_key(line[: copies[0] if is_augmented else position]), found, aliases)


def _note_augmented(line: list[dis.Instruction], found: dict[str, set[str]], aliases: _Aliases) -> None:
    """`self.total += x` changes a tensor in place before it is stored again."""
    for instruction, following in pairwise([i for i in line if i.opname != "SWAP"]):
        if instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="):
            if following.opname == "STORE_ATTR":
                found["changed_attributes"].add(following.argval)
            elif following.opname == "STORE_FAST":
                for load in aliases.get(following.argval, ()):
                    _note_root(load, found, {})


def _before_key(line: list[dis.Instruction]) -> dis.Instruction | None:
    """Of `container[key]`, what loads the container: the instruction before those that leave one key on the stack."""
    wanted = 1
    for position in range(len(line) - 1, 0, -1):
        instruction = line[position]
        wanted -= dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
        if wanted <= 0:
            return _without_own_parts(line[:position])
    return None


def _note_root(instruction: dis.Instruction | None, found: dict[str, set[str]], aliases: _Aliases) -> None:
    if instruction is None:
        return
    is_local = instruction.opname == "LOAD_FAST"
    for load in aliases.get(instruction.argval, []) if is_local else [instruction]:
        if load.opname in _ROOTS:
            found[_ROOTS[load.opname]].add(load.argval)
        elif load.opname == "LOAD_METHOD":
            found["changed_weights"].add(load.argval)
