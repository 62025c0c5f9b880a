"""Runs a function of the user's instruction by instruction, to see whether it would do the same again.

The instructions are those of Python 3.11. Everything happens as it would: operations on values are recorded, modules are called. Beside each
value stands how it was found (`tracked.py`). What the function does may depend on its arguments, on what it reads and on nothing
else; branches and loops over plain values are followed, and those values become part of the guards. A function that writes to
anything that outlives the call, needs the value of a tensor, draws random numbers or calls code that cannot be followed is not
repeatable: that is noticed before it happens, so that Python can run the function from its beginning.
"""

from __future__ import annotations

import inspect
import os
import sysconfig
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from foldloom.tracing.automatic.frames import Frame, instructions_of, line_of
from foldloom.tracing.automatic.reads import Method, parts_of
from foldloom.tracing.automatic.tracked import C, Iteration, LocalFunction, NotRepeatable, Tracked, Tracker
from foldloom.tracing.scope import is_machinery
from foldloom.tracing.values.lazy_tensor import LazyTensor

MOST_DEPTH = 16
_MOST_ITEMS = 1000
"""Of what a loop goes over."""


NOT_DIVIDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NOT_FOLLOWED = NOT_DIVIDED | inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def why_not(code: types.CodeType, *, inside: bool = False) -> str | None:
    """Why no call of this code can be followed. Comprehensions are, ``inside`` of functions."""
    if code.co_flags & _NOT_FOLLOWED:
        return "it is a generator or coroutine, or takes any number of arguments"
    if code.co_exceptiontable:
        return "it has a `try` or a `with`"
    if code.co_name.startswith("<") and code.co_name != "<lambda>" and not inside:
        return "it is a comprehension"
    unknown = sorted({i.opname for i in instructions_of(code)[0] if not hasattr(Frame, f"on_{i.opname.lower()}")})
    for instruction in instructions_of(code)[0]:
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            return f"line {line_of(instruction, code)} writes `.{instruction.argval}`"
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            return f"line {line_of(instruction, code)} writes the global `{instruction.argval}`"
    return f"it does what is not followed ({', '.join(unknown).lower()})" if unknown else None


class Interpreter:
    """Follows one call. ``call_native`` calls what is not the user's code."""

    def __init__(
        self,
        tracker: Tracker,
        call_native: Callable[[Interpreter, Any, Tracked, list[Tracked], dict[str, Tracked]], Tracked],
    ) -> None:
        self.tracker = tracker
        self._call_native = call_native
        self._codes: list[types.CodeType] = []
        self.count = 0

    def begin(self, code: types.CodeType) -> None:
        """A part of a function is followed, which must not call itself."""
        self._codes.append(code)

    def run(self, function: Tracked, arguments: list[Tracked]) -> Tracked:
        """The call itself, with all its arguments in the order of the function's variables."""
        code = function.value.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return self._run(code, dict(zip(names, arguments, strict=True)), function, None)

    def _run(
        self,
        code: types.CodeType,
        variables: dict[str, Tracked],
        function: Tracked,
        closure: Sequence[list[Any]] | None,
    ) -> Tracked:
        reason = why_not(code, inside=True)
        if reason is not None:
            raise NotRepeatable(reason)
        if code in self._codes:
            raise NotRepeatable("it calls itself")
        if len(self._codes) >= MOST_DEPTH:
            raise NotRepeatable("its calls are nested too deeply")
        self._codes.append(code)
        try:
            return Frame(self, code, variables, function, closure).run()
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
        if isinstance(value, tuple) or (type(value) is list and tracked.register is None):
            return self.tracker.items(tracked)
        if type(value) in (list, LazyTensor):
            # Calls with other numbers of items would be other cells, and could not share their steps.
            raise NotRepeatable("it goes over a list or the rows of a tensor that it is given")
        if isinstance(value, (range, str)):
            if value[_MOST_ITEMS:]:
                raise NotRepeatable(f"it goes over more than {_MOST_ITEMS:,} items")
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
        is_plain = isinstance(settled, (bool, int, float, str, type(None), list, tuple, dict, LazyTensor))
        if not is_plain and (hasattr(type(settled), "__bool__") or hasattr(type(settled), "__len__")):
            raise NotRepeatable(f"it asks whether a {type(settled).__name__} is true")
        return bool(settled)


def is_library(file: str) -> bool:
    """Whether a file is torch's, Foldloom's or Python's own, whose functions are called as they are."""
    return (
        is_machinery(file) or file.startswith("<frozen") or (file.startswith(_STANDARD) and "site-packages" not in file)
    )


_STANDARD = sysconfig.get_path("stdlib") + os.sep
