"""Runs a function of the user's instruction by instruction, to see whether it would do the same again.

The instructions are those of Python 3.11. Everything happens as it would: operations on values are recorded, modules are called. Beside each
value stands how it was found (`tracked.py`). What the function does may depend on its arguments, on what it reads and on nothing
else; branches and loops over plain values are followed, and those values become part of the guards. A function that writes to
anything that outlives the call, needs the value of a tensor, draws random numbers or calls code that cannot be followed is not
repeatable: that is noticed before it happens, so that Python can run the function from its beginning.
"""

from __future__ import annotations

import dis
import functools
import inspect
import operator
import os
import sysconfig
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from foldloom.tracing.automatic.attributes import Method, PropertyCall, attribute, parts_of
from foldloom.tracing.automatic.tracked import C, INNER, NotRepeatable, Tracked, Tracker
from foldloom.tracing.scope import is_machinery, scope
from foldloom.tracing.values.lazy_tensor import LazyTensor

MOST_INSTRUCTIONS = 4000
"""Of one call, with all that it calls. Longer ones are better left to their parts."""
MOST_DEPTH = 16

_NULL = Tracked(None)
_UNBOUND = object()

_NOT_FOLLOWED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift,
    ">>": operator.rshift,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Iteration:
    """What is left to iterate over."""

    __slots__ = ("left",)

    def __init__(self, items: Sequence[Tracked]) -> None:
        self.left = list(items)[::-1]


class LocalFunction:
    """A function that is made inside: a comprehension, a lambda."""

    __slots__ = ("closure", "code", "defaults", "globals_of")

    def __init__(self, code: types.CodeType, defaults: Sequence[Tracked], closure: Sequence[list[Any]], globals_of: Tracked) -> None:
        self.code, self.defaults, self.closure, self.globals_of = code, defaults, closure, globals_of


INNER.update((Iteration, LocalFunction))


@functools.lru_cache(maxsize=1024)
def _instructions(code: types.CodeType) -> tuple[tuple[dis.Instruction, ...], dict[int, int]]:
    found = tuple([instruction for instruction in dis.get_instructions(code) if instruction.opname != "CACHE"])
    return found, {instruction.offset: number for number, instruction in enumerate(found)}


def why_not(code: types.CodeType) -> str | None:
    """Why no call of this code can be followed."""
    if code.co_flags & _NOT_FOLLOWED:
        return "it is a generator or coroutine, or takes any number of arguments"
    if code.co_exceptiontable:
        return "it has a `try` or a `with`"
    unknown = sorted({i.opname for i in _instructions(code)[0] if not hasattr(_Frame, f"do_{i.opname}")})
    for instruction in _instructions(code)[0]:
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            return f"line {_line(instruction, code)} writes `.{instruction.argval}`"
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"line {_line(instruction, code)} writes the global `{instruction.argval}`"
    return f"it does what is not followed ({', '.join(unknown).lower()})" if unknown else None


def _line(instruction: dis.Instruction, code: types.CodeType) -> int:
    position = instruction.positions
    return (position.lineno if position is not None else None) or code.co_firstlineno


