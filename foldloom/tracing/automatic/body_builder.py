"""From what a captured call recorded to the body of a cell, and to how the result of the next call is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from foldloom.graph import Op
from foldloom.tracing.automatic.natives import Natives
from foldloom.tracing.automatic.reads import is_record
from foldloom.tracing.automatic.tracked import PLAIN, C, NotRepeatable, Tracker, key_of
from foldloom.tracing.cells.bodies import Body, Constant, Node
from foldloom.tracing.functions.calls import name_of
from foldloom.tracing.mutation.views import Views
from foldloom.tracing.values.lazy_tensor import LazyTensor


class BodyBuilder:
    """Numbers the values of a body anew."""

    def __init__(self, tracker: Tracker, natives: Natives) -> None:
        self._tracker = tracker
        self._natives = natives
        self.nodes: list[tuple[Op, list[Any], tuple[int, ...]]] = []
        self._made: dict[Any, tuple[int, int]] = {}
        """Values that nodes made: the node, and which of its results."""
        self._type_of: dict[Any, Any] = {}
        self.operands: list[int] = []
        """Registers."""
        self.number_registers: list[int] = []
        self._operand_types: list[Any] = []
        self._place_of_operand: dict[Any, int] = {}
        self._constants: dict[int, int] = {}
        self._outputs: list[Any] = []
        self.output_types: list[Any] = []
        self._handles: dict[Any, LazyTensor] = {}
        """Handles that are returned, by their values."""
        self._roots: list[int] = []
        self._containers: list[Any] = []
        """Lists and the like that are returned: each is one object."""

    def add(self, op: Op, operands: Sequence[Any], made: Sequence[Any], rules: tuple[int, ...]) -> None:
        """One more node: what it reads and what it makes, as `key_of` names values."""
        for value, type in zip(operands, op.inputs, strict=True):
            self._note(value, type)
        self.nodes.append((op, list(operands), rules))
        for number, (value, type) in enumerate(zip(made, op.outputs, strict=True)):
            self._made[value] = (len(self.nodes) - 1, number)
            self._type_of[value] = type

    def _note(self, value: Any, type: Any) -> None:
        """An operand of a node: of the cell, a constant, or made by a node before."""
        if value in self._made or value in self._place_of_operand or value in self._constants:
            return
        tracker, natives = self._tracker, self._natives
        register = tracker.operands.get(value, natives.numbers.get(value))
        if value in natives.constants:
            if register is not None:
                raise NotRepeatable("it makes a constant that it is given too")
            self._constants[value] = len(self._constants)
            return
        if register is None:
            raise NotRepeatable("it uses a tensor that is neither one of its arguments nor a parameter")
        self._place_of_operand[value] = len(self.operands)
        self.operands.append(register)
        self._operand_types.append(type)
        if value in natives.numbers:
            self.number_registers.append(register)

    def body(self) -> tuple[Body, tuple[Any, ...]]:
        natives = self._natives
        places = dict(self._place_of_operand)
        places |= {value: len(self.operands) + number for value, number in self._constants.items()}
        first = len(self.operands) + len(self._constants)
        starts = []
        for op, _, _ in self.nodes:
            starts.append(first)
            first += len(op.outputs)
        places |= {value: starts[node] + number for value, (node, number) in self._made.items()}
        constants = []
        for value in self._constants:
            function, args, kwargs = natives.constants[value]
            constants.append(Constant(name_of(function), _frozen(args), tuple([(k, _frozen(v)) for k, v in kwargs])))
        nodes = tuple(
            [Node(op, tuple([places[value] for value in operands]), rules) for op, operands, rules in self.nodes]
        )
        outputs = tuple([places[value] for value in self._outputs])
        return Body(len(self.operands), tuple(constants), nodes, outputs), tuple(self._operand_types)

    # ---- Results.

    def returned(self, result: Any) -> Any:
        """How the result of a call is built (by `_automatic.c`): of outputs, of what was read, and of what is always the same."""
        kind = type(result)
        register = self._tracker.register_of.get(id(result))
        if register is not None and kind not in PLAIN:
            return (C.READ, register)
        if kind is LazyTensor:
            return (C.OUTPUT, self._output(result))
        if kind in PLAIN:
            return (C.CONSTANT, result)
        if kind is tuple:
            return (C.TUPLE, tuple([self.returned(item) for item in result]))
        if isinstance(result, tuple) and hasattr(kind, "_fields"):
            return (C.MADE, tuple([self.returned(item) for item in result]), kind._make)
        if any(result is other for other in self._containers):
            raise NotRepeatable(f"it returns a {kind.__name__} in two places")
        self._containers.append(result)
        if kind is list:
            return (C.LIST, tuple([self.returned(item) for item in result]))
        if kind is dict:
            keys = list(result)
            return (
                C.MADE,
                tuple([self.returned(result[key]) for key in keys]),
                lambda items: dict(zip(keys, items, strict=True)),
            )
        if is_record(kind):
            values = [getattr(result, field.name) for field in dataclasses.fields(kind)]
            return (C.MADE, tuple([self.returned(value) for value in values]), lambda items: kind(*items))
        raise NotRepeatable(f"it returns a {kind.__name__}")

    def _output(self, handle: LazyTensor) -> int:
        value = key_of(handle._value)
        if value not in self._made or (type(value) is tuple and not value):
            raise NotRepeatable("it returns a value that it did not compute")
        self._check_view(handle)
        if value not in self._outputs:
            self._outputs.append(value)
            self.output_types.append(self._type_of[value])
        elif self._handles[value] is not handle:
            raise NotRepeatable("it returns one value as two tensors")
        self._handles[value] = handle
        return self._outputs.index(value)

    def _check_view(self, handle: LazyTensor) -> None:
        """A result may be a view of a value that nobody else can see."""
        root = handle
        while (source := getattr(root, "_source", None)) is not None:
            if not isinstance(source[0], Views):
                raise NotRepeatable("it returns a view of an argument")
            root = source[0].base
            if id(root) in self._tracker.register_of:
                raise NotRepeatable("it returns a view of an argument")
        if id(root) in self._roots and handle is not self._handles.get(key_of(handle._value)):
            raise NotRepeatable("it returns two views of one value")
        self._roots.append(id(root))


def _frozen(value: Any) -> Any:
    return tuple([_frozen(item) for item in value]) if isinstance(value, (tuple, list)) else value


NOT_PLAIN = object()


def plainly_returned(returned: Any, outputs: int) -> Any:
    """The nesting of a result that is one output, or a tuple of all outputs in order."""
    if returned == (C.OUTPUT, 0) and outputs == 1:
        return None
    if returned == (C.TUPLE, tuple([(C.OUTPUT, number) for number in range(outputs)])):
        return (tuple, outputs, (None,) * outputs)
    return NOT_PLAIN
