"""Recording calls of cells into columns.

This is the one place where Python runs for every node of every example, so it is written for speed: types are compared by
identity, one dictionary lookup finds a known signature, and nothing is made but the handles that the user's code passes on.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import is_autocast_enabled, is_grad_enabled

from foldloom.errors import ArgumentError, FoldloomError, ForeignValueError, RecordingError
from foldloom.execution.kernels import type_of
from foldloom.graph import Graph, Op, Type, input_op
from foldloom.lazy.cell import Cell, Settings, unbatchable
from foldloom.lazy.nesting import Nesting, flatten, unflatten
from foldloom.lazy.scope import user_line
from foldloom.lazy.tensor import LazyTensor
from foldloom.recording import Column, Recording

_CONTAINERS = (tuple, list, dict)


class _Call:
    """What is needed to record one more call of a known signature."""

    __slots__ = ("op_number", "output_types", "returns", "returns_one", "returns_pair")

    def __init__(self, op_number: int, output_types: tuple[Type, ...], returns: Nesting) -> None:
        self.op_number = op_number
        self.output_types = output_types
        self.returns = returns
        self.returns_one = returns is None
        self.returns_pair = returns == (tuple, 2, (None, None))


class _InputColumn:
    """The values that were given for one input op."""

    __slots__ = ("op_number", "type", "values", "versions")

    def __init__(self, op_number: int, type: Type) -> None:
        self.op_number = op_number
        self.type = type
        self.values: list[Any] = []
        self.versions: list[int] = []

    def close(self) -> Column:
        if not isinstance(self.values[0], torch.Tensor):
            return np.array(self.values, self.type.dtype)
        for tensor, version in zip(self.values, self.versions, strict=True):
            if not tensor.is_inference() and tensor._version != version:
                raise ArgumentError(
                    f"a tensor ({self.type}) was changed in place after it had been given to a cell, which has not run yet. "
                    "Give the cell a copy (`x.clone()`), or make a new tensor instead of changing it"
                )
        return tuple(self.values)


class Recorder:
    """The columns of a graph under construction. One recorder serves one thread, while one batch is recorded."""

    def __init__(self) -> None:
        self._grad_enabled = is_grad_enabled()
        self._autocast = is_autocast_enabled("cpu")
        self._devices_met: set[tuple[torch.device, Cell]] = set()
        self._ops: list[Op] = []
        self._calls: dict[Any, _Call] = {}
        self._columns: dict[tuple[Type, bool, bool], _InputColumn] = {}
        self._input_of_tensor: dict[tuple[int, int], LazyTensor] = {}
        self._op_of_node: list[int] = []
        self._operands: list[int] = []
        self._depth_of_node: list[int] = []
        self._value_count = 0
        self._nodes_of_example: list[int] = []
        self._ended_nodes = 0
        self._outputs: list[int] = []
        self._results: list[Any] = []
        default = str(torch.get_default_dtype()).removeprefix("torch.")
        complex_default = {"float64": "complex128"}.get(default, "complex64")
        self._type_of_number = {
            int: Type((), "int64"),
            float: Type((), default),
            bool: Type((), "bool"),
            complex: Type((), complex_default),
        }
        self._column_of_number: dict[type, _InputColumn] = {}

    def call(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Record one call of a cell; handles for its results."""
        if is_grad_enabled() is not self._grad_enabled or is_autocast_enabled("cpu") is not self._autocast:
            raise self._other_mode(cell)
        if settings:
            return self._call_nested(cell, args, settings)
        operands: list[int] = []
        types: list[Type] = []
        depth = 0
        for arg in args:
            if type(arg) is LazyTensor:
                if arg._recorder is not self:
                    raise self._foreign(cell, arg)
                operands.append(arg._value)
                types.append(arg._type)
                if arg._depth > depth:
                    depth = arg._depth
                continue
            if isinstance(arg, _CONTAINERS):
                done = zip(args, operands, types, strict=False)
                handles = [a if type(a) is LazyTensor else LazyTensor(self, value, t, 0) for a, value, t in done]
                return self._call_nested(cell, (*handles, *args[len(operands) :]), settings)
            column = self._column_of_number.get(type(arg))
            if column is not None:
                operands.append(self._add_input(column, arg))
                types.append(column.type)
            else:
                handle = self._add_other_input(cell, arg)
                operands.append(handle._value)
                types.append(handle._type)
        known = self._calls.get((cell, *types))
        if known is None:
            known = self._new_call((cell, *types), cell, tuple(types), None, ())
        return self._add_node(known, operands, depth + 1)

    def _add_node(self, known: _Call, operands: list[int], depth: int) -> Any:
        self._op_of_node.append(known.op_number)
        self._operands += operands
        self._depth_of_node.append(depth)
        types = known.output_types
        value = self._value_count
        self._value_count = value + len(types)
        if known.returns_one:
            return LazyTensor(self, value, types[0], depth)
        if known.returns_pair:
            return LazyTensor(self, value, types[0], depth), LazyTensor(self, value + 1, types[1], depth)
        handles = [LazyTensor(self, number, type, depth) for number, type in enumerate(types, value)]
        return unflatten(known.returns, iter(handles))

    def _call_nested(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The same where arguments are nested or settings are given: the leaves are recorded as one call."""
        leaves: list[Any] = []
        nesting = flatten(args, leaves)
        frozen = _frozen(cell, settings)
        handles = [leaf if type(leaf) is LazyTensor else self._add_other_input(cell, leaf) for leaf in leaves]
        for handle in handles:
            if handle._recorder is not self:
                raise self._foreign(cell, handle)
        types = tuple([handle._type for handle in handles])
        key = (cell, *types, nesting, frozen)
        known = self._calls.get(key)
        if known is None:
            known = self._new_call(key, cell, types, nesting, frozen)
        depth = max([handle._depth for handle in handles], default=0)
        return self._add_node(known, [handle._value for handle in handles], depth + 1)

    def end_example(self, outputs: Sequence[LazyTensor], result: Any) -> None:
        """What has been called since the last example is one example, and this is its result."""
        for output in outputs:
            if output._recorder is not self:
                raise self._foreign(None, output)
        self._outputs += [output._value for output in outputs]
        self._nodes_of_example.append(len(self._op_of_node) - self._ended_nodes)
        self._ended_nodes = len(self._op_of_node)
        self._results.append(result)

    def close(self, name_of_cell: dict[str, str] | None = None) -> Recording:
        """The recording, its cells under other names if there are any for them."""
        names = name_of_cell or {}
        graph = Graph(
            ops=_table(tuple(self._ops), tuple([names.get(op.key, op.key) for op in self._ops])),
            op_of_node=np.array(self._op_of_node, np.int64),
            operands=np.array(self._operands, np.int64),
            depth_of_node=np.array(self._depth_of_node, np.int64),
            nodes_of_example=np.array(self._nodes_of_example, np.int64),
            outputs=np.array(self._outputs, np.int64),
            value_count=self._value_count,
        )
        columns = sorted(self._columns.values(), key=lambda column: column.op_number)
        return Recording(graph, tuple([column.close() for column in columns]), tuple(self._results))

    def _new_call(
        self, key: tuple[Any, ...], cell: Cell, types: tuple[Type, ...], nesting: Nesting, settings: Settings
    ) -> _Call:
        try:
            signature = cell.signature(types, nesting, settings)
        except FoldloomError as error:
            raise type(error)(f"{error}\n  {self._where()}") from error.__cause__
        known = self._calls[key] = _Call(self._add_op(signature.op), signature.op.outputs, signature.returns)
        return known

    def _add_op(self, op: Op) -> int:
        self._ops.append(op)
        return len(self._ops) - 1

    def _add_other_input(self, cell: Cell, value: Any) -> LazyTensor:
        """Anything that is given: tensors, arrays, numbers."""
        if isinstance(value, torch.Tensor):
            return self._add_tensor(cell, value)
        number_type = self._type_of_number.get(type(value))
        if number_type is not None:
            column = self._column_of_number.get(type(value))
            if column is None:
                column = self._column_of_number[type(value)] = self._column(number_type, is_tensor=False, tracked=False)
            return LazyTensor(self, self._add_input(column, value), number_type, 0)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            # A copy, because the array may change before the cell runs.
            array = np.array(value)
            array_type = Type(array.shape, array.dtype.name)
            column = self._column(array_type, is_tensor=False, tracked=False)
            return LazyTensor(self, self._add_input(column, array), array_type, 0)
        raise ArgumentError(f"{unbatchable(cell, value)}\n  {self._where()}")

    def _add_tensor(self, cell: Cell, tensor: torch.Tensor) -> LazyTensor:
        """A tensor that was given before is the same value: an initial state that every example starts from, say."""
        self._check_device(tensor.device, cell)
        version = -1 if tensor.is_inference() else tensor._version
        known = self._input_of_tensor.get((id(tensor), version))
        if known is None:
            column = self._column(type_of(tensor), is_tensor=True, tracked=tensor.requires_grad)
            column.versions.append(version)
            known = LazyTensor(self, self._add_input(column, tensor), column.type, 0)
            self._input_of_tensor[id(tensor), version] = known
        return known

    def _add_input(self, column: _InputColumn, value: Any) -> int:
        column.values.append(value)
        self._op_of_node.append(column.op_number)
        self._depth_of_node.append(0)
        number = self._value_count
        self._value_count = number + 1
        return number

    def _column(self, type: Type, *, is_tensor: bool, tracked: bool) -> _InputColumn:
        key = (type, is_tensor, tracked)
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _InputColumn(self._add_op(input_op(type, is_tensor, tracked)), type)
        return column

    def _check_device(self, device: torch.device, cell: Cell) -> None:
        """All tensors of a batch, and the weights of the cells that they meet, are on one device."""
        if (device, cell) in self._devices_met:
            return
        first = next(iter(self._devices_met), (cell.device or device, cell))[0]
        for other in (first, cell.device or first):
            if device != other:
                raise ArgumentError(
                    f"cell {cell.label} meets tensors on {device} and {other} in one batch. Move them to one device first: "
                    f"`tensor.to({str(other)!r})` or `model.to({str(device)!r})`\n  {self._where()}"
                )
        self._devices_met.add((device, cell))

    def _other_mode(self, cell: Cell) -> RecordingError:
        return RecordingError(
            f"cell {cell.label} was called inside torch.no_grad, torch.enable_grad or torch.autocast, which a cell that runs "
            "later would not see. Put it inside the cell, use `x.detach()` there, or put all of fl.batch inside it"
            f"\n  {self._where()}"
        )

    def _foreign(self, cell: Cell | None, value: LazyTensor) -> ForeignValueError:
        doing = "returned from this example" if cell is None else f"given to cell {cell.label}"
        return ForeignValueError(
            f"a value ({value._type}) that belongs to another fl.batch, or to one that is over, was {doing}. Values live "
            "as long as the call that recorded them: return them from the function given to fl.batch, and pass on what "
            f"fl.batch returns\n  {self._where()}"
        )

    def _where(self) -> str:
        return f"in example {len(self._results)}, at {user_line()}"


def _frozen(cell: Cell, settings: dict[str, Any]) -> Settings:
    items = tuple([(name, settings[name], repr(settings[name])) for name in sorted(settings)])
    for name, value, _ in items:
        if isinstance(value, (LazyTensor, torch.Tensor, np.ndarray)):
            raise ArgumentError(
                f"cell {cell.label} was given a tensor by keyword ({name}). Keyword arguments are settings; pass what is "
                f"to be batched by position: `{cell.label}(..., {name})`\n  at {user_line()}"
            )
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"cell {cell.label} was given {name}={value!r:.60}, which cannot tell one step from another because it is not "
                f"hashable. Pass a tuple instead of a list\n  at {user_line()}"
            ) from None
    return items


@functools.lru_cache(maxsize=1024)
def _table(ops: tuple[Op, ...], names: tuple[str, ...]) -> tuple[Op, ...]:
    """Ops under new names. Equal tables are one object, which makes merging recordings a matter of offsets."""
    return tuple([op if op.key == name else replace(op, key=name) for op, name in zip(ops, names, strict=True)])
