"""Where given values go: tensors, arrays, numbers and constants become inputs of the graph.

A tensor of the user's is either a weight, the same for all examples, which kernels are given as it is; or a value of one example,
which becomes an input when it is first used.
"""

from __future__ import annotations

import functools
import weakref
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np
import torch

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import spare_hooks, type_of
from foldloom.graph import ANY, Type
from foldloom.pytrees import flatten
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.columns import kept
from foldloom.tracing.cells.core import Cell, unbatchable
from foldloom.tracing.mutation.guards import Guards, memory_of
from foldloom.tracing.mutation.views import ArrayCopy
from foldloom.tracing.scope import recording_paused, unwatched
from foldloom.tracing.values.lazy_tensor import LazyTensor, mark_of
from foldloom.tracing.weights import DerivedWeights

Value = tuple[Any, Type]
"""The number of a value in the graph, or for a ragged one the numbers of its rows; and its type."""

_ONLY_HERE = 2
"""References to an object that is only in a dict and on its way to be counted."""


class GivenArray(NamedTuple):
    given: Any
    """Itself, so that no other array gets its identity."""
    array: np.ndarray[Any, Any]
    """As it was."""
    value: Value
    example: int

    def is_still(self, value: Any) -> bool:
        array = self.array
        return array.shape == value.shape and array.dtype == value.dtype and array.tobytes() == value.tobytes()  # type: ignore[no-any-return]