class Interpreter:
    """Follows one call. ``call_native`` calls what is not the user's code."""

    def __init__(self, tracker: Tracker, call_native: Callable[[Interpreter, Any, Tracked, list[Tracked], dict[str, Tracked]], Tracked]) -> None:
        self.tracker = tracker
        self._call_native = call_native
        self._codes: list[types.CodeType] = []
        self.count = 0

    def run(self, function: Tracked, arguments: list[Tracked]) -> Tracked:
        """The call itself, with all its arguments in the order of the function's variables."""
        code = function.value.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return self._run(code, dict(zip(names, arguments, strict=True)), function, None)

    def _run(
        self, code: types.CodeType, variables: dict[str, Tracked], function: Tracked, closure: Sequence[list[Any]] | None
    ) -> Tracked:
        reason = why_not(code)
        if reason is not None:
            raise NotRepeatable(reason)
        if code in self._codes:
            raise NotRepeatable("it calls itself")
        if len(self._codes) >= MOST_DEPTH:
            raise NotRepeatable("its calls are nested too deeply")
        self._codes.append(code)
        try:
            return _Frame(self, code, variables, function, closure).run()
        finally:
            self._codes.pop()

    # ---- Calls.

    def call(self, called: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
        value = called.value
        if isinstance(value, Method):
            return self.call(value.function, [value.owner, *args], kwargs)
        if isinstance(value, LocalFunction):
            return self._call_local(value, args, kwargs)
        if isinstance(value, types.MethodType) and called.register is not None:
            raise NotRepeatable("it calls a method that was kept")
        if isinstance(value, types.FunctionType) and not is_library(value.__code__.co_filename):
            return self.call_function(called, args, kwargs)
        return self._call_native(self, value, called, args, kwargs)

    def call_function(self, called: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
        """A Python function, which is followed too. Another function of the same code would do as well."""
        function = called.value
        code = function.__code__
        if code.co_flags & _NOT_FOLLOWED:
            raise NotRepeatable(f"it calls {code.co_name}: {why_not(code)}")
        register = called.register
        if register is None:
            raise NotRepeatable(f"it calls {code.co_name}, which was not found by a name")
        self.tracker.program.check(C.CHECK_CODE, register, id(code), code)
        return self._run(code, self._bound(function, register, args, kwargs), called, None)

    def _bound(
        self, function: Any, register: int, args: list[Tracked], kwargs: dict[str, Tracked]
    ) -> dict[str, Tracked]:
        code, read = function.__code__, self.tracker.read
        names = code.co_varnames[: code.co_argcount]
        if len(args) > len(names):
            raise NotRepeatable(f"it calls {code.co_name} with too many arguments")
        variables = dict(zip(names, args, strict=False))
        all_names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name, value in kwargs.items():
            if name in variables or name not in all_names[code.co_posonlyargcount :]:
                raise NotRepeatable(f"it calls {code.co_name} with arguments that do not fit")
            variables[name] = value
        defaults = function.__defaults__ or ()
        for number, (name, value) in enumerate(zip(names[len(names) - len(defaults) :], defaults, strict=True)):
            if name not in variables:
                variables[name] = read(value, C.READ_DEFAULT, register, number)
        for name, value in (function.__kwdefaults__ or {}).items():
            if name not in variables:
                variables[name] = read(value, C.READ_KEYWORD_DEFAULT, register, name=name)
        if len(variables) != len(all_names):
            raise NotRepeatable(f"it calls {code.co_name} with too few arguments")
        return variables

    def _call_local(self, function: LocalFunction, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
        code = function.code
        names = code.co_varnames[: code.co_argcount]
        if kwargs or code.co_kwonlyargcount or len(args) > len(names) or code.co_flags & _NOT_FOLLOWED:
            raise NotRepeatable(f"it calls {code.co_name} in a way that is not followed")
        missing = len(names) - len(args)
        if missing > len(function.defaults):
            raise NotRepeatable(f"it calls {code.co_name} with too few arguments")
        filled = [*args, *function.defaults[len(function.defaults) - missing :]]
        return self._run(code, dict(zip(names, filled, strict=True)), function.globals_of, function.closure)

    # ---- What values offer.

    def elements(self, tracked: Tracked) -> list[Tracked]:
        """What a loop goes over."""
        value = tracked.value
        if isinstance(value, Iteration):
            left, value.left = value.left[::-1], []
            return left
        if type(value) is list or isinstance(value, tuple):
            return self.tracker.items(tracked)
        if type(value) is LazyTensor:
            return [Tracked(row) for row in value]
        if isinstance(value, (range, str)):
            return [Tracked(item) for item in self.tracker.settle(tracked)]
        if isinstance(value, (nn.ModuleList, nn.Sequential)) and tracked.register is not None:
            return parts_of(self.tracker, tracked)
        raise NotRepeatable(f"it goes over a {type(value).__name__}")

    def is_true(self, tracked: Tracked) -> bool:
        value = tracked.value
        if type(value) in (list, tuple) and tracked.register is not None:
            self.tracker.items(tracked)
            return bool(value)
        if isinstance(value, (Method, LocalFunction)):
            return True
        settled = self.tracker.settle(tracked)
        if not isinstance(settled, (bool, int, float, str, type(None), list, tuple, dict, LazyTensor)):
            if hasattr(type(settled), "__bool__") or hasattr(type(settled), "__len__"):
                raise NotRepeatable(f"it asks whether a {type(settled).__name__} is true")
        return bool(settled)


def is_library(file: str) -> bool:
    """Whether a file is torch's, Foldloom's or Python's own, whose functions are called as they are."""
    return is_machinery(file) or file.startswith("<frozen") or (file.startswith(_STANDARD) and "site-packages" not in file)


_STANDARD = sysconfig.get_path("stdlib") + os.sep


class _Frame:
    """One function that is being followed."""

    def __init__(
        self,
        interpreter: Interpreter,
        code: types.CodeType,
        variables: dict[str, Tracked],
        function: Tracked,
        closure: Sequence[list[Any]] | None,
    ) -> None:
        self._interpreter = interpreter
        self._tracker = interpreter.tracker
        self._code = code
        self._function = function
        self._variables: dict[str, Any] = dict(variables)
        self._cells: dict[str, list[Any]] = {}
        self._closure = closure
        self._stack: list[Tracked] = []
        self._keywords: tuple[str, ...] = ()
        self._next = 0
        self._result: Tracked | None = None

    def run(self) -> Tracked:
        instructions, self._number_of = _instructions(self._code)
        around = scope.line
        try:
            while self._result is None:
                instruction = instructions[self._next]
                self._next += 1
                self._interpreter.count += 1
                if self._interpreter.count > MOST_INSTRUCTIONS:
                    raise NotRepeatable("it is too long")
                position = instruction.positions
                if position is not None and position.lineno is not None:
                    scope.line = (self._code, position.lineno)
                getattr(self, f"do_{instruction.opname}")(instruction)
        finally:
            scope.line = around
        return self._result

    def _push(self, value: Any) -> None:
        self._stack.append(value if isinstance(value, Tracked) else Tracked(value))

    def _pop(self) -> Tracked:
        return self._stack.pop()

    def _pop_many(self, count: int) -> list[Tracked]:
        if not count:
            return []
        taken = self._stack[-count:]
        del self._stack[-count:]
        return taken

    def _settled(self) -> Any:
        return self._tracker.settle(self._pop())

    def _jump(self, instruction: dis.Instruction) -> None:
        self._next = self._number_of[instruction.argval]

    # ---- Nothing to do.

    def do_RESUME(self, _: dis.Instruction) -> None:
        pass

    do_NOP = do_PRECALL = do_EXTENDED_ARG = do_RESUME

    def do_COPY_FREE_VARS(self, _: dis.Instruction) -> None:
        pass

    def do_MAKE_CELL(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        self._cells[name] = [self._variables.get(name, _UNBOUND)]

    # ---- Loading and storing.

    def do_LOAD_CONST(self, instruction: dis.Instruction) -> None:
        self._push(Tracked(instruction.argval))

    def do_LOAD_FAST(self, instruction: dis.Instruction) -> None:
        found = self._variables.get(instruction.argval)
        if found is None:
            raise NotRepeatable(f"`{instruction.argval}` has no value")
        self._push(found)

    def do_STORE_FAST(self, instruction: dis.Instruction) -> None:
        self._variables[instruction.argval] = self._pop()

    def do_DELETE_FAST(self, instruction: dis.Instruction) -> None:
        self._variables.pop(instruction.argval, None)

    def do_LOAD_CLOSURE(self, instruction: dis.Instruction) -> None:
        name = instruction.argval
        if name in self._cells:
            self._push(Tracked(self._cells[name]))
        elif self._closure is not None:
            self._push(Tracked(self._closure[self._code.co_freevars.index(name)]))
        else:
            self._push(Tracked([self._from_closure(name)]))

    def do_LOAD_DEREF(self, instruction: dis.Instruction) -> None:
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
        number = self._code.co_freevars.index(name)
        try:
            value = self._function.value.__closure__[number].cell_contents
        except ValueError:
            raise NotRepeatable(f"`{name}` has no value") from None
        assert self._function.register is not None, "functions with closures were read"
        return self._tracker.read(value, C.READ_CLOSURE, self._function.register, number)

    def do_STORE_DEREF(self, instruction: dis.Instruction) -> None:
        cell = self._cells.get(instruction.argval)
        if cell is None:
            raise NotRepeatable(f"it writes `{instruction.argval}`, which is not its own")
        cell[0] = self._pop()

    def do_LOAD_GLOBAL(self, instruction: dis.Instruction) -> None:
        if instruction.arg is not None and instruction.arg & 1:
            self._push(_NULL)
        name = instruction.argval
        function = self._function.value
        register = self._function.register
        assert register is not None, "the function that globals belong to was read"
        if name in function.__globals__:
            self._push(self._tracker.read(function.__globals__[name], C.READ_GLOBAL, register, name=name))
            return
        builtins = function.__builtins__
        if name not in builtins:
            raise NotRepeatable(f"there is no `{name}`")
        self._push(self._tracker.read(builtins[name], C.READ_BUILTIN, register, name=name))

    def do_LOAD_ATTR(self, instruction: dis.Instruction) -> None:
        self._push(self._attribute(self._pop(), instruction.argval))

    def do_LOAD_METHOD(self, instruction: dis.Instruction) -> None:
        owner = self._pop()
        self._push(_NULL)
        self._push(self._attribute(owner, instruction.argval))

    def _attribute(self, owner: Tracked, name: str) -> Tracked:
        found = attribute(self._tracker, owner, name)
        if isinstance(found, PropertyCall):
            return self._interpreter.call_function(found.function, [found.owner], {})
        return found

    # ---- The stack.

    def do_PUSH_NULL(self, _: dis.Instruction) -> None:
        self._push(_NULL)

    def do_POP_TOP(self, _: dis.Instruction) -> None:
        self._pop()

    def do_SWAP(self, instruction: dis.Instruction) -> None:
        depth = instruction.arg or 0
        self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]

    def do_COPY(self, instruction: dis.Instruction) -> None:
        self._push(self._stack[-(instruction.arg or 0)])

    # ---- Making containers.

    def do_BUILD_TUPLE(self, instruction: dis.Instruction) -> None:
        items = self._pop_many(instruction.arg or 0)
        self._push(Tracked(tuple([item.value for item in items]), None, items))

    def do_BUILD_LIST(self, instruction: dis.Instruction) -> None:
        items = self._pop_many(instruction.arg or 0)
        self._push(Tracked([item.value for item in items], None, items))

    def do_LIST_APPEND(self, instruction: dis.Instruction) -> None:
        item = self._pop()
        append(self._stack[-(instruction.arg or 0)], item)

    def do_LIST_EXTEND(self, instruction: dis.Instruction) -> None:
        items = self._interpreter.elements(self._pop())
        for item in items:
            append(self._stack[-(instruction.arg or 0)], item)

    def do_LIST_TO_TUPLE(self, _: dis.Instruction) -> None:
        made = self._pop()
        self._push(Tracked(tuple(made.value), None, made.items))

    def do_BUILD_MAP(self, instruction: dis.Instruction) -> None:
        items = [self._tracker.settle(item) for item in self._pop_many(2 * (instruction.arg or 0))]
        self._push(Tracked(dict(zip(items[::2], items[1::2], strict=True))))

    def do_BUILD_CONST_KEY_MAP(self, instruction: dis.Instruction) -> None:
        keys = self._settled()
        values = [self._tracker.settle(item) for item in self._pop_many(instruction.arg or 0)]
        self._push(Tracked(dict(zip(keys, values, strict=True))))

    def do_BUILD_SLICE(self, instruction: dis.Instruction) -> None:
        items = [self._tracker.settle(item) for item in self._pop_many(instruction.arg or 0)]
        self._push(Tracked(slice(*items)))

    def do_UNPACK_SEQUENCE(self, instruction: dis.Instruction) -> None:
        items = self._interpreter.elements(self._pop())
        if len(items) != instruction.arg:
            raise NotRepeatable("it unpacks another number of values")
        self._stack += items[::-1]

    # ---- Computing.

    def do_BINARY_OP(self, instruction: dis.Instruction) -> None:
        symbol = instruction.argrepr
        right, left = self._settled(), self._pop()
        if symbol.endswith("="):
            if type(left.value) not in (int, float, bool, str, tuple):
                raise NotRepeatable(f"line {_line(instruction, self._code)} changes a value in place (`{symbol}`)")
            symbol = symbol[:-1]
        self._push(_BINARY[symbol](self._tracker.settle(left), right))

    def do_BINARY_SUBSCR(self, _: dis.Instruction) -> None:
        index, owner = self._settled(), self._pop()
        value = owner.value
        if type(value) is LazyTensor or owner.register is None:
            if owner.items is not None and type(index) is int:
                self._push(owner.items[index])
                return
            self._push(self._tracker.settle(owner)[index])
        elif (type(value) is list or isinstance(value, tuple)) and type(index) in (int, slice):
            items = self._tracker.items(owner)
            self._push(items[index] if type(index) is int else Tracked(value[index], None, items[index]))
        elif type(value) is dict:
            if index not in value:
                raise NotRepeatable("it looks for an entry that is not there")
            self._push(self._tracker.read(value[index], C.READ_ENTRY, owner.register, name=index))
        elif isinstance(value, (nn.ModuleList, nn.Sequential)) and type(index) is int:
            self._push(parts_of(self._tracker, owner)[index])
        elif isinstance(value, str):
            self._push(self._tracker.settle(owner)[index])
        else:
            self._push(self._interpreter.call(Tracked(operator.getitem), [owner, Tracked(index)], {}))

    def do_UNARY_NEGATIVE(self, _: dis.Instruction) -> None:
        self._push(-self._settled())

    def do_UNARY_POSITIVE(self, _: dis.Instruction) -> None:
        self._push(+self._settled())

    def do_UNARY_INVERT(self, _: dis.Instruction) -> None:
        self._push(~self._settled())

    def do_UNARY_NOT(self, _: dis.Instruction) -> None:
        self._push(not self._interpreter.is_true(self._pop()))

    def do_COMPARE_OP(self, instruction: dis.Instruction) -> None:
        right, left = self._settled(), self._settled()
        self._push(_COMPARE[instruction.argval](left, right))

    def do_IS_OP(self, instruction: dis.Instruction) -> None:
        right, left = self._pop(), self._pop()
        if right.value is not None and left.value is not None and not isinstance(right.value, (bool, type, type(Ellipsis))):
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

    def do_CONTAINS_OP(self, instruction: dis.Instruction) -> None:
        container, item = self._settled(), self._settled()
        if type(item) is LazyTensor or type(container) is LazyTensor:
            raise NotRepeatable("it needs the value of a tensor")
        self._push((item in container) is not bool(instruction.arg))

    # ---- Jumps.

    def do_JUMP_FORWARD(self, instruction: dis.Instruction) -> None:
        self._jump(instruction)

    do_JUMP_BACKWARD = do_JUMP_BACKWARD_NO_INTERRUPT = do_JUMP_FORWARD

    def do_POP_JUMP_FORWARD_IF_TRUE(self, instruction: dis.Instruction) -> None:
        if self._interpreter.is_true(self._pop()):
            self._jump(instruction)

    def do_POP_JUMP_FORWARD_IF_FALSE(self, instruction: dis.Instruction) -> None:
        if not self._interpreter.is_true(self._pop()):
            self._jump(instruction)

    def do_POP_JUMP_FORWARD_IF_NONE(self, instruction: dis.Instruction) -> None:
        if self._identity(self._pop()) is None:
            self._jump(instruction)

    def do_POP_JUMP_FORWARD_IF_NOT_NONE(self, instruction: dis.Instruction) -> None:
        if self._identity(self._pop()) is not None:
            self._jump(instruction)

    do_POP_JUMP_BACKWARD_IF_TRUE, do_POP_JUMP_BACKWARD_IF_FALSE = do_POP_JUMP_FORWARD_IF_TRUE, do_POP_JUMP_FORWARD_IF_FALSE
    do_POP_JUMP_BACKWARD_IF_NONE, do_POP_JUMP_BACKWARD_IF_NOT_NONE = (
        do_POP_JUMP_FORWARD_IF_NONE,
        do_POP_JUMP_FORWARD_IF_NOT_NONE,
    )

    def do_JUMP_IF_TRUE_OR_POP(self, instruction: dis.Instruction) -> None:
        if self._interpreter.is_true(self._stack[-1]):
            self._jump(instruction)
        else:
            self._pop()

    def do_JUMP_IF_FALSE_OR_POP(self, instruction: dis.Instruction) -> None:
        if not self._interpreter.is_true(self._stack[-1]):
            self._jump(instruction)
        else:
            self._pop()

    def do_GET_ITER(self, _: dis.Instruction) -> None:
        self._push(Iteration(self._interpreter.elements(self._pop())))

    def do_FOR_ITER(self, instruction: dis.Instruction) -> None:
        iteration = self._stack[-1].value
        if iteration.left:
            self._push(iteration.left.pop())
        else:
            self._pop()
            self._jump(instruction)

    # ---- Calls.

    def do_KW_NAMES(self, instruction: dis.Instruction) -> None:
        self._keywords = self._code.co_consts[instruction.arg or 0]

    def do_CALL(self, instruction: dis.Instruction) -> None:
        given = self._pop_many(instruction.arg or 0)
        called, before = self._pop(), self._pop()
        if before is not _NULL:
            called, given = before, [called, *given]
        names, self._keywords = self._keywords, ()
        count = len(given) - len(names)
        self._push(self._interpreter.call(called, given[:count], dict(zip(names, given[count:], strict=True))))

    def do_CALL_FUNCTION_EX(self, instruction: dis.Instruction) -> None:
        kwargs = self._settled() if (instruction.arg or 0) & 1 else {}
        args = self._interpreter.elements(self._pop())
        called = self._pop()
        if self._stack and self._stack[-1] is _NULL:
            self._pop()
        self._push(self._interpreter.call(called, args, {name: Tracked(value) for name, value in kwargs.items()}))

    def do_MAKE_FUNCTION(self, instruction: dis.Instruction) -> None:
        flags = instruction.arg or 0
        code = self._pop().value
        closure = [cell.value for cell in self._interpreter.elements(self._pop())] if flags & 8 else []
        if flags & 4:
            self._pop()  # annotations
        if flags & 2:
            raise NotRepeatable("it makes a function with defaults by name")
        defaults = self._interpreter.elements(self._pop()) if flags & 1 else []
        self._push(LocalFunction(code, defaults, closure, self._function))

    def do_LOAD_ASSERTION_ERROR(self, _: dis.Instruction) -> None:
        self._push(AssertionError)

    def do_RAISE_VARARGS(self, instruction: dis.Instruction) -> None:
        raise NotRepeatable(f"line {_line(instruction, self._code)} raises")

    def do_FORMAT_VALUE(self, instruction: dis.Instruction) -> None:
        raise NotRepeatable(f"line {_line(instruction, self._code)} makes a text")

    do_BUILD_STRING = do_FORMAT_VALUE

    def do_RETURN_VALUE(self, _: dis.Instruction) -> None:
        self._result = self._pop()


def append(container: Tracked, item: Tracked) -> None:
    """One item more, in a list that was made in the call."""
    if container.items is None:
        raise NotRepeatable("it changes a list that it did not make")
    container.items.append(item)
    container.value.append(item.value)
    container.is_settled = False
