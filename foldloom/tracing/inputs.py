"""What is given to a recording: tensors, numbers, weights.

A tensor of the user's is either a weight, the same for everybody, which kernels are given as it is; or a value of one example, which
becomes an input of the graph when it is first used.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch

from foldloom.errors import ArgumentError, ForeignValueError
from foldloom.execution.kernels import type_of
from foldloom.graph import ANY, Type
from foldloom.tracing.cells.core import Cell, unbatchable
from foldloom.tracing.columns import Columns, InputColumn
from foldloom.tracing.functions.calls import OPERAND, SHARED, Mark, leaves_of, static
from foldloom.tracing.lazy_tensor import LazyTensor
from foldloom.tracing.mutation.guards import Unchanged
from foldloom.tracing.scope import recording_paused, unwatched, user_line
from foldloom.tracing.weights import name_of_weight


class Inputs(Columns):
    """Columns that are given tensors and numbers."""

    __slots__ = ("_column_of_number", "_number_of_input", "unchanged")

    def __init__(self) -> None:
        super().__init__()
        self.given: Any = _Given(self)
        self._device: torch.device | None = None
        self._first_cell: Cell | None = None
        self._devices_met: set[tuple[torch.device, Cell]] = set()
        self._input_of_tensor: dict[tuple[int, int, bool], tuple[LazyTensor, int]] = {}
        """Inputs that are tensors, and the example that gave each first."""
        self.unchanged = Unchanged()
        self._column_of_number: dict[type, InputColumn] = {}
        self._default_dtype = torch.get_default_dtype()
        self._type_of_number = _types_of_numbers(self._default_dtype)
        self._constants: dict[Hashable, torch.Tensor] = {}
        self._value_of_input: dict[int, torch.Tensor] = {}
        self._number_of_input: dict[int, Any] = {}
        self.users_own: set[int] = set()
        """Values that are tensors of the user's: what changes them in place would have to change those."""
        self._derivation: dict[int, tuple[Hashable, torch.Tensor, int]] = {}
        """How each derived weight is made, by its identity; with the weight, and its version when it was made."""
        self._derived: dict[Hashable, torch.Tensor] = {}
        self._example_of_tensor: dict[int, int] = {}

    def forget_inputs(self) -> None:
        """What comes next gives its tensors anew, and can be taken apart from what was before."""
        self._input_of_tensor, self._constants, self._example_of_tensor = {}, {}, {}

    @property
    def device(self) -> torch.device:
        if self._device is None and self._first_cell is not None:
            self._device = self._first_cell.device
        return self._device or torch.get_default_device()

    def device_of(self, _: LazyTensor) -> torch.device:
        return self.device

    def lift(self, tensor: torch.Tensor, *, ragged: bool | None = None) -> LazyTensor:
        """A tensor as a value of the example that is being recorded."""
        with unwatched():
            if ragged is None:
                ragged = tensor.ndim >= 2 or (tensor.ndim == 1 and not tensor.is_floating_point())
            # The memory of an array may change without a trace before it is read.
            is_array = not tensor.requires_grad and not tensor.untyped_storage().resizable()
        if is_array:
            tensor = tensor.clone()
        with unwatched():
            return self._lift(tensor, ragged)

    def _lift(self, tensor: torch.Tensor, ragged: bool) -> LazyTensor:
        version = -1 if tensor.is_inference() else tensor._version
        found = self._input_of_tensor.get((id(tensor), version, ragged))
        if found is not None:
            known, example = found
            if example != self.example:
                self.unchanged.note_tensors((tensor,))
            return known
        type = type_of(tensor)
        self._device = self._device or tensor.device
        if ragged:
            type = Type((ANY, *type.shape[1:]), type.dtype)
        column = self.input_column(type, is_tensor=True, tracked=tensor.requires_grad)
        column.versions.append(version)
        if ragged:
            known = LazyTensor(self, self.add_ragged_input(column, tensor), type, 0)
        else:
            known = LazyTensor(self, self.add_input(column, tensor), type, 0)
            self._value_of_input[known._value] = tensor
        self._input_of_tensor[id(tensor), version, ragged] = known, self.example
        return known

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a weight: a parameter, made of parameters, or met in several examples."""
        if isinstance(tensor, torch.nn.Parameter) or self.is_derived(tensor):
            return True
        if tensor.requires_grad and tensor.is_leaf:
            return True
        if tensor.ndim < 2:
            return False
        return self._example_of_tensor.setdefault(id(tensor), self.example) != self.example

    def tensor_given_as(self, handle: LazyTensor) -> torch.Tensor | None:
        """The user's tensor that a handle stands for, if it is one."""
        is_given = not handle._type.ragged and handle._value in self.users_own
        return self._value_of_input.get(handle._value) if is_given else None

    def own(self, handle: LazyTensor) -> LazyTensor:
        return self._own(handle, None, ragged=False)

    def is_derived(self, value: object) -> bool:
        """Whether a tensor was made of weights alone, and has not been changed since."""
        known = self._derivation.get(id(value))
        return known is not None and known[1]._version == known[2]

    def _name_of_shared(self, tensor: torch.Tensor) -> Hashable:
        return self._derivation[id(tensor)][0] if self.is_derived(tensor) else name_of_weight(tensor)

    def constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> LazyTensor:
        """What a function like `torch.zeros` returns: made once, for everybody."""
        leaves: list[Any] = []
        nesting = leaves_of((tuple(args), kwargs), leaves)
        key = (function, nesting, tuple([code_of(leaf) for leaf in leaves]), torch.get_default_dtype())
        known = self._constants.get(key)
        if known is None:
            with recording_paused():
                known = self._constants[key] = function(*args, **kwargs)
        lazy = self.lift(known, ragged=False)
        # A handle of its own: it may be changed in place.
        return LazyTensor(self, lazy._value, lazy._type, 0)

    def _add_other_input(self, cell: Cell, value: Any) -> LazyTensor:
        """Anything that is given to a cell: tensors, arrays, numbers."""
        if type(value) is LazyTensor:
            if value._recorder is self.given:
                self._check_device(value.device, cell)
            return self._own(value, cell, ragged=False)
        if isinstance(value, torch.Tensor):
            self._check_device(value.device, cell)
            return self.lift(value, ragged=False)
        number_type = self._type_of_number.get(type(value))
        if number_type is not None:
            column = self._column_of_number.get(type(value))
            if column is None:
                column = self.input_column(number_type, is_tensor=False, tracked=False)
                self._column_of_number[type(value)] = column
            return LazyTensor(self, self.add_input(column, value), number_type, 0)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            # A copy, because the array may change before the cell runs.
            array = np.array(value)
            array_type = Type(array.shape, array.dtype.name)
            column = self.input_column(array_type, is_tensor=False, tracked=False)
            return LazyTensor(self, self.add_input(column, array), array_type, 0)
        raise ArgumentError(f"{unbatchable(cell, value)}\n  {self.where()}")

    def number(self, value: Any) -> LazyTensor:
        """A Python number as a value, of the type that `torch.tensor` would give it."""
        kind = type(value)
        if kind is float and torch.get_default_dtype() is not self._default_dtype:
            return self.lift(torch.tensor(value), ragged=False)
        column = self._column_of_number.get(kind)
        if column is None:
            column = self._column_of_number[kind] = self.input_column(
                self._type_of_number[kind], is_tensor=False, tracked=False
            )
        number = self.add_input(column, value)
        self._number_of_input[number] = value
        return LazyTensor(self, number, column.type, 0)

    def give(self, tensor: torch.Tensor) -> LazyTensor:
        """A handle for a tensor that an example consists of. It becomes an input of the graph when it is used."""
        return LazyTensor(self.given, tensor, type_of(tensor), 0)

    def _own(self, handle: LazyTensor, cell: Cell | None, *, ragged: bool | None = None) -> LazyTensor:
        """The handle itself, if it belongs to this recording; if it was given, or computed by one that is over, an input."""
        recorder = handle._recorder
        if recorder is self:
            return handle
        if recorder is self.given:
            lifted = self.lift(handle._value, ragged=ragged)
            if lifted._type.ragged:
                handle._source = (self.given, handle._value)
            else:
                self.users_own.add(lifted._value)
            handle._recorder, handle._value, handle._type = self, lifted._value, lifted._type
            return handle
        if recorder.is_over and recorder.session is not None:
            return self.lift(recorder.value_of(handle), ragged=handle._type.ragged)
        raise self._foreign(cell, handle)

    def _check_device(self, device: torch.device, cell: Cell) -> None:
        """All tensors of a batch, and the weights of the cells that they meet, are on one device."""
        if (device, cell) in self._devices_met:
            return
        first = next(iter(self._devices_met), (cell.device or device, cell))[0]
        for other in (first, cell.device or first):
            if device != other:
                raise ArgumentError(
                    f"cell {cell.label} meets tensors on {device} and {other} in one batch. Move them to one device first: "
                    f"`tensor.to({str(other)!r})` or `model.to({str(device)!r})`\n  {self.where()}"
                )
        self._devices_met.add((device, cell))

    def _foreign(self, cell: Cell | None, value: LazyTensor) -> ForeignValueError:
        doing = "returned from this example or used in it" if cell is None else f"given to cell {cell.label}"
        return ForeignValueError(
            f"a value ({value._type}) that belongs to another fl.batch, or to one that is over, was {doing}. Values live "
            "as long as the call that recorded them: return them from the function given to fl.batch, and pass on what "
            f"fl.batch returns\n  {self.where()}"
        )

    def where(self) -> str:
        return f"in example {self.example}, at {user_line()}"


