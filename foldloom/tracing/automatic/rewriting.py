"""The code of a function with shortcuts before some of its segments.

Nothing of the function's own code moves. Where a segment starts, its first instructions give way to a jump to the end of the code. There the
shortcuts are called, one after the other; the first that records its segment jumps to where that ends. Then come the instructions that gave
way, and a jump back. Lines, positions and handlers of what was appended are those of the instructions that gave way.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from foldloom.tracing.automatic.flow import Flow

_UNIT = 2
_FARTHEST = 1 << 15
"""Offsets in longer code would need more room than is made."""

_BACKWARD = {
    "JUMP_FORWARD": "JUMP_BACKWARD", "JUMP_BACKWARD": "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT": "JUMP_BACKWARD_NO_INTERRUPT",
    **{f"POP_JUMP_{way}_IF_{case}": f"POP_JUMP_BACKWARD_IF_{case}"
       for way in ("FORWARD", "BACKWARD") for case in ("TRUE", "FALSE", "NONE", "NOT_NONE")},
}  # fmt: skip
"""Jumps that may give way, and how they are written at the end, from where all goes backward."""

_FIXED = frozenset(
    ("RESUME", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR", "YIELD_VALUE", "SEND", "KW_NAMES", "PRECALL")
)
_CACHES: Sequence[int] = getattr(dis, "_inline_cache_entries")  # noqa: B009 (it has no public name)


@dataclass(frozen=True)
class Shortcut:
    """``called`` stands before a segment that ends at a place, where so many values are on the stack: ``null`` is the place of the
    one that is no value, if there is one."""

    called: Any
    end: int
    values: int
    null: int | None


@dataclass(frozen=True)
class Start:
    """What stands where segments start: shortcuts, and who learns of new ones."""

    place: int
    shortcuts: tuple[Shortcut, ...]
    learner: Any | None


def with_shortcuts(code: CodeType, flow: Flow, starts: Sequence[Start]) -> CodeType | None:
    """The code with shortcuts, at those starts where there is room; None if there is none at all."""
    writer = _Writer(code, flow)
    for start in sorted(starts, key=lambda start: start.place):
        writer.add(start)
    return writer.code() if writer.count else None


def may_start(code: CodeType, flow: Flow, place: int) -> bool:
    """Whether there is room for shortcuts at a place."""
    return _Writer(code, flow).room(place) is not None


class _Writer:
    def __init__(self, code: CodeType, flow: Flow) -> None:
        self._code = code
        self._flow = flow
        self._raw = bytearray(code.co_code)
        self._consts = list(code.co_consts)
        self._positions = list(code.co_positions())
        self._handlers = bytearray(code.co_exceptiontable)
        self._appended: list[tuple[int, Any]] = []
        """Units of what was appended, with their positions."""
        self._targets = {flow.instructions[place].offset for place in range(len(flow.instructions))
                         if flow.instructions[place].is_jump_target}  # fmt: skip
        self._targets |= {
            offset for handler in flow.handlers for offset in (handler.start, handler.end, handler.target)
        }
        self._taken: set[int] = set()
        """Offsets within instructions that gave way, to which nothing may jump."""
        self._ends: set[int] = set()
        self.count = 0

    def room(self, place: int) -> list[int] | None:
        """The instructions that would give way, if they may."""
        flow = self._flow
        offset = flow.instructions[place].offset
        if len(self._raw) >= _FARTHEST or not flow.is_clean(place):
            return None
        stack = flow.stacks[place]
        if stack is None or len(stack) + 2 > self._code.co_stacksize:
            return None
        places: list[int] = []
        size = 0
        while size < 2 * _UNIT or flow.instructions[place + len(places) - 1].opname == "EXTENDED_ARG":
            next_place = place + len(places)
            if next_place + 1 >= len(flow.instructions):
                return None
            instruction = flow.instructions[next_place]
            is_jump = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
            if instruction.opname in _FIXED or (is_jump and instruction.opname not in _BACKWARD):
                return None
            if places and (instruction.offset in self._targets or instruction.offset in self._ends):
                return None
            places.append(next_place)
            size = flow.instructions[next_place + 1].offset - offset
        return places if self._taken.isdisjoint(range(offset, offset + size)) else None

    def add(self, start: Start) -> None:
        places = self.room(start.place)
        ends = [self._flow.instructions[shortcut.end].offset for shortcut in start.shortcuts]
        if places is None or not self._taken.isdisjoint(ends):
            return
        first = self._flow.instructions[places[0]].offset
        after = self._flow.instructions[places[-1] + 1].offset
        if any(first < end < after for end in ends):
            return
        self.count += 1
        self._ends.update(ends)
        self._taken.update(range(first + 1, after))
        begin = len(self._raw)
        self._jump_over(first, after, begin)
        self._position = self._positions[first // _UNIT]
        for shortcut in start.shortcuts:
            self._emit_shortcut(shortcut)
        if start.learner is not None:
            self._emit_call(start.learner)
            self._emit("POP_TOP")
        self._emit_moved(places)
        self._emit_backward("JUMP_BACKWARD", after)
        self._cover(first, begin)

    def _jump_over(self, first: int, after: int, target: int) -> None:
        distance = (target - first) // _UNIT - 2
        self._raw[first:after] = bytes((dis.opmap["NOP"], 0)) * ((after - first) // _UNIT)
        self._raw[first : first + 4] = bytes(
            (dis.opmap["EXTENDED_ARG"], distance >> 8, dis.opmap["JUMP_FORWARD"], distance & 255)
        )

    # ---- Appending.

    def _emit(self, name: str, arg: int = 0, *, wide: bool = False) -> None:
        opcode = dis.opmap[name]
        units = [dis.opmap["EXTENDED_ARG"], arg >> 8] if wide or arg > 255 else []
        units += [opcode, arg & 255, *[0, 0] * _CACHES[opcode]]
        self._raw += bytes(units)
        self._appended += [(1, self._position)] * (len(units) // _UNIT)

    def _emit_backward(self, name: str, target: int) -> None:
        self._emit(name, (len(self._raw) + 2 * _UNIT - target) // _UNIT, wide=True)

    def _emit_call(self, called: Any) -> None:
        self._emit("PUSH_NULL")
        self._emit("LOAD_CONST", len(self._consts))
        self._consts.append(called)
        self._emit("PRECALL", 0)
        self._emit("CALL", 0)

    def _emit_shortcut(self, shortcut: Shortcut) -> None:
        self._emit_call(shortcut.called)
        end = self._flow.instructions[shortcut.end].offset
        if shortcut.values == 0:
            self._emit_backward("POP_JUMP_BACKWARD_IF_TRUE", end)
            return
        self._emit("COPY", 1)
        if shortcut.values == 1 and shortcut.null is None:
            self._emit_backward("POP_JUMP_BACKWARD_IF_NOT_NONE", end)
            self._emit("POP_TOP")
            return
        unpacking = [("UNPACK_SEQUENCE", shortcut.values)] if shortcut.values > 1 else []
        if shortcut.null is not None:
            # It is pushed last, and changes places with the value that belongs on top.
            unpacking += [("PUSH_NULL", 0), ("SWAP", shortcut.values + 1 - shortcut.null)]
        size = sum(1 + _CACHES[dis.opmap[name]] for name, _ in unpacking) + 2
        self._emit("POP_JUMP_FORWARD_IF_NONE", size)
        for name, arg in unpacking:
            self._emit(name, arg)
        self._emit_backward("JUMP_BACKWARD", end)
        self._emit("POP_TOP")

    def _emit_moved(self, places: Sequence[int]) -> None:
        for place in places:
            instruction = self._flow.instructions[place]
            self._position = self._positions[instruction.offset // _UNIT]
            if instruction.opname == "EXTENDED_ARG":
                continue
            if instruction.opname in _BACKWARD:
                self._emit_backward(_BACKWARD[instruction.opname], instruction.argval)
            else:
                self._emit(instruction.opname, instruction.arg or 0)

    def _cover(self, first: int, begin: int) -> None:
        """What was appended has the handler of the instructions that gave way."""
        handler = self._flow.handler_of(self._flow.place_of[first])
        if handler is None:
            return
        size = (len(self._raw) - begin) // _UNIT
        numbers = (begin // _UNIT, size, handler.target // _UNIT, handler.depth << 1 | handler.keeps_place)
        for number, value in enumerate(numbers):
            self._handlers += bytes(_in_sixes(value, 0x80 if number == 0 else 0))

    # ---- The code.

    def code(self) -> CodeType:
        return self._code.replace(
            co_code=bytes(self._raw),
            co_consts=tuple(self._consts),
            co_exceptiontable=bytes(self._handlers),
            co_linetable=self._code.co_linetable + bytes(self._lines()),
        )

    def _lines(self) -> Iterator[int]:
        """The locations of what was appended, each unit for itself: see Objects/locations.md of Python."""
        line = _last_line(self._code)
        for _, (first, last, column, end_column) in self._appended:
            if first is None:
                yield 0x80 | 15 << 3
                continue
            has_columns = None not in (last, column, end_column)
            yield 0x80 | (14 if has_columns else 13) << 3
            yield from _signed(first - line)
            if has_columns:
                yield from _plain(last - first)
                yield from _plain(column + 1)
                yield from _plain(end_column + 1)
            line = first


def _in_sixes(value: int, mark: int) -> list[int]:
    """A number of the table of handlers: six bits a byte, the highest first."""
    parts = [value & 63]
    while value := value >> 6:
        parts.append(value & 63 | 64)
    parts.reverse()
    parts[0] |= mark
    return parts


def _plain(value: int) -> list[int]:
    """A number of the table of locations: six bits a byte, the lowest first."""
    parts = []
    while value > 63:
        parts.append(value & 63 | 64)
        value >>= 6
    return [*parts, value]


def _signed(value: int) -> list[int]:
    return _plain(value << 1 if value >= 0 else -value << 1 | 1)


def _last_line(code: CodeType) -> int:
    """The line that the last entry of the table of locations leaves off at."""
    table, line, at = code.co_linetable, code.co_firstlineno, 0
    while at < len(table):
        kind = table[at] >> 3 & 15
        at += 1
        if kind in (13, 14):
            shift = value = 0
            end = at
            while True:
                value |= (table[end] & 63) << shift
                shift += 6
                end += 1
                if not table[end - 1] & 64:
                    break
            line += -(value >> 1) if value & 1 else value >> 1
        elif 10 <= kind <= 12:
            line += kind - 10
        while at < len(table) and not table[at] & 0x80:
            at += 1
    return line
