"""What the instructions of a function say without running them: where control goes, what is on the stack, which variables are live.

A place is the number of an instruction. It is *clean* where nothing but what loops and ``with`` keep is on the stack, that is between two
statements. A variable is live at a place if it may be read from there on before it is written.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from foldloom.tracing.automatic.frames import instructions_of

_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_ENDS = frozenset(("RETURN_VALUE", "RAISE_VARARGS", "RERAISE"))
_ALWAYS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))
_LOOKING = frozenset(
    ("locals", "vars", "eval", "exec", "dir", "globals", "_getframe", "currentframe", "breakpoint", "set_trace")
)
"""Functions that may look at the variables of a frame, by their names."""
_MADE_BY_COMPREHENSIONS = frozenset(("BUILD_LIST", "BUILD_SET", "BUILD_MAP"))

KEPT, VALUE = "kept", "value"
"""What may be on the stack: what outlives a statement, and what does not."""


class Handler(NamedTuple):
    """Instructions of these offsets are covered by a handler."""

    start: int
    end: int
    target: int
    depth: int
    keeps_place: bool


def handlers_of(code: CodeType) -> list[Handler]:
    parse: Any = getattr(dis, "_parse_exception_table")  # noqa: B009 (it has no public name)
    return [Handler(entry.start, entry.end, entry.target, entry.depth, entry.lasti) for entry in parse(code)]


class Flow:
    """Of one function."""

    def __init__(self, code: CodeType) -> None:
        self.instructions, self.place_of = instructions_of(code)
        self.handlers = handlers_of(code)
        self._is_comprehension = code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>")
        self.stacks = self._find_stacks()
        everything = (1 << len(code.co_varnames)) - 1
        self.live = self._find_live(everything if _LOOKING & {*code.co_names} else 0)

    def is_clean(self, place: int) -> bool:
        stack = self.stacks[place]
        return stack is not None and VALUE not in stack

    def successors(self, place: int) -> list[int]:
        """Where control goes from a place, handlers apart."""
        instruction = self.instructions[place]
        found = []
        if instruction.opname not in _ENDS and instruction.opname not in _ALWAYS:
            found.append(place + 1)
        if instruction.opcode in _JUMPS:
            found.append(self.place_of[instruction.argval])
        return found

    def handler_of(self, place: int) -> Handler | None:
        offset = self.instructions[place].offset
        return next((handler for handler in self.handlers if handler.start <= offset < handler.end), None)

    def next_clean(self, place: int) -> Iterator[int]:
        """The first clean places that control gets to after a place."""
        waiting, seen = self.successors(place), {place}
        while waiting:
            reached = waiting.pop()
            if reached in seen:
                continue
            seen.add(reached)
            if self.is_clean(reached) and self.instructions[reached].opcode not in _JUMPS:
                yield reached
            else:
                waiting += self.successors(reached)

    # ---- The stack.

    def _find_stacks(self) -> list[tuple[str, ...] | None]:
        """What is on the stack before each instruction; None where control does not get."""
        stacks: list[tuple[str, ...] | None] = [None] * len(self.instructions)
        stacks[0] = ()
        waiting = [0]
        while waiting:
            place = waiting.pop()
            before = stacks[place]
            assert before is not None, "it was reached"
            reached = [
                (after, self._stack_after(place, before, after != place + 1)) for after in self.successors(place)
            ]
            handler = self.handler_of(place)
            if handler is not None:
                kept = before[: handler.depth] + (KEPT,) * (1 + handler.keeps_place)
                reached.append((self.place_of[handler.target], kept))
            for after, stack in reached:
                if stacks[after] is None:
                    stacks[after] = stack
                    waiting.append(after)
        return stacks

    def _stack_after(self, place: int, before: tuple[str, ...], is_jump: bool) -> tuple[str, ...]:
        instruction = self.instructions[place]
        name, arg = instruction.opname, instruction.arg or 0
        stack = list(before)
        if name == "LOAD_FAST" and instruction.argval == ".0":
            return (*stack, KEPT)
        if name == "GET_ITER":
            return (*stack[:-1], KEPT)
        if name == "BEFORE_WITH":
            return (*stack[:-1], KEPT, VALUE)
        if name == "SWAP":
            stack[-1], stack[-arg] = stack[-arg], stack[-1]
            return tuple(stack)
        if name == "COPY":
            return (*stack, stack[-arg])
        if name == "PUSH_EXC_INFO":
            return (*stack[:-1], KEPT, KEPT)
        if self._is_comprehension and name in _MADE_BY_COMPREHENSIONS and not stack:
            return (KEPT,)
        takes_arg = instruction.opcode >= dis.HAVE_ARGUMENT
        effect = dis.stack_effect(instruction.opcode, arg if takes_arg else None, jump=is_jump)
        if effect < 0:
            return tuple(stack[:effect])
        if effect == 0 and stack and name not in ("NOP", "RESUME", "PRECALL", "KW_NAMES", "EXTENDED_ARG", *_ALWAYS):
            stack[-1] = (
                VALUE if name not in ("DELETE_FAST", "MAKE_CELL", "COPY_FREE_VARS", "SETUP_ANNOTATIONS") else stack[-1]
            )
        return (*stack, *[VALUE] * effect)

    # ---- Variables.

    def _find_live(self, always: int) -> list[int]:
        """The variables that are live before each instruction, as bits."""
        live = [always] * len(self.instructions)
        is_changed = True
        while is_changed:
            is_changed = False
            for place in range(len(self.instructions) - 1, -1, -1):
                found = self._live_before(place, live) | always
                if found != live[place]:
                    live[place] = found
                    is_changed = True
        return live

    def _live_before(self, place: int, live: list[int]) -> int:
        instruction = self.instructions[place]
        found = functools.reduce(lambda bits, after: bits | live[after], self.successors(place), 0)
        bit = 1 << (instruction.arg or 0)
        if instruction.opname == "STORE_FAST":
            found &= ~bit
        elif instruction.opname in ("LOAD_FAST", "DELETE_FAST", "LOAD_CLOSURE", "LOAD_DEREF"):
            found |= bit
        handler = self.handler_of(place)
        return found if handler is None else found | live[self.place_of[handler.target]]

    def is_live(self, variable: int, place: int) -> bool:
        return bool(self.live[place] >> variable & 1)