def code_of(leaf: Any) -> Hashable | Mark:
    if type(leaf) is LazyTensor:
        return OPERAND
    return SHARED if isinstance(leaf, torch.Tensor) else static(leaf)


class _Given:
    """Stands for the recorder of handles whose tensor is known: asked for values, it has them."""

    is_over = False

    def __init__(self, recorder: Inputs) -> None:
        self.grad_enabled = True
        self._recorder: Any = weakref.proxy(recorder)

    def device_of(self, handle: LazyTensor) -> torch.device:
        return handle._value.device  # type: ignore[no-any-return]

    def tensor_given_as(self, handle: LazyTensor) -> torch.Tensor:
        return handle._value  # type: ignore[no-any-return]

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        return [self._recorder.give(row) for row in handle._value]

    def number_of(self, handle: LazyTensor) -> Any:
        return handle._value.item()

    def plain_value_of(self, handle: LazyTensor) -> torch.Tensor:
        return handle._value.detach()  # type: ignore[no-any-return]

    def value_of(self, handle: LazyTensor) -> torch.Tensor:
        return handle._value  # type: ignore[no-any-return]

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        return self._recorder.call_function(function, args, kwargs)

    def set_item(self, handle: LazyTensor, index: Any, value: Any) -> None:
        self._recorder.own(handle)
        self._recorder.set_item(handle, index, value)

    def backward(self, handle: LazyTensor, args: Any, kwargs: Any) -> None:
        self._recorder.backward(handle, args, kwargs)


@functools.cache
def _types_of_numbers(default: torch.dtype) -> dict[type, Type]:
    name = str(default).removeprefix("torch.")
    return {
        int: Type((), "int64"),
        float: Type((), name),
        bool: Type((), "bool"),
        complex: Type((), {"float64": "complex128"}.get(name, "complex64")),
    }