class Inputs:
    """Adds inputs to a graph, and knows which of its values are tensors that were given."""

    def __init__(self, graph: GraphBuilder, guards: Guards, derived: DerivedWeights) -> None:
        self._graph = graph
        self._guards = guards
        self._derived = derived
        self.has_given = False
        """Whether there are handles of given tensors."""
        self._device: torch.device | None = None
        self._first_cell: Cell | None = None
        self._devices_met: set[tuple[torch.device, Cell]] = set()
        self._value_of_tensor: dict[tuple[int, int, bool, bool], tuple[Value, int]] = {}
        """By a tensor's identity, its version, whether its rows are values and whether it requires grad: its value, and the example that gave
        it first."""
        self._value_of_array: dict[int, GivenArray] = {}
        """By an array's identity."""
        self._tensor_of_value: dict[int, torch.Tensor] = {}
        self._values_in: dict[int | None, list[tuple[tuple[int, ...], bool]]] | None = None
        """By memory, the values that were given from it and whether they are rows; from the first change of a tensor of the user's on."""
        self._rows: list[tuple[range, torch.Tensor]] = []
        """Tensors whose rows are values, each with these, in order."""
        self._first_rows: list[int] = []
        self._handles: list[tuple[weakref.ref[LazyTensor], torch.Tensor]] = []
        self.memory: set[int] = set()
        """Of the tensors that were given since the last flush: what reads them has not run yet."""
        self._users_own: set[int] = set()
        """Values that stand for tensors of the user's, which an in-place change would have to reach."""
        self._in_arrays: dict[int, torch.Tensor] = {}
        """Tensors that share memory with an array that a program has asked for: it can change, and no version counter tells."""
        self._copies: list[ArrayCopy] = []
        """Arrays that are copies of values."""
        self._example_of_tensor: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        """By the identity of a tensor, which may be gone: the first example that has used it."""
        self._buffers: dict[int, torch.Tensor] = {}
        self._constants: dict[Hashable, torch.Tensor] = {}
        self._constants_of_sizes: dict[Hashable, tuple[Value, torch.Tensor, int]] = {}
        """Those of a function and sizes alone that have been added since the last flush, each with the example that did so."""
        self._made_in: Counter[tuple[int, int]] = Counter()
        """How often an example has made a constant, by its value."""
        self._default_dtype = torch.get_default_dtype()
        self._type_of_number = _types_of_numbers(self._default_dtype)

    def flushed(self) -> None:
        """The input columns have been taken: what is given again is a new input."""
        self._value_of_tensor, self._value_of_array, self._constants_of_sizes = {}, {}, {}
        self.memory.clear()

    def forget(self) -> None:
        """The next example gives its tensors anew, so that it can be split from those before."""
        self._value_of_tensor, self._value_of_array, self._constants_of_sizes = {}, {}, {}
        self._constants, self._example_of_tensor = {}, {}
        self._graph.shared_tensors.clear()
        self._handles.clear()

    def rewind(self, values: int) -> None:
        """Forget what was given as later values than these."""
        self._value_of_tensor = {
            k: found for k, found in self._value_of_tensor.items() if _first_of(found[0][0]) < values
        }
        self._constants_of_sizes = {k: made for k, made in self._constants_of_sizes.items() if made[0][0] < values}
        self._value_of_array = {k: found for k, found in self._value_of_array.items() if found.value[0] < values}
        self._tensor_of_value = {number: t for number, t in self._tensor_of_value.items() if number < values}
        self._users_own = {number for number in self._users_own if number < values}
        self._values_in = None
        while self._first_rows and self._first_rows[-1] >= values:
            self._rows.pop()
            self._first_rows.pop()
        self._made_in = Counter({key: count for key, count in self._made_in.items() if key[0] < values})

    def keep(self, moved: Mapping[int, int]) -> None:
        """Of all values keep these, under other numbers. They are computed: rows of tensors are read like others."""
        self._tensor_of_value = kept(self._tensor_of_value, moved)
        self._users_own = {moved[value] for value in self._users_own if value in moved}
        self._rows, self._first_rows, self._values_in = [], [], None
        self._handles = [(handle, tensor) for handle, tensor in self._handles if handle() is not None]
        self._copies = [copy for copy in self._copies if copy.is_in_use]
        for number in [number for number in self._in_arrays if getrefcount(self._in_arrays[number]) <= _ONLY_HERE]:
            del self._in_arrays[number]
        self._constants, self._made_in = {}, Counter()
        self._example_of_tensor = {
            number: found for number, found in self._example_of_tensor.items() if found[0]() is not None
        }

    # ---- Adding inputs.

    def add_tensor(self, tensor: torch.Tensor, ragged: bool | None = None) -> Value:
        """A tensor as a value of the current example. ``ragged`` makes each of its rows a value; None decides by its type."""
        with unwatched():
            if ragged is None:
                ragged = tensor.ndim >= 2 or (tensor.ndim == 1 and not tensor.is_floating_point())
            # Without rows, nothing would tell whether a ragged value requires grad. In a recording that is kept, nobody asks.
            ragged = ragged and (tensor.shape[0] > 0 or self._guards.runs_later)
            storage = tensor.untyped_storage()
            self.memory.add(storage._cdata)
            # The memory of a numpy array can change before it is read, and no version counter tells.
            if not tensor.requires_grad and not storage.resizable():
                tensor = tensor.clone()
            return self._add_tensor(tensor, ragged)

    def _add_tensor(self, tensor: torch.Tensor, ragged: bool) -> Value:
        version = -1 if tensor.is_inference() else tensor._version
        key = (id(tensor), version, ragged, tensor.requires_grad)
        found = self._value_of_tensor.get(key)
        if found is not None:
            known, example = found
            if example != self._graph.example:
                self._guards.guard_tensors((tensor,))
            return known
        if tensor.requires_grad:
            spare_hooks((tensor,))
        type = type_of(tensor)
        self._device = self._device or tensor.device
        if ragged:
            type = Type((ANY, *type.shape[1:]), type.dtype)
        column = self._graph.input_column(type, is_tensor=True, tracked=tensor.requires_grad)
        column.versions.append(version)
        added: Value
        if ragged:
            rows = self._graph.add_ragged_input(column, tensor)
            self._rows.append((rows, tensor))
            self._first_rows.append(rows.start)
            if self._values_in is not None:
                self._note_memory(tensor, (tuple(rows), True))
            added = rows, type
        else:
            number = self._graph.add_input(column, tensor)
            self._tensor_of_value[number] = tensor
            if self._values_in is not None:
                self._note_memory(tensor, ((number,), False))
            added = number, type
        self._value_of_tensor[key] = added, self._graph.example
        return added

    def add_constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """What a function like `torch.zeros` returns: made once, for all examples."""
        example = self._graph.example
        sizes = (function, *args, torch.get_default_dtype()) if not kwargs and _are_sizes(args) else None
        made = None if sizes is None else self._constants_of_sizes.get(sizes)
        if made is None:
            tensor = self._constant(function, args, kwargs)
            made = self.add_tensor(tensor, ragged=False), tensor, example
            if sizes is not None:
                self._constants_of_sizes[sizes] = made
        elif made[2] != example:
            self._guards.guard_tensors((made[1],))
        self._made_in[made[0][0], example] += 1
        return made[0]

    def _constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        leaves: list[Any] = []
        nesting = flatten((tuple(args), kwargs), leaves)
        key = (function, nesting, tuple([mark_of(leaf) for leaf in leaves]), torch.get_default_dtype())
        known = self._constants.get(key)
        if known is None:
            with recording_paused():
                known = self._constants[key] = function(*args, **kwargs)
        return known

    def is_one_tensor(self, value: int, example: int) -> bool:
        """Whether a value stands for one tensor of an example, and not for several constants of the same numbers."""
        return self._made_in.get((value, example), 1) == 1

    def add_number(self, value: Any) -> Value:
        """A Python number as a value of the type that `torch.tensor` would give it."""
        kind = type(value)
        if kind is float and torch.get_default_dtype() is not self._default_dtype:
            return self.add_tensor(torch.tensor(value), ragged=False)
        graph = self._graph
        column = graph.column_of_number.get(kind)
        if column is None:
            column = graph.number_column(kind, self._type_of_number[kind])
        number = graph.add_input(column, value)
        graph.number_of_value[number] = value
        return number, column.type

    def expect_number(self, kind: type) -> None:
        """Make an input column for Python numbers of a kind, which C adds to."""
        self._graph.number_column(kind, self._type_of_number[kind])

    def add_argument(self, cell: Cell, value: Any) -> Value:
        """Anything that is given to a cell: a tensor, an array or a number."""
        if isinstance(value, torch.Tensor):
            self.check_device(value.device, cell)
            return self.add_tensor(value, ragged=False)
        type_of_number = self._type_of_number.get(type(value))
        if type_of_number is not None:
            column = self._graph.number_column(type(value), type_of_number)
            return self._graph.add_input(column, value), type_of_number
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            return self._add_array(value)
        raise ArgumentError(f"{unbatchable(cell, value)}\n  {self._graph.where()}")

    def _add_array(self, value: Any) -> Value:
        """A copy, because an array may change before the cell runs. One that is given again, and has not changed, is the value that it was."""
        known = self._value_of_array.get(id(value))
        if known is not None and known.example == self._graph.example and known.is_still(value):
            return known.value
        array = np.array(value)
        type = Type(array.shape, _name_of(array.dtype))
        column = self._graph.input_column(type, is_tensor=False, tracked=False)
        added = self._graph.add_input(column, array), type
        self._value_of_array[id(value)] = GivenArray(value, array, added, self._graph.example)
        return added

    # ---- What is known of given tensors.

    def is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a weight: a parameter, computed from parameters, or met in several examples."""
        shared = self._graph.shared_tensors
        if id(tensor) in shared or self.is_buffer(tensor) or self._derived.is_derived(tensor):
            return True
        with unwatched():
            # What is a plain tensor is no parameter, and asking whether it is takes longer than all else here.
            if type(tensor) is not torch.Tensor and isinstance(tensor, torch.nn.Parameter):
                return True
            if tensor.requires_grad and tensor.is_leaf:
                return True
            has_rows = tensor.ndim >= 2
        if not has_rows:
            return False
        found = self._example_of_tensor.get(id(tensor))
        if found is None or found[0]() is not tensor:
            self._example_of_tensor[id(tensor)] = weakref.ref(tensor), self._graph.example
            return False
        if found[1] == self._graph.example:
            return False
        shared[id(tensor)] = tensor
        return True

    def share_buffers(self, module: torch.nn.Module) -> None:
        """The buffers of a module that is recorded are weights: a recording runs with those of the module that runs it."""
        self._buffers = {id(buffer): buffer for buffer in module.buffers()}

    def is_buffer(self, value: object) -> bool:
        return id(value) in self._buffers

    @property
    def tensor_count(self) -> int:
        """How many tensors are held."""
        return len(self._tensor_of_value) + len(self._rows)

    def tensor_of(self, value: int) -> torch.Tensor | None:
        """The tensor that was given as this value."""
        return self._tensor_of_value.get(value)

    def given_at(self, value: int) -> torch.Tensor | None:
        """The tensor, or the row of one, that was given as this value."""
        tensor = self._tensor_of_value.get(value)
        if tensor is not None:
            return tensor
        rows = self._rows_around(value)
        return None if rows is None else rows[1][value - rows[0].start]

    def is_given(self, value: int) -> bool:
        """Whether a value is a tensor that was given, or a row of one."""
        return value in self._tensor_of_value or self._rows_around(value) is not None

    def _rows_around(self, value: int) -> tuple[range, torch.Tensor] | None:
        """The tensor of whose rows a value is one, with the values of all its rows."""
        place = bisect_right(self._first_rows, value) - 1
        return self._rows[place] if place >= 0 and value in self._rows[place][0] else None

    def note_array(self, tensor: torch.Tensor) -> None:
        """A program has an array that shares memory with this tensor."""
        self._in_arrays[id(tensor)] = tensor

    def is_in_array(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._in_arrays

    def note_copy(self, copy: ArrayCopy) -> None:
        """A program has an array that is a copy of a value."""
        self._copies.append(copy)

    def check_copies(self) -> None:
        """Raise if a program has written to an array, and the value that it is of has not changed."""
        for copy in self._copies:
            if copy.is_written:
                raise ArgumentError(
                    "the array of a view of a value (`x.detach().numpy()`) was written to, and the value did not change with it. Write to a "
                    "copy: `x.detach().numpy().copy()`"
                )

    def note_users_own(self, value: int) -> None:
        """This value stands for a tensor of the user's."""
        self._users_own.add(value)

    def note_handle(self, handle: LazyTensor, tensor: torch.Tensor) -> None:
        """A handle stands for a tensor of the user's, or for a view of it."""
        self._handles.append((weakref.ref(handle), tensor))

    def handles_given(self) -> list[tuple[LazyTensor, torch.Tensor]]:
        """The handles that stand for tensors of the user's."""
        return [(handle, tensor) for reference, tensor in self._handles if (handle := reference()) is not None]

    def users_own(self, value: int) -> torch.Tensor | None:
        """The user's tensor that a value stands for, if it does."""
        return self._tensor_of_value.get(value) if value in self._users_own else None

    def values_in(self, memory: Set[int | None]) -> Iterator[tuple[tuple[int, ...], bool]]:
        """The values of tensors that lie in this memory, and whether they are rows."""
        if self._values_in is None:
            self._values_in = {}
            for value, tensor in self._tensor_of_value.items():
                self._note_memory(tensor, ((value,), False))
            for rows, tensor in self._rows:
                self._note_memory(tensor, (tuple(rows), True))
        for place in memory:
            yield from self._values_in.get(place, ())

    def _note_memory(self, tensor: torch.Tensor, values: tuple[tuple[int, ...], bool]) -> None:
        assert self._values_in is not None
        if values[0]:
            self._values_in.setdefault(memory_of(tensor), []).append(values)

    # ---- Devices.

    @property
    def device(self) -> torch.device:
        """Where the batch is computed."""
        if self._device is None and self._first_cell is not None:
            self._device = self._first_cell.device
        return self._device or torch.get_default_device()

    def note_cell(self, cell: Cell) -> None:
        """A cell is called. If no tensor is given, its weights decide the device."""
        self._first_cell = self._first_cell or cell

    def check_device(self, device: torch.device, cell: Cell) -> None:
        """All tensors of a batch, and the weights of the cells that they meet, are on one device."""
        if (device, cell) in self._devices_met:
            return
        first = next(iter(self._devices_met), (cell.device or device, cell))[0]
        for other in (first, cell.device or first):
            if device != other:
                raise ArgumentError(
                    f"cell {cell.label} meets tensors on {device} and {other} in one batch. Move them to one device first: "
                    f"`tensor.to({str(other)!r})` or `model.to({str(device)!r})`\n  {self._graph.where()}"
                )
        self._devices_met.add((device, cell))


def _are_sizes(args: Sequence[Any]) -> bool:
    """Whether arguments are whole numbers, or tuples of them, which are equal only if they mean the same."""
    return all(type(size) is int for arg in args for size in (arg if type(arg) is tuple else (arg,)))


def _first_of(value: Any) -> int:
    first: int = value if isinstance(value, int) else value.start
    return first


@functools.cache
def _types_of_numbers(default: torch.dtype) -> dict[type, Type]:
    name = str(default).removeprefix("torch.")
    return {
        int: Type((), "int64"),
        float: Type((), name),
        bool: Type((), "bool"),
        complex: Type((), {"float64": "complex128"}.get(name, "complex64")),
    }


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Which numpy puts together anew each time that it is asked."""
    return dtype.name
