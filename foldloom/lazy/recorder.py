"""Recording calls of cells into columns.

This is the one place where Python runs for every node of every example, so it is written for speed: types are compared by
identity, one dictionary lookup finds a known signature, and nothing is made but the handles that the user's code passes on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from foldloom.errors import ArgumentError, FoldloomError, ForeignValueError
from foldloom.execution.kernels import type_of
from foldloom.graph import Graph, Op, Type, input_op
from foldloom.lazy.cell import Cell, _unbatchable
from foldloom.lazy.nesting import Nesting, flatten, unflatten
from foldloom.lazy.scope import user_line
from foldloom.lazy.tensor import LazyTensor
from foldloom.recording import Column, Recording


_CONTAINERS = frozenset((tuple, list, dict))


class _Call:
    """What is needed to record one more call of a known signature."""

    __slots__ = ("op_number", "output_types", "returns", "returns_one", "returns_tuple")

    def __init__(self, op_number: int, output_types: tuple[Type, ...], returns: Nesting) -> None:
        self.op_number = op_number
        self.output_types = output_types
        self.returns = returns
        self.returns_one = returns is None
        self.returns_tuple = returns is not None and returns[0] is tuple and not any(returns[2])


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
        self.device: torch.device | None = None
        self._ops: list[Op] = []
        self._calls: dict[Any, _Call] = {}
        self._columns: dict[tuple[Type, bool, bool], _InputColumn] = {}
        self._input_of_tensor: dict[tuple[int, int], int] = {}
        self._op_of_node: list[int] = []
        self._operands: list[int] = []
        self._depth_of_node: list[int] = []
        self._value_count = 0
        self._nodes_of_example: list[int] = []
        self._outputs: list[int] = []
        self._outputs_of_example: list[int] = []
        self._results: list[Any] = []
        default = str(torch.get_default_dtype()).removeprefix("torch.")
        self._type_of_number = {int: Type((), "int64"), float: Type((), default), bool: Type((), "bool")}
        self._column_of_number: dict[type, _InputColumn] = {}

    def call(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Record one call of a cell; handles for its results."""
        nesting: Nesting = None
        if settings or not _CONTAINERS.isdisjoint(map(type, args)):
            leaves: list[Any] = []
            nesting = flatten(args, leaves)
            args = tuple(leaves)
        operands: list[int] = []
        key: list[Any] = [cell]
        depth = 0
        for arg in args:
            if type(arg) is LazyTensor:
                if arg._recorder is not self:
                    raise self._foreign(cell, arg)
                operands.append(arg._value)
                key.append(arg._type)
                if arg._depth > depth:
                    depth = arg._depth
            else:
                column = self._column_of_number.get(type(arg))
                if column is None:
                    value, given_type = self._add_other_input(cell, arg)
                    operands.append(value)
                    key.append(given_type)
                else:
                    # The same as _add_input, which is too slow to call for every word of every sentence.
                    column.values.append(arg)
                    self._op_of_node.append(column.op_number)
                    self._depth_of_node.append(0)
                    operands.append(self._value_count)
                    self._value_count += 1
                    key.append(column.type)
        if nesting is not None:
            key += [nesting, _frozen(cell, settings)]
        known = self._calls.get(tuple(key))
        if known is None:
            known = self._new_call(cell, tuple(key), len(args), nesting, settings)
        self._op_of_node.append(known.op_number)
        self._operands += operands
        depth += 1
        self._depth_of_node.append(depth)
        first = self._value_count
        self._value_count = first + len(known.output_types)
        if known.returns_one:
            return LazyTensor(self, first, known.output_types[0], depth)
        handles = [LazyTensor(self, value, type, depth) for value, type in enumerate(known.output_types, first)]
        return tuple(handles) if known.returns_tuple else unflatten(known.returns, iter(handles))

    def end_example(self, outputs: Sequence[LazyTensor], result: Any) -> None:
        """What has been called since the last example is one example, and this is its result."""
        for output in outputs:
            if output._recorder is not self:
                raise self._foreign(None, output)
        self._outputs += [output._value for output in outputs]
        self._outputs_of_example.append(len(outputs))
        self._nodes_of_example.append(len(self._op_of_node))
        self._results.append(result)

    def close(self, rename: Callable[[str], str] | None = None) -> Recording:
        """The recording, its cells under other names if a renaming is given."""
        ends = np.array(self._nodes_of_example, np.int64)
        ops = [op if rename is None or op.is_input else replace(op, key=rename(op.key)) for op in self._ops]
        graph = Graph(
            ops=_shared_table(tuple(ops)),
            op_of_node=np.array(self._op_of_node, np.int64),
            operands=np.array(self._operands, np.int64),
            depth_of_node=np.array(self._depth_of_node, np.int64),
            nodes_of_example=np.diff(ends, prepend=0),
            outputs=np.array(self._outputs, np.int64),
            outputs_of_example=np.array(self._outputs_of_example, np.int64),
        )
        columns = sorted(self._columns.values(), key=lambda column: column.op_number)
        return Recording(graph, tuple([column.close() for column in columns]), tuple(self._results))

    def _new_call(
        self, cell: Cell, key: tuple[Any, ...], arity: int, nesting: Nesting, settings: dict[str, Any]
    ) -> _Call:
        try:
            signature = cell.signature(key[1 : 1 + arity], nesting, _frozen(cell, settings))
        except FoldloomError as error:
            raise type(error)(f"{error}\n  {self._where()}") from error.__cause__
        self._check_device(cell.device, cell)
        known = self._calls[key] = _Call(self._add_op(signature.op), signature.op.outputs, signature.returns)
        return known

    def _add_op(self, op: Op) -> int:
        self._ops.append(op)
        return len(self._ops) - 1

    def _add_other_input(self, cell: Cell, value: Any) -> tuple[int, Type]:
        """Tensors, arrays, and the first number of its kind."""
        if isinstance(value, torch.Tensor):
            return self._add_tensor(cell, value)
        number_type = self._type_of_number.get(type(value))
        if number_type is not None:
            column = self._column_of_number[type(value)] = self._column(number_type, is_tensor=False, tracked=False)
            return self._add_input(column, value)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            # A copy, because the array may change before the cell runs.
            array = np.array(value)
            return self._add_input(self._column(Type(array.shape, array.dtype.name), is_tensor=False, tracked=False), array)
        if isinstance(value, complex):
            return self._add_tensor(cell, torch.tensor(value))
        raise ArgumentError(f"{_unbatchable(cell, value)}\n  {self._where()}")

    def _add_tensor(self, cell: Cell, tensor: torch.Tensor) -> tuple[int, Type]:
        self._check_device(tensor.device, cell)
        version = -1 if tensor.is_inference() else tensor._version
        known = self._input_of_tensor.get((id(tensor), version))
        if known is not None:
            return known, type_of(tensor)
        column = self._column(type_of(tensor), is_tensor=True, tracked=tensor.requires_grad)
        column.versions.append(version)
        self._input_of_tensor[id(tensor), version] = self._value_count
        return self._add_input(column, tensor)

    def _add_input(self, column: _InputColumn, value: Any) -> tuple[int, Type]:
        column.values.append(value)
        self._op_of_node.append(column.op_number)
        self._depth_of_node.append(0)
        self._value_count += 1
        return self._value_count - 1, column.type

    def _column(self, type: Type, *, is_tensor: bool, tracked: bool) -> _InputColumn:
        key = (type, is_tensor, tracked)
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = _InputColumn(self._add_op(input_op(type, is_tensor, tracked)), type)
        return column

    def _check_device(self, device: torch.device | None, cell: Cell) -> None:
        if device is None:
            return
        if self.device is None:
            self.device = device
        if device != self.device:
            raise ArgumentError(
                f"cell {cell.label} meets tensors on {device} and {self.device} in one batch. Move them to one device first: "
                f"`tensor.to({str(self.device)!r})` or `model.to({str(self.device)!r})`\n  {self._where()}"
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


def _frozen(cell: Cell, settings: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    items = tuple(sorted(settings.items()))
    for name, value in items:
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
def _shared_table(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Equal tables as one object, which makes merging recordings a matter of offsets."""
    return ops
