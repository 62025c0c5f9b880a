"""Values of a call that is being captured, each with the way by which the next call finds it again.

A value that the function *reads* (an argument, a global, an attribute) is in a register of the guard program: the next call reads it
anew. What the function does may depend on it only after a check that it is the same. That check is made when the value is first used
and not when it is read: a number that only becomes a tensor may be another one in each call.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from foldloom.errors import FoldloomError
from foldloom.tracing import fast_path
from foldloom.tracing.values.lazy_tensor import LazyTensor

PLAIN = frozenset(
    (int, float, bool, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size, range)
)
"""Types whose values are compared by value."""

INNER: set[type] = set()
"""Types that only the interpreter knows. What is passed to others, or returned, must not be one of them."""

C: Any = fast_path.automatic
"""Guards, traces and the hook, in C; None where they cannot be had."""


class NotRepeatable(FoldloomError, BaseException):  # noqa: N818 (says what was found; nobody but the capture catches it)
    """A function cannot be proved to do the same again. It is no Exception, so that no code in between takes it for one."""


class Tracked:
    """A value, the register that it was read into if it was read, and for a list or tuple that was made here, its items."""

    __slots__ = ("is_settled", "items", "register", "value")

    def __init__(self, value: Any, register: int | None = None, items: list[Tracked] | None = None) -> None:
        self.value = value
        self.register = register
        self.items = items
        self.is_settled = register is None and items is None


class GuardProgram:
    """Reads and checks, in the order in which the capture made them."""

    def __init__(self, arguments: int) -> None:
        self.first_free = self._registers = arguments + 1
        self.guards: list[tuple[int, int, int, Any, Any]] = []
        self._register_of: dict[Any, int] = {}
        self._checked: set[Any] = set()

    def read(self, kind: int, source: int, number: int = 0, name: Any = None, other: Any = None) -> int:
        """The register that holds what is read."""
        key = (kind, source, number, name if type(name) is str else id(name), other)
        known = self._register_of.get(key)
        if known is None:
            self.guards.append((kind, source, number, name, other))
            known = self._register_of[key] = self._registers
            self._registers += 1
        return known

    def check(self, kind: int, source: int, number: int = 0, expected: Any = None) -> None:
        key = (kind, source, number)
        if key not in self._checked:
            self._checked.add(key)
            self.guards.append((kind, source, number, expected, None))


def _is_known(value: Any) -> bool:
    if type(value) in PLAIN or isinstance(value, (torch.Tensor, slice)):
        return True
    if isinstance(value, dict):
        return type(value) is dict and all(map(_is_known, value)) and all(map(_is_known, value.values()))
    is_sequence = type(value) is list or (isinstance(value, tuple) and type(value).__iter__ is tuple.__iter__)
    return is_sequence and all(map(_is_known, value))


def weakly(value: Any) -> Any:
    """A weak reference, where there can be one."""
    try:
        return weakref.ref(value)
    except TypeError:
        return value


def key_of(value: Any) -> Any:
    """The number of a value; for a ragged one, the numbers of its rows."""
    return value if type(value) is int else tuple(value)


class Tracker:
    """Makes tracked values, and the checks that settle them."""

    def __init__(self, recorder: Any, function: Any, arguments: Sequence[Any]) -> None:
        self.recorder = recorder
        self.program = GuardProgram(len(arguments))
        self.operands: dict[Any, int] = {}
        """Registers of handles, by the value that they stand for: see `key_of`."""
        self.register_of: dict[int, int] = {}
        """Registers of handles and other objects, by their identity. What was read lives as long as the capture."""
        self.varying: dict[int, str] = {}
        """Registers of plain values that differ from call to call, with the names of the variables: nothing may depend on them."""
        self.appends: list[tuple[Tracked, Tracked]] = []
        """Lists that others see too, with the items that are appended to them in the end, when nothing can fail any more."""
        self._alive: list[Any] = []
        self.arguments = [self.at(register, value) for register, value in enumerate(arguments)]
        self.function = self.at(len(arguments), function)

    def read(self, value: Any, kind: int, source: int, number: int = 0, name: Any = None, other: Any = None) -> Tracked:
        return self.at(self.program.read(kind, source, number, name, other), value)

    def at(self, register: int, value: Any) -> Tracked:
        """What was read into a register."""
        self._alive.append(value)
        if type(value) is LazyTensor:
            self._note_operand(register, value)
        elif type(value) not in PLAIN:
            self.register_of.setdefault(id(value), register)
        return Tracked(value, register)

    def _note_operand(self, register: int, handle: LazyTensor) -> None:
        if handle._recorder is not self.recorder:
            raise NotRepeatable(
                "it uses a tensor that was given and has several rows, or a value computed from weights alone"
            )
        if handle._type.ragged and not handle._value:
            raise NotRepeatable("it uses a value without rows")
        self.program.check(C.CHECK_HANDLE, register, 0, handle._type)
        first = self.operands.setdefault(key_of(handle._value), register)
        if first != register:
            self.program.check(C.CHECK_SAME, register, first)
        self.register_of.setdefault(id(handle), register)

    # ---- Settling: what the function does may depend on a value from here on.

    def settle(self, tracked: Tracked) -> Any:
        """The value, which is the same whenever the guards hold."""
        if type(tracked.value) in INNER:
            raise NotRepeatable("it passes on a function or an iterator that it made")
        if not tracked.is_settled:
            tracked.is_settled = True
            if tracked.items is not None:
                for item in tracked.items:
                    self.settle(item)
            elif tracked.register is not None:
                self._settle_read(tracked.value, tracked.register)
        return tracked.value

    def settle_known(self, tracked: Tracked) -> Any:
        """The same, for what is computed with: tensors and plain values. Other objects may change, and run code of their own."""
        value = self.settle(tracked)
        if not _is_known(value):
            raise NotRepeatable(f"it computes with a {type(value).__name__}")
        return value

    def _settle_read(self, value: Any, register: int) -> None:
        kind = type(value)
        if kind is LazyTensor:
            return
        if register in self.varying:
            raise NotRepeatable(f"it depends on `{self.varying[register]}`, which is another number every time")
        if kind in PLAIN:
            self.program.check(C.CHECK_EQUAL, register, 0, value)
        elif kind is tuple or kind is list:
            for item in self.items(Tracked(value, register)):
                self.settle(item)
        elif kind is dict or kind is set:
            raise NotRepeatable(f"it uses a {kind.__name__}")
        elif isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            raise NotRepeatable("it uses a tensor that is neither one of its arguments nor a parameter")
        else:
            self.program.check(C.CHECK_IS, register, 0, weakly(value))

    def append(self, container: Tracked, item: Tracked) -> None:
        """One item more in a list: at once if it was made in the call."""
        if container.items is not None:
            container.items.append(item)
            container.value.append(item.value)
            container.is_settled = False
            return
        if container.register is None or type(container.value) is not list:
            raise NotRepeatable("it changes a list that it did not make")
        self.program.check(C.CHECK_NUMBER, container.register, 0, list)
        self.appends.append((container, item))

    def do_appends(self) -> None:
        """Append to lists what the call appends."""
        for container, item in self.appends:
            container.value.append(item.value)

    def items(self, tracked: Tracked) -> list[Tracked]:
        """The items of a list or tuple."""
        if tracked.items is not None:
            return tracked.items
        if self.appends and isinstance(tracked.value, list):
            raise NotRepeatable("it reads a list after it has appended to one")
        if tracked.register is None:
            return [Tracked(item) for item in tracked.value]
        value, register = tracked.value, tracked.register
        self.program.check(C.CHECK_LENGTH, register, len(value), weakly(type(value)))
        return [self.read(item, C.READ_ITEM, register, number) for number, item in enumerate(value)]

    def settle_type(self, tracked: Tracked) -> type:
        """The type of a value that was read, whose class has not been changed since."""
        kind: type = type(tracked.value)
        if tracked.register is not None:
            version = C.version_of(kind)
            if not version:
                getattr(tracked.value, "__class__")  # noqa: B009 (looking something up gives a class a version)
                version = C.version_of(kind)
            if not version:
                raise NotRepeatable(f"the class {kind.__name__} cannot be watched")
            self.program.check(C.CHECK_TYPE, tracked.register, version, weakly(kind))
        return kind


class Iteration:
    """What is left to iterate over."""

    __slots__ = ("left",)

    def __init__(self, items: Sequence[Tracked]) -> None:
        self.left = list(items)[::-1]


class LocalFunction:
    """A function that is made inside: a comprehension, a lambda."""

    __slots__ = ("closure", "code", "defaults", "globals_of")

    def __init__(
        self, code: types.CodeType, defaults: Sequence[Tracked], closure: Sequence[list[Any]], globals_of: Tracked
    ) -> None:
        self.code, self.defaults, self.closure, self.globals_of = code, defaults, closure, globals_of


INNER.update((Iteration, LocalFunction))
