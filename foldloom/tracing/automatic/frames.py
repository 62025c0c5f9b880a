"""The instructions of Python 3.11, as they are followed by the interpreter: one method for each."""

from __future__ import annotations

import dis
import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from foldloom.tracing.automatic.reads import (
    Method,
    PropertyCall,
    attribute,
    closure_variable,
    global_variable,
    subscript,
)
from foldloom.tracing.automatic.tracked import Iteration, LocalFunction, NotRepeatable, Tracked, Tracker
from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import LazyTensor

MOST_INSTRUCTIONS = 4000
"""Of one call, with all that it calls. Longer ones are better left to their parts."""

NULL = Tracked(None)
_UNBOUND = object()

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@functools.lru_cache(maxsize=1024)
def instructions_of(code: types.CodeType) -> tuple[tuple[dis.Instruction, ...], dict[int, int]]:
    found = tuple([instruction for instruction in dis.get_instructions(code) if instruction.opname != "CACHE"])
    return found, {instruction.offset: number for number, instruction in enumerate(found)}


def line_of(instruction: dis.Instruction, code: types.CodeType) -> int:
    position = instruction.positions
    return (position.lineno if position is not None else None) or code.co_firstlineno


class Follows(Protocol):
    """The interpreter, as its frames know it."""

    tracker: Tracker
    count: int

    def call(self, called: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked: ...
    def call_function(self, called: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked: ...
    def elements(self, tracked: Tracked) -> list[Tracked]: ...
    def is_true(self, tracked: Tracked) -> bool: ...


class Frame:
    """One function that is being followed."""

    def __init__(
        self,
        interpreter: Follows,
        code: types.CodeType,
        variables: dict[str, Tracked],
        function: Tracked,
        closure: Sequence[list[Any]] | None,
    ) -> None:
        self._interpreter = interpreter
        self._tracker = interpreter.tracker
        self._code = code
        self._instructions, self._number_of = instructions_of(code)
        self._function = function
        self._variables: dict[str, Any] = dict(variables)
        self._cells: dict[str, list[Any]] = {}
        self._closure = closure
        self._stack: list[Tracked] = []
        self._keywords: tuple[str, ...] = ()
        self._next = 0
        self._result: Tracked | None = None

    def run(self) -> Tracked:
        around = scope.line
        try:
            while self._result is None:
                self._step()
        finally:
            scope.line = around
        return self._result

    def _step(self) -> None:
        instruction = self._instructions[self._next]
        self._next += 1
        self._interpreter.count += 1
        if self._interpreter.count > MOST_INSTRUCTIONS:
            raise NotRepeatable("it is too long")
        position = instruction.positions
        if position is not None and position.lineno is not None:
            scope.line = (self._code, position.lineno)
        on_instruction = getattr(self, f"on_{instruction.opname.lower()}", None)
        if on_instruction is None:
            raise NotRepeatable(f"it does what is not followed ({instruction.opname.lower()})")
        on_instruction(instruction)

    def _push(self, value: Any) -> None:
        self._stack.append(value if isinstance(value, Tracked) else Tracked(value))

    def _pop(self) -> Tracked:
        return self._stack.pop()

    def _pop_many(self, count: int) -> list[Tracked]:
        if not count:
            return []
        if count > len(self._stack):
            raise NotRepeatable("it uses what a statement left on the stack")
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _settled(self) -> Any:
        """What is computed with next."""
        return self._tracker.settle_known(self._pop())

    def _jump(self, instruction: dis.Instruction) -> None:
        self._next = self._number_of[instruction.argval]

    # ---- Nothing to do.

    def on_resume(self, _: dis.Instruction) -> None:
        pass

    on_nop = on_precall = on_extended_arg = on_resume

    def on_copy_free_vars(self, _: dis.Instruction) -> None:
        pass

    def on_make_cell(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        self._cells[name] = [self._variables.get(name, _UNBOUND)]

    # ---- Loading and storing.

    def on_load_const(self, instruction: dis.Instruction) -> None:
        self._push(Tracked(instruction.argval))

    def on_load_fast(self, instruction: dis.Instruction) -> None:
        found = self._variables.get(instruction.argval)
        if found is None:
            raise NotRepeatable(f"`{instruction.argval}` has no value")
        self._push(found)

    def on_store_fast(self, instruction: dis.Instruction) -> None:
        self._variables[instruction.argval] = self._pop()

    def on_delete_fast(self, instruction: dis.Instruction) -> None:
        self._variables.pop(instruction.argval, None)

    def on_load_closure(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        if name in self._cells:
            self._push(Tracked(self._cells[name]))
        elif self._closure is not None:
            self._push(Tracked(self._closure[self._code.co_freevars.index(name)]))
        else:
            self._push(Tracked([self._from_closure(name)]))

    def on_load_deref(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        if name in self._cells:
            found = self._cells[name][0]
            if found is _UNBOUND:
                raise NotRepeatable(f"`{name}` has no value")
            self._push(found)
        elif self._closure is not None:
            found = self._closure[self._code.co_freevars.index(name)][0]
            if found is _UNBOUND:
                raise NotRepeatable(f"`{name}` has no value")
            self._push(found)
        else:
            self._push(self._from_closure(name))

    def _from_closure(self, name: str) -> Tracked:
        return closure_variable(self._tracker, self._function, self._code.co_freevars.index(name))

    def on_store_deref(self, instruction: dis.Instruction) -> None:
        cell = self._cells.get(instruction.argval)
        if cell is None:
            raise NotRepeatable(f"it writes `{instruction.argval}`, which is not its own")
        cell[0] = self._pop()

    def on_load_global(self, instruction: dis.Instruction) -> None:
        if instruction.arg is not None and instruction.arg & 1:
            self._push(NULL)
        self._push(global_variable(self._tracker, self._function, instruction.argval))

    def on_load_attr(self, instruction: dis.Instruction) -> None:
        self._push(self._attribute(self._pop(), instruction.argval))

    def on_load_method(self, instruction: dis.Instruction) -> None:
        owner = self._pop()
        self._push(NULL)
        self._push(self._attribute(owner, instruction.argval))

    def _attribute(self, owner: Tracked, name: str) -> Tracked:
        found = attribute(self._tracker, owner, name)
        if isinstance(found, PropertyCall):
            return self._interpreter.call_function(found.function, [found.owner], {})
        return found

    # ---- The stack.

    def on_push_null(self, _: dis.Instruction) -> None:
        self._push(NULL)

    def on_pop_top(self, _: dis.Instruction) -> None:
        self._pop()

    def on_swap(self, instruction: dis.Instruction) -> None:
        depth = instruction.arg or 0
        self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]

    def on_copy(self, instruction: dis.Instruction) -> None:
        self._push(self._stack[-(instruction.arg or 0)])

    # ---- Making containers.

    def on_build_tuple(self, instruction: dis.Instruction) -> None:
        items = self._pop_many(instruction.arg or 0)
        self._push(Tracked(tuple([item.value for item in items]), None, items))

    def on_build_list(self, instruction: dis.Instruction) -> None:
        items = self._pop_many(instruction.arg or 0)
        self._push(Tracked([item.value for item in items], None, items))

    def on_list_append(self, instruction: dis.Instruction) -> None:
        item = self._pop()
        self._tracker.append(self._stack[-(instruction.arg or 0)], item)

    def on_list_extend(self, instruction: dis.Instruction) -> None:
        items = self._interpreter.elements(self._pop())
        for item in items:
            self._tracker.append(self._stack[-(instruction.arg or 0)], item)

    def on_list_to_tuple(self, _: dis.Instruction) -> None:
        made = self._pop()
        self._push(Tracked(tuple(made.value), None, made.items))

    def on_build_map(self, instruction: dis.Instruction) -> None:
        items = [self._tracker.settle(item) for item in self._pop_many(2 * (instruction.arg or 0))]
        self._push(Tracked(dict(zip(items[::2], items[1::2], strict=True))))

    def on_build_const_key_map(self, instruction: dis.Instruction) -> None:
        keys = self._settled()
        values = [self._tracker.settle(item) for item in self._pop_many(instruction.arg or 0)]
        self._push(Tracked(dict(zip(keys, values, strict=True))))

    def on_build_slice(self, instruction: dis.Instruction) -> None:
        items = [self._tracker.settle(item) for item in self._pop_many(instruction.arg or 0)]
        self._push(Tracked(slice(*items)))

    def on_unpack_sequence(self, instruction: dis.Instruction) -> None:
        items = self._interpreter.elements(self._pop())
        if len(items) != instruction.arg:
            raise NotRepeatable("it unpacks another number of values")
        self._stack += items[::-1]

    # ---- Computing.

    def on_binary_op(self, instruction: dis.Instruction) -> None:
        symbol = instruction.argrepr
        right, left = self._settled(), self._pop()
        if symbol.endswith("="):
            if type(left.value) not in (int, float, bool, str, tuple):
                raise NotRepeatable(f"line {line_of(instruction, self._code)} changes a value in place (`{symbol}`)")
            symbol = symbol[:-1]
        self._push(_BINARY[symbol](self._tracker.settle_known(left), right))

    def on_binary_subscr(self, _: dis.Instruction) -> None:
        index, owner = self._settled(), self._pop()
        found = subscript(self._tracker, owner, index)
        if found is None:
            found = self._interpreter.call(Tracked(operator.getitem), [owner, Tracked(index)], {})
        self._push(found)

    def on_unary_negative(self, _: dis.Instruction) -> None:
        self._push(-self._settled())

    def on_unary_positive(self, _: dis.Instruction) -> None:
        self._push(+self._settled())

    def on_unary_invert(self, _: dis.Instruction) -> None:
        self._push(~self._settled())

    def on_unary_not(self, _: dis.Instruction) -> None:
        self._push(not self._interpreter.is_true(self._pop()))

    def on_compare_op(self, instruction: dis.Instruction) -> None:
        right, left = self._settled(), self._settled()
        self._push(_COMPARE[instruction.argval](left, right))

    def on_is_op(self, instruction: dis.Instruction) -> None:
        right, left = self._pop(), self._pop()
        if (
            right.value is not None
            and left.value is not None
            and not isinstance(right.value, (bool, type, type(Ellipsis)))
        ):
            raise NotRepeatable("it asks whether two values are the same object")
        is_same = self._identity(left) is self._identity(right)
        self._push(is_same is not bool(instruction.arg))

    def _identity(self, tracked: Tracked) -> Any:
        """Enough to tell it from None. A handle is never None, and its guard says that it is one."""
        value = tracked.value
        if tracked.register is not None and type(value) in (list, tuple):
            self._tracker.items(tracked)
            return value
        return value if isinstance(value, (Method, LocalFunction)) else self._tracker.settle(tracked)

    def on_contains_op(self, instruction: dis.Instruction) -> None:
        container, item = self._settled(), self._settled()
        if type(item) is LazyTensor or type(container) is LazyTensor:
            raise NotRepeatable("it needs the value of a tensor")
        self._push((item in container) is not bool(instruction.arg))

    # ---- Jumps.

    def on_jump_forward(self, instruction: dis.Instruction) -> None:
        self._jump(instruction)

    on_jump_backward = on_jump_backward_no_interrupt = on_jump_forward

    def on_pop_jump_forward_if_true(self, instruction: dis.Instruction) -> None:
        if self._interpreter.is_true(self._pop()):
            self._jump(instruction)

    def on_pop_jump_forward_if_false(self, instruction: dis.Instruction) -> None:
        if not self._interpreter.is_true(self._pop()):
            self._jump(instruction)

    def on_pop_jump_forward_if_none(self, instruction: dis.Instruction) -> None:
        if self._identity(self._pop()) is None:
            self._jump(instruction)

    def on_pop_jump_forward_if_not_none(self, instruction: dis.Instruction) -> None:
        if self._identity(self._pop()) is not None:
            self._jump(instruction)

    on_pop_jump_backward_if_true, on_pop_jump_backward_if_false = (
        on_pop_jump_forward_if_true,
        on_pop_jump_forward_if_false,
    )
    on_pop_jump_backward_if_none, on_pop_jump_backward_if_not_none = (
        on_pop_jump_forward_if_none,
        on_pop_jump_forward_if_not_none,
    )

    def on_jump_if_true_or_pop(self, instruction: dis.Instruction) -> None:
        if self._interpreter.is_true(self._stack[-1]):
            self._jump(instruction)
        else:
            self._pop()

    def on_jump_if_false_or_pop(self, instruction: dis.Instruction) -> None:
        if not self._interpreter.is_true(self._stack[-1]):
            self._jump(instruction)
        else:
            self._pop()

    def on_get_iter(self, _: dis.Instruction) -> None:
        self._push(Iteration(self._interpreter.elements(self._pop())))

    def on_for_iter(self, instruction: dis.Instruction) -> None:
        iteration = self._stack[-1].value if self._stack else None
        if not isinstance(iteration, Iteration):
            raise NotRepeatable("it goes over what it is given")
        if iteration.left:
            self._push(iteration.left.pop())
        else:
            self._pop()
            self._jump(instruction)

    # ---- Calls.

    def on_kw_names(self, instruction: dis.Instruction) -> None:
        self._keywords = self._code.co_consts[instruction.arg or 0]

    def on_call(self, instruction: dis.Instruction) -> None:
        given = self._pop_many(instruction.arg or 0)
        called, before = self._pop(), self._pop()
        if before is not NULL:
            called, given = before, [called, *given]
        names, self._keywords = self._keywords, ()
        count = len(given) - len(names)
        self._push(self._interpreter.call(called, given[:count], dict(zip(names, given[count:], strict=True))))

    def on_call_function_ex(self, instruction: dis.Instruction) -> None:
        kwargs = self._settled() if (instruction.arg or 0) & 1 else {}
        args = self._interpreter.elements(self._pop())
        called = self._pop()
        if self._stack and self._stack[-1] is NULL:
            self._pop()
        self._push(self._interpreter.call(called, args, {name: Tracked(value) for name, value in kwargs.items()}))

    def on_make_function(self, instruction: dis.Instruction) -> None:
        flags = instruction.arg or 0
        code = self._pop().value
        closure = [cell.value for cell in self._interpreter.elements(self._pop())] if flags & 8 else []
        if flags & 4:
            self._pop()  # annotations
        if flags & 2:
            raise NotRepeatable("it makes a function with defaults by name")
        defaults = self._interpreter.elements(self._pop()) if flags & 1 else []
        self._push(LocalFunction(code, defaults, closure, self._function))

    def on_load_assertion_error(self, _: dis.Instruction) -> None:
        self._push(AssertionError)

    def on_raise_varargs(self, instruction: dis.Instruction) -> None:
        raise NotRepeatable(f"line {line_of(instruction, self._code)} raises")

    def on_format_value(self, instruction: dis.Instruction) -> None:
        raise NotRepeatable(f"line {line_of(instruction, self._code)} makes a text")

    on_build_string = on_format_value

    def on_return_value(self, _: dis.Instruction) -> None:
        self._result = self._pop()
