"""Recording one example's calls: of cells, of torch's functions, of its modules.

This is the one place where Python runs for every node of every example, so the two ways in, `Recorder.call` for cells and
`Recorder.call_function` for functions, are written for speed: types are compared by identity, one dictionary lookup finds a
known signature, and nothing is made but the handles that the user's code passes on. Everything that happens once for each
signature is elsewhere.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import is_autocast_enabled, is_grad_enabled

from foldloom.engine import Planned, Session
from foldloom.errors import ArgumentError, FoldloomError, ForeignValueError
from foldloom.execution.kernels import type_of
from foldloom.graph import ANY, Op, Type
from foldloom.lazy.calls import OPERAND, SHARED, Mark, call_of_template, leaves_of, name_of, rebuilt, static
from foldloom.lazy.cell import Cell, Settings, cell_of_module, unbatchable
from foldloom.lazy.columns import Columns, InputColumn
from foldloom.lazy.fibers import Fibers
from foldloom.lazy.handlers import (
    HANDLERS,
    IN_PLACE_OPERATORS,
    ROW_HANDLERS,
    VIEWS,
    functional_of,
    with_item,
    write_view,
)
from foldloom.lazy.inference import NeedsValuesError, Returned, inferred
from foldloom.lazy.nesting import Nesting, flatten
from foldloom.lazy.operations import kernels_of
from foldloom.lazy.rules import has_ragged_rule, ragged_returned
from foldloom.lazy.rules.modules import MODULES, is_hooked
from foldloom.lazy.scope import autocast_state, recording_paused, user_line
from foldloom.lazy.tensor import LazyTensor, Views, computed
from foldloom.lazy.weights import Weights, name_of_weight
from foldloom.recording import Recording
from foldloom.schedulers import ByDepth, Scheduler

_CONTAINERS = (tuple, list, dict)
_STATIC = frozenset((int, bool, str, type(None), torch.dtype, torch.device, type(...)))
_Parameter = torch.nn.Parameter
_NOT_PLAIN = frozenset((LazyTensor, torch.Tensor, _Parameter, tuple, list, dict, torch.Size, slice, np.ndarray))


class _Call:
    """What is needed to record one more call of a known signature."""

    __slots__ = (
        "is_ragged",
        "is_simple",
        "is_view",
        "kept",
        "op_number",
        "output_types",
        "returns",
        "returns_one",
        "returns_pair",
        "returns_tuple",
    )

    def __init__(
        self,
        op_number: int,
        output_types: tuple[Type, ...],
        returns: Nesting,
        *,
        is_view: bool = False,
        is_ragged: bool = False,
    ) -> None:
        self.op_number = op_number
        self.output_types = output_types
        self.returns = returns
        self.returns_one = returns is None
        self.returns_pair = returns == (tuple, 2, (None, None))
        self.returns_tuple = returns == (tuple, len(output_types), (None,) * len(output_types))
        self.is_view = is_view
        self.is_ragged = is_ragged
        self.is_simple = self.returns_one and not is_view and not is_ragged
        self.kept: Any = None
        """Weights that the key of this call names by identity; they must live as long as the key."""


_returned: dict[Hashable, Returned | None] = {}
"""What functions return, by signature; None where it depends on values. The same for all batches."""


class Recorder:
    """Records the calls of one batch. One recorder serves one thread.

    ``on_demand`` is called when a value is needed that is not computed yet; when it returns, `advance` has run.
    """

    def __init__(self, scheduler: Scheduler | None = None, owner: object = None, cells: Sequence[Cell] = ()) -> None:
        self._scheduler = scheduler or ByDepth()
        self._owner = owner
        self._cells = {id(cell.function): cell for cell in cells}
        self.names_cells = bool(cells)
        self._columns = Columns()
        self._grad, self._autocast = self._base_mode = is_grad_enabled(), is_autocast_enabled("cpu")
        self._calls_of_mode: dict[Any, dict[Any, Any]] = {}
        self._calls: dict[Any, Any] = self._calls_of_mode.setdefault(self._base_mode, {})
        self._devices_met: set[tuple[torch.device, Cell]] = set()
        self._input_of_tensor: dict[tuple[int, int, bool], LazyTensor] = {}
        self._given: dict[int, torch.Tensor] = {}
        self._given_numbers: dict[int, Any] = {}
        self._users_own: set[int] = set()
        self._derived: dict[int, Hashable] = {}
        self._derived_tensor: dict[tuple[Hashable, Any], torch.Tensor] = {}
        self._example_of_tensor: dict[int, int] = {}
        self._last_known: _Call | None = None
        self._wanted: list[int] = []
        self._results: list[Any] = []
        self._segments: list[tuple[int, int]] = [(0, 0)]
        self.example = 0
        self._is_over = False
        self.on_demand: Callable[[], None] | None = None
        self.session: Session | None = None
        self.fibers: Fibers | None = None
        self._kernel_of_op: dict[Op, Any] = {}
        self._weights: Weights | None = None
        self._device: torch.device | None = None
        self._type_of_number = _types_of_numbers(torch.get_default_dtype())
        self._column_of_number: dict[type, InputColumn] = {}
        self.given: Any = _Given(self)

    @property
    def grad_enabled(self) -> bool:
        return is_grad_enabled()

    @property
    def device(self) -> torch.device:
        return self._device or torch.get_default_device()

    def device_of(self, _: LazyTensor) -> torch.device:
        return self.device

    # ---- Cells.

    def call(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Record one call of a cell; handles for its results."""
        if is_grad_enabled() is not self._grad or is_autocast_enabled("cpu") is not self._autocast:
            self._change_mode()
        if settings:
            return self._call_nested(cell, args, settings)
        columns = self._columns
        operands: list[int] = []
        key: list[Any] = [cell]
        depth = columns.base_depth
        for arg in args:
            if type(arg) is LazyTensor:
                if arg._recorder is not self:
                    arg = self._add_other_input(cell, arg)
                operands.append(arg._value)
                key.append(arg._type)
                if arg._depth > depth:
                    depth = arg._depth
                continue
            column = self._column_of_number.get(type(arg))
            if column is not None:
                operands.append(columns.add_input(column, arg))
                key.append(column.type)
            elif isinstance(arg, _CONTAINERS):
                return self._call_nested(cell, self._without_done(args, operands, key[1:]), settings)
            else:
                handle = self._add_other_input(cell, arg)
                operands.append(handle._value)
                key.append(handle._type)
        frozen = tuple(key)
        known = self._calls.get(frozen)
        if known is None:
            if any(type.ragged for type in key[1:]):
                handles = [LazyTensor(self, value, type, depth) for value, type in zip(operands, key[1:], strict=True)]
                return self.call(cell, tuple([self.dense(handle) for handle in handles]), settings)
            known = self._new_cell_call(frozen, cell, frozen[1:], None, ())
        if known.returns_pair:
            depth += 1
            columns.op_of_node.append(known.op_number)
            columns.operands += operands
            columns.depth_of_node.append(depth)
            value = columns.value_count
            columns.value_count = value + 2
            first, second = known.output_types
            return LazyTensor(self, value, first, depth), LazyTensor(self, value + 1, second, depth)
        return self._add_node(known, operands, depth + 1)

    def _without_done(self, args: tuple[Any, ...], operands: list[int], types: list[Type]) -> tuple[Any, ...]:
        """The arguments, with handles for those that have been added as inputs already."""
        done = zip(args, operands, types, strict=False)
        handles = [a if type(a) is LazyTensor else LazyTensor(self, value, t, 0) for a, value, t in done]
        return (*handles, *args[len(operands) :])

    def _add_node(self, known: _Call, operands: list[int], depth: int) -> Any:
        columns = self._columns
        columns.op_of_node.append(known.op_number)
        columns.operands += operands
        columns.depth_of_node.append(depth)
        types = known.output_types
        value = columns.value_count
        columns.value_count = value + len(types)
        if known.returns_one:
            return LazyTensor(self, value, types[0], depth)
        if known.returns_pair:
            return LazyTensor(self, value, types[0], depth), LazyTensor(self, value + 1, types[1], depth)
        handles = [LazyTensor(self, number, type, depth) for number, type in enumerate(types, value)]
        return tuple(handles) if known.returns_tuple else rebuilt(known.returns, iter(handles))

    def _call_nested(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The same where arguments are nested or settings are given: the leaves are recorded as one call."""
        leaves: list[Any] = []
        nesting = flatten(args, leaves)
        frozen = _frozen(cell, settings)
        handles = [self._add_other_input(cell, leaf) for leaf in leaves]
        handles = [self.dense(handle) for handle in handles]
        types = tuple([handle._type for handle in handles])
        key = (cell, *types, nesting, frozen)
        known = self._calls.get(key)
        if known is None:
            known = self._new_cell_call(key, cell, types, nesting, frozen)
        return self._add_node_of(known, handles)

    def _add_node_of(self, known: _Call, handles: Sequence[LazyTensor]) -> Any:
        """Any node: operands and outputs may be ragged."""
        columns = self._columns
        operands: list[int] = []
        depth, rows = columns.base_depth, 0
        for handle in handles:
            if handle._type.ragged:
                operands += handle._value
                rows = len(handle._value)
                columns.lengths.append(rows)
            else:
                operands.append(handle._value)
            if handle._depth > depth:
                depth = handle._depth
        types = known.output_types
        if not any(type.ragged for type in types):
            return self._add_node(known, operands, depth + 1)
        columns.op_of_node.append(known.op_number)
        columns.operands += operands
        columns.depth_of_node.append(depth + 1)
        outputs: list[LazyTensor] = []
        for type in types:
            value = columns.value_count
            if type.ragged:
                columns.lengths.append(rows)
                columns.value_count = value + rows
                outputs.append(LazyTensor(self, range(value, value + rows), type, depth + 1))
            else:
                columns.value_count = value + 1
                outputs.append(LazyTensor(self, value, type, depth + 1))
        return rebuilt(known.returns, iter(outputs))

    def _new_cell_call(
        self, key: tuple[Any, ...], cell: Cell, types: tuple[Type, ...], nesting: Nesting, settings: Settings
    ) -> _Call:
        try:
            with recording_paused():
                signature = cell.signature(types, nesting, settings)
        except FoldloomError as error:
            raise type(error)(f"{error}\n  {self._where()}") from error.__cause__
        op = signature.op if self._mode == self._base_mode else _in_mode(signature.op)
        known = self._calls[key] = _Call(self._columns.add_op(op), op.outputs, signature.returns)
        self._device = self._device or cell.device
        return known

    # ---- Functions.

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """Record one call of a torch function with at least one value or weight among its arguments."""
        if is_grad_enabled() is not self._grad or is_autocast_enabled("cpu") is not self._autocast:
            self._change_mode()
        if not kwargs and len(args) <= 2:
            # Nine calls in ten have one or two values and nothing else.
            x, y = args[0], args[-1]
            if type(x) is type(y) is LazyTensor and x._recorder is y._recorder is self:
                single = len(args) == 1
                known = self._calls.get((function, x._type) if single else (function, x._type, y._type))
                if known is not None and known.is_simple:
                    columns = self._columns
                    depth = x._depth if x._depth > y._depth else y._depth
                    depth = (depth if depth > columns.base_depth else columns.base_depth) + 1
                    columns.op_of_node.append(known.op_number)
                    columns.operands += (x._value,) if single else (x._value, y._value)
                    columns.depth_of_node.append(depth)
                    value = columns.value_count
                    columns.value_count = value + 1
                    return LazyTensor(self, value, known.output_types[0], depth)
        handler = HANDLERS.get(function)
        if handler is not None:
            result = handler(self, args, kwargs or {})
            if result is not NotImplemented:
                return result
        key: list[Any] = [function]
        operands: list[Any] = []
        depth = self._columns.base_depth
        is_ragged = False
        if kwargs:
            # Settings by name are many and mostly plain: all of them in one go.
            kinds = tuple(map(type, kwargs.values()))
            if not _NOT_PLAIN.isdisjoint(kinds):
                return self._first_call(function, tuple(args), kwargs)[0]
            key += (tuple(kwargs), kinds, *[value or repr(value) for value in kwargs.values()])
        for arg in args:
            kind = type(arg)
            for item in arg if kind is tuple or kind is list else (arg,):
                kind = type(item)
                if kind is LazyTensor:
                    if item._recorder is not self:
                        return self._first_call(function, tuple(args), kwargs or {})[0]
                    key.append(item._type)
                    if item._type.ragged:
                        is_ragged = True
                    else:
                        operands.append(item._value)
                        if item._depth > depth:
                            depth = item._depth
                elif kind is _Parameter:
                    key.append(id(item))
                elif kind in _STATIC:
                    key.append(kind)
                    key.append(item)
                elif kind is float:
                    key.append(item or repr(item))
                else:
                    return self._first_call(function, tuple(args), kwargs or {})[0]
            if kind is not type(arg):
                key.append(type(arg))
        frozen = tuple(key)
        known = self._calls.get(frozen)
        if known is None:
            handler = ROW_HANDLERS.get(function) if is_ragged else None
            if handler is not None:
                result = handler(self, args, kwargs or {})
                if result is not NotImplemented:
                    return result
            result, known = self._first_call(function, tuple(args), kwargs or {})
            if known is not None and known.is_ragged is is_ragged:
                self._calls[frozen] = known
            return result
        if is_ragged:
            return self._call_known_ragged(known, function, tuple(args), kwargs or {})
        result = self._add_node(known, operands, depth + 1)
        if known.is_view:
            self._note_views(function, tuple(args), kwargs or {}, result)
        return result

    def _call_known_ragged(self, known: _Call, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves: list[Any] = []
        leaves_of((args, kwargs), leaves)
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        if len({len(handle._value) for handle in handles if handle._type.ragged}) > 1:
            return self._first_call(function, args, kwargs)[0]
        return self._add_node_of(known, handles)

    def _first_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, _Call | None]:
        """Any call, with arguments of any kind; and what is known about calls of its signature, if that is all there is to it."""
        if self.is_over:
            return computed(function, args, kwargs), None
        name = getattr(function, "__name__", "")
        if kwargs.get("out") is not None:
            raise ArgumentError(
                f"{name}(..., out=...) writes into a tensor that is not computed yet. Use what it returns instead\n  {self._where()}"
            )
        if function in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
            return self._call_in_place(function, args, kwargs), None
        if kwargs.get("inplace"):
            changed = self.call_function(function, args, {**kwargs, "inplace": False})
            self._replace(args[0] if args else kwargs["input"], changed)
            return changed, None
        if is_grad_enabled() is not self._grad or is_autocast_enabled("cpu") is not self._autocast:
            self._change_mode()
        leaves: list[Any] = []
        nesting = leaves_of((args, kwargs), leaves)
        leaves = self._with_tensors_lifted(function, leaves)
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        if not handles:
            return self._derive(function, nesting, leaves), None
        if any(handle._type.ragged for handle in handles):
            for_ragged = self._known_ragged(function, nesting, leaves, handles)
            if for_ragged is not None:
                return self._add_node_of(for_ragged, handles), for_ragged
            leaves = [self.dense(leaf) if type(leaf) is LazyTensor else leaf for leaf in leaves]
            handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        known = self._known(function, nesting, leaves, handles)
        if known is None:
            return self._call_with_values(function, nesting, leaves), None
        if not isinstance(known, _Call):
            return rebuilt(known.nesting, iter(known.leaves)), None
        result = self._add_node_of(known, handles)
        if known.is_view:
            self._note_views(function, args, kwargs, result)
        return result, known

    def _known(
        self, function: Any, nesting: Any, leaves: list[Any], handles: list[LazyTensor]
    ) -> _Call | Returned | None:
        """What is known of calls like this: how to record it, what it returns if that is no tensor, None if it needs values."""
        codes = tuple([_code(leaf) for leaf in leaves])
        template = (nesting, codes)
        types = tuple([handle._type for handle in handles])
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shared = tuple([self._name_of_shared(weight) for weight in weights])
        key = (function, template, types, shared)
        known = self._calls.get(key)
        if known is not None:
            return known  # type: ignore[no-any-return]
        signature = (
            function,
            template,
            types,
            tuple([type_of(weight) for weight in weights]),
            self._mode,
            torch.get_default_dtype(),
        )
        if signature not in _returned:
            try:
                _returned[signature] = inferred(call_of_template(function, template, types, weights, ()))
            except NeedsValuesError:
                _returned[signature] = None
            except Exception as error:
                error.add_note(f"while recording {name_of(function)}({', '.join(map(repr, types))}) {self._where()}")
                raise
        returned = _returned[signature]
        if returned is None or not returned.types:
            return returned
        if len(returned.types) != len(returned.leaves):
            return None
        op = Op(
            key=name_of(function), inputs=types, outputs=returned.types, settings=template, shared=shared,
            mode=None if self._mode == self._base_mode else _mode_of_op(), label=getattr(function, "__name__", ""),
        )  # fmt: skip
        known = _Call(self._columns.add_op(op), op.outputs, returned.nesting, is_view=function in VIEWS)
        known.kept = weights
        self._calls[key] = known
        return known

    def _known_ragged(self, function: Any, nesting: Any, leaves: list[Any], handles: list[LazyTensor]) -> _Call | None:
        """How to record a call with ragged values as they are; None if they must be made dense for it."""
        if not has_ragged_rule(function) or len({len(h._value) for h in handles if h._type.ragged}) > 1:
            return None
        template = (nesting, tuple([_code(leaf) for leaf in leaves]))
        types = tuple([handle._type for handle in handles])
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shared = tuple([self._name_of_shared(weight) for weight in weights])
        key = (function, template, types, shared)
        known = self._calls.get(key)
        if known is None:
            try:
                with recording_paused():
                    returned = ragged_returned(call_of_template(function, template, types, weights, ()))
            except Exception as error:
                error.add_note(f"while recording {name_of(function)}({', '.join(map(repr, types))}) {self._where()}")
                raise
            if returned is None:
                known = False
            else:
                op = Op(
                    key=name_of(function), inputs=types, outputs=returned.types, settings=template, shared=shared,
                    mode=None if self._mode == self._base_mode else _mode_of_op(), label=getattr(function, "__name__", ""),
                )  # fmt: skip
                known = _Call(self._columns.add_op(op), op.outputs, returned.nesting, is_ragged=True)
                known.kept = weights
            self._calls[key] = known
        return known or None

    def call_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one of torch's own modules, or one that was named as a cell, as one operation; NotImplemented if it is neither."""
        cell = self._cells.get(id(module))
        if cell is not None:
            return self.call(cell, args, kwargs)
        if kwargs or type(module) not in MODULES:
            return NotImplemented
        if is_grad_enabled() is not self._grad or is_autocast_enabled("cpu") is not self._autocast:
            self._change_mode()
        key: list[Any] = [module, module.training]
        operands: list[int] = []
        depth = self._columns.base_depth
        for arg in args:
            for item in arg if type(arg) is tuple else (arg,):
                if type(item) is not LazyTensor or item._recorder is not self or item._type.ragged:
                    return self._call_new_module(module, args)
                key.append(item._type)
                operands.append(item._value)
                if item._depth > depth:
                    depth = item._depth
        frozen = tuple(key)
        known = self._calls.get(frozen)
        if known is not None:
            return self._add_node(known, operands, depth + 1)
        result = self._call_new_module(module, args)
        if result is not NotImplemented:
            self._calls[frozen] = self._last_known
        return result

    def _call_new_module(self, module: torch.nn.Module, args: tuple[Any, ...]) -> Any:
        leaves: list[Any] = []
        nesting = flatten(args, leaves)
        if len(leaves) == 2 and leaves[1] is None:  # no initial state, said aloud
            return self._call_new_module(module, args[:1])
        if is_hooked(module) or not all(isinstance(leaf, (torch.Tensor, LazyTensor)) for leaf in leaves):
            return NotImplemented
        cell = cell_of_module(module)
        handles = [self._own(leaf, cell) if type(leaf) is LazyTensor else self.lift(leaf) for leaf in leaves]
        if not cell.takes([handle._type for handle in handles]):
            handles = [self.dense(handle) for handle in handles]
            if not cell.takes([handle._type for handle in handles]):
                return NotImplemented
        types = tuple([handle._type for handle in handles])
        key = (cell, *types, nesting, ())
        known = self._calls.get(key)
        if known is None:
            known = self._new_cell_call(key, cell, types, nesting, ())
        self._last_known = known
        return self._add_node_of(known, handles)

    def _call_with_values(self, function: Any, nesting: Any, leaves: list[Any]) -> Any:
        """Run a function whose result depends on values, on the values; what it returns is given."""
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        values = iter(self.values_of(handles))
        arguments = [next(values) if type(leaf) is LazyTensor else leaf for leaf in leaves]
        args, kwargs = rebuilt(nesting, iter(arguments))
        with recording_paused():
            result = function(*args, **kwargs)
        found: list[Any] = []
        shape = leaves_of(result, found)
        return rebuilt(
            shape, iter([self.lift(item, ragged=False) if isinstance(item, torch.Tensor) else item for item in found])
        )

    # ---- Tensors that are given.

    def lift(self, tensor: torch.Tensor, *, ragged: bool | None = None) -> LazyTensor:
        """A tensor as a value of the example that is being recorded."""
        if ragged is None:
            ragged = tensor.ndim >= 2 or (tensor.ndim == 1 and not tensor.is_floating_point())
        version = -1 if tensor.is_inference() else tensor._version
        known = self._input_of_tensor.get((id(tensor), version, ragged))
        if known is None:
            type = type_of(tensor)
            self._device = self._device or tensor.device
            if ragged:
                column = self._columns.input_column(
                    Type((ANY, *type.shape[1:]), type.dtype), is_tensor=True, tracked=tensor.requires_grad
                )
                column.versions.append(version)
                rows = self._columns.add_ragged_input(column, tensor)
                known = LazyTensor(self, rows, column.type, 0)
            else:
                column = self._columns.input_column(type, is_tensor=True, tracked=tensor.requires_grad)
                column.versions.append(version)
                known = LazyTensor(self, self._columns.add_input(column, tensor), type, 0)
                self._given[known._value] = tensor
            self._input_of_tensor[id(tensor), version, ragged] = known
        return known

    def _with_tensors_lifted(self, function: Any, leaves: list[Any]) -> list[Any]:
        """Tensors that are the same for everybody stay; others become values of this example."""
        lengths = {len(leaf._value) for leaf in leaves if type(leaf) is LazyTensor and leaf._type.ragged}
        result: list[Any] = []
        for leaf in leaves:
            if type(leaf) is LazyTensor:
                rows = leaf._recorder is self.given and self._has_rows(leaf._value, function, lengths)
                result.append(self._own(leaf, None, ragged=rows))
            elif isinstance(leaf, torch.Tensor):
                shared = self._is_shared(leaf)
                result.append(leaf if shared else self.lift(leaf, ragged=self._has_rows(leaf, function, lengths)))
            elif isinstance(leaf, np.ndarray):
                result.append(self.lift(torch.from_numpy(leaf), ragged=False))
            else:
                result.append(leaf)
        return result

    @staticmethod
    def _has_rows(tensor: torch.Tensor, function: Any, lengths: set[int]) -> bool:
        """Whether a given tensor is best taken as ragged: beside others that are, or for a function that goes row by row."""
        if not tensor.ndim:
            return False
        return len(tensor) in lengths or (function in LOOKUPS and tensor.ndim == 1)

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a weight: a parameter, made of parameters, or met in several examples."""
        if type(tensor) is _Parameter or isinstance(tensor, _Parameter) or id(tensor) in self._derived:
            return True
        if tensor.requires_grad and tensor.is_leaf:
            return True
        if tensor.ndim < 2:
            return False
        return self._example_of_tensor.setdefault(id(tensor), self.example) != self.example

    def own(self, handle: LazyTensor) -> LazyTensor:
        return self._own(handle, None, ragged=False)

    def is_derived(self, value: object) -> bool:
        """Whether a tensor was made of weights alone."""
        return id(value) in self._derived

    def _name_of_shared(self, tensor: torch.Tensor) -> Hashable:
        return self._derived.get(id(tensor)) or name_of_weight(tensor)

    def _derive(self, function: Any, nesting: Any, leaves: list[Any]) -> Any:
        """A function of weights alone is computed once, for everybody."""
        sources = tuple([self._name_of_shared(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)])
        derivation = (name_of(function), (nesting, tuple([_code(leaf) for leaf in leaves])), sources)
        key = (derivation, self._mode)
        known = self._derived_tensor.get(key)
        if known is None:
            args, kwargs = rebuilt(nesting, iter(leaves))
            with recording_paused():
                known = function(*args, **kwargs)
            if not isinstance(known, torch.Tensor):
                return known
            self._derived_tensor[key] = known
            self._derived[id(known)] = derivation
        return known

    def constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> LazyTensor:
        """What a function like `torch.zeros` returns: made once, for everybody."""
        leaves: list[Any] = []
        nesting = leaves_of((tuple(args), kwargs), leaves)
        key = (function, nesting, tuple([_code(leaf) for leaf in leaves]), torch.get_default_dtype())
        known = self._calls.get(key)
        if known is None:
            with recording_paused():
                known = self._calls[key] = function(*args, **kwargs)
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
                column = self._columns.input_column(number_type, is_tensor=False, tracked=False)
                self._column_of_number[type(value)] = column
            return LazyTensor(self, self._columns.add_input(column, value), number_type, 0)
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            # A copy, because the array may change before the cell runs.
            array = np.array(value)
            array_type = Type(array.shape, array.dtype.name)
            column = self._columns.input_column(array_type, is_tensor=False, tracked=False)
            return LazyTensor(self, self._columns.add_input(column, array), array_type, 0)
        raise ArgumentError(f"{unbatchable(cell, value)}\n  {self._where()}")

    def number(self, value: Any) -> LazyTensor:
        """A Python number as a value, of the type that `torch.tensor` would give it."""
        kind = type(value)
        column = self._column_of_number.get(kind)
        if column is None:
            column = self._column_of_number[kind] = self._columns.input_column(
                self._type_of_number[kind], is_tensor=False, tracked=False
            )
        number = self._columns.add_input(column, value)
        self._given_numbers[number] = value
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
            if not lifted._type.ragged:
                self._users_own.add(lifted._value)
            handle._recorder, handle._value, handle._type = self, lifted._value, lifted._type
            return handle
        if recorder.is_over and recorder.session is not None:
            return self.lift(recorder.value_of(handle), ragged=handle._type.ragged)
        raise self._foreign(cell, handle)

    def output(self, handle: LazyTensor) -> LazyTensor:
        """A value that is returned from an example."""
        return self.dense(self._own(handle, None, ragged=False))

    # ---- Rows.

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        """The rows of a value that has some: free if it is ragged, one operation otherwise."""
        if handle._type.ragged:
            row, depth = handle._type.row, handle._depth
            return [LazyTensor(self, value, row, depth) for value in handle._value]
        return list(self.call_function(torch.unbind, (handle,), None))

    def ragged(self, rows: Sequence[LazyTensor], type: Type) -> LazyTensor:
        depth = max([row._depth for row in rows], default=0)
        return LazyTensor(self, [row._value for row in rows], Type((ANY, *type.shape), type.dtype), depth)

    def dense(self, handle: LazyTensor) -> LazyTensor:
        """A ragged value as one of a fixed shape."""
        if not handle._type.ragged:
            return handle
        if not handle._value:
            return self.constant(torch.zeros, ((0, *handle._type.row.shape),), {"dtype": handle.dtype})
        rows = [LazyTensor(self, value, handle._type.row, handle._depth) for value in handle._value]
        leaves: list[Any] = []
        nesting = leaves_of(((rows,), {}), leaves)
        known = self._known(torch.stack, nesting, leaves, rows)
        return self._add_node_of(known, rows)  # type: ignore[arg-type, no-any-return]

    # ---- Changes in place.

    def _note_views(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        base = args[0]
        group = Views(base, function, args[1:], kwargs)
        if type(result) is LazyTensor:
            result._source = (group, None)
        else:
            for number, view in enumerate(result):
                view._source = (group, number)
        try:
            base._views.append(weakref.ref(group))
        except AttributeError:
            base._views = [weakref.ref(group)]

    def _call_in_place(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0] if args else kwargs.get("input")
        if type(target) is not LazyTensor or self._was_given(target):
            raise ArgumentError(
                f"a tensor that was made outside is changed in place (`{function.__name__}`), by which a value that is not computed yet "
                "would leave the batch. Change a copy (`x = x.clone()`), make the tensor inside the function given to fl.batch "
                f"(`torch.zeros`), or write `x = x + 1` instead of `x += 1`\n  {self._where()}"
            )
        result = self.call_function(functional_of(function), args, kwargs)
        if result._type is not target._type and result.shape == target.shape:
            if not torch.can_cast(result.dtype, target.dtype):
                raise RuntimeError(
                    f"result type {result.dtype} can't be cast to the desired output type {target.dtype}"
                )
            result = result.to(target.dtype)
        self._replace(target, result)
        return target

    def _was_given(self, target: LazyTensor) -> bool:
        """Whether a change in place would have to reach a tensor of the user's."""
        return target._recorder is self.given or (not target._type.ragged and target._value in self._users_own)

    def set_item(self, target: LazyTensor, index: Any, value: Any) -> None:
        """``target[index] = value``."""
        if self._was_given(target):
            self._call_in_place(torch.Tensor.__setitem__, (target, index, value), {})
        if (
            target._type.ragged
            and type(index) is int
            and type(value) is LazyTensor
            and value._type is target._type.row
            and value._recorder is self
        ):
            rows = list(target._value)
            rows[index] = value._value
            self._replace(target, LazyTensor(self, rows, target._type, max(target._depth, value._depth)))
            return
        self._replace(target, self.call_function(with_item, (target, index, value), None))

    def _replace(self, target: LazyTensor, result: LazyTensor) -> None:
        """From now on the target stands for the result, and so does every view of it for a view of the result."""
        source = getattr(target, "_source", None)
        if source is not None:
            group, index = source
            if result.shape != target.shape:
                raise RuntimeError(
                    f"a view of shape {tuple(target.shape)} cannot be changed in place to {tuple(result.shape)}"
                )
            written = (group.base, result, name_of(group.function), index, group.args, group.kwargs)
            self._replace(group.base, self.call_function(write_view, written, None))
            return
        target._value, target._type, target._depth = result._value, result._type, result._depth
        self._refresh_views(target)

    def _refresh_views(self, base: LazyTensor) -> None:
        """Let every view of a changed value that is still in use stand for the same part of what it has become."""
        kept = []
        for reference in getattr(base, "_views", ()):
            group = reference()
            if group is None:
                continue
            kept.append(reference)
            alive = group.in_use()
            fresh = self.call_function(group.function, (base, *group.args), group.kwargs)
            for view, index in alive:
                one = fresh if index is None else fresh[index]
                view._value, view._type, view._depth = one._value, one._type, one._depth
                self._refresh_views(view)
        base._views = kept

    # ---- Values.

    @property
    def is_over(self) -> bool:
        """Whether what handles stand for can be computed at once."""
        return self._is_over

    def number_of(self, handle: LazyTensor) -> Any:
        if not handle._type.ragged and handle._value in self._given_numbers:
            return self._given_numbers[handle._value]
        if handle.numel() != 1:
            raise RuntimeError(f"a Tensor with {handle.numel()} elements cannot be converted to Scalar")
        return self.plain_value_of(handle).item()

    def plain_value_of(self, handle: LazyTensor) -> torch.Tensor:
        """The value, without its gradient."""
        if handle._type.ragged:
            rows = [self.plain_value_of(row) for row in self.rows_of(handle)]
            with recording_paused():
                return torch.stack(rows) if rows else torch.empty(handle.shape, dtype=handle.dtype)
        given = self._given.get(handle._value)
        if given is not None:
            return given.detach()
        if handle._value in self._given_numbers:
            with recording_paused():
                return torch.tensor(self._given_numbers[handle._value], dtype=handle.dtype)
        if handle._value >= self._columns.first_value:
            self._demand()
        assert self.session is not None
        with recording_paused():
            return self.session.row(handle._value)

    def value_of(self, handle: LazyTensor) -> torch.Tensor:
        return self.values_of([handle])[0]

    def values_of(self, handles: Sequence[LazyTensor]) -> list[torch.Tensor]:
        """The values, with their gradients."""
        numbers = [n for h in handles for n in (h._value if h._type.ragged else (h._value,))]
        missing = [number for number in numbers if number not in self._given]
        if missing:
            self._wanted += missing
            self._demand()
        with recording_paused():
            return [
                torch.stack([self._given[value] for value in handle._value])
                if handle._type.ragged and len(handle._value)
                else torch.empty(handle.shape, dtype=handle.dtype)
                if handle._type.ragged
                else self._given[handle._value]
                for handle in handles
            ]

    def backward(self, handle: LazyTensor, args: Any, kwargs: Any) -> None:
        if not self.is_over:
            raise ArgumentError(
                "`backward` inside the function given to fl.batch, or inside `with fl.batching()`, would run before everything is "
                f"recorded. Return the loss and call `backward` on what fl.batch returns\n  {self._where()}"
            )
        self.value_of(handle).backward(*args, **kwargs)

    def _demand(self) -> None:
        if self.on_demand is None:
            self.advance()
            return
        example = self.example
        self.on_demand()
        self.begin(example)

    def begin(self, example: int) -> None:
        """What is recorded next belongs to this example."""
        self.example = example
        self._segments.append((example, len(self._columns.op_of_node)))

    def advance(self) -> None:
        """Compute everything that has been recorded."""
        wanted, self._wanted = list(dict.fromkeys(self._wanted)), []
        self._columns.outputs = wanted
        planned, blocks = self._run_part(())
        if wanted:
            with recording_paused():
                rows = [block.unbind(0) for block in blocks]
            places = zip(planned.plan.block_of_output.tolist(), planned.plan.row_of_output.tolist(), strict=True)
            self._given.update(zip(wanted, [rows[block][row] for block, row in places], strict=True))

    def _run_part(self, results: Sequence[Any]) -> tuple[Planned, tuple[torch.Tensor, ...]]:
        if self.session is None:
            self.session = Session(self._scheduler, self.device)
        self._columns.nodes_of_example = self._count_segments()
        part, earlier = self._columns.take_part(results, self.session.earlier)
        self._column_of_number, self._input_of_tensor = {}, {}
        with recording_paused():
            return self._run(part, earlier)

    def _run(self, part: Recording, earlier: Any) -> tuple[Planned, tuple[torch.Tensor, ...]]:
        assert self.session is not None
        if self._weights is None:
            self._weights = Weights(self._owner)
        for (derivation, _), tensor in self._derived_tensor.items():
            self._weights.remember(derivation, tensor)
        new = [op for op in part.graph.ops if not op.is_input and op not in self._kernel_of_op]
        self._kernel_of_op.update(zip(new, kernels_of(new, self._owner, self._weights), strict=True))
        kernels = [None if op.is_input else self._kernel_of_op[op] for op in part.graph.ops]
        return self.session.run(part, earlier, kernels)

    def _count_segments(self) -> list[int]:
        """Nodes of each example. Where examples took turns within one part, all count as the first one's."""
        segments, total = self._segments, len(self._columns.op_of_node)
        self._segments = [(self.example, 0)]
        count = len(self._results) or self.example + 1
        if count == 1:
            return [total]
        counts = [0] * count
        ends = [*[start for _, start in segments[1:]], total]
        filled = [(example, end - start) for (example, start), end in zip(segments, ends, strict=True) if end > start]
        examples = [example for example, _ in filled]
        in_turn = examples == sorted(set(examples))
        for example, size in filled:
            counts[example if in_turn else 0] += size
        return counts

    # ---- Ends.

    def end_example(self, outputs: Sequence[LazyTensor], result: Any) -> None:
        """What has been called since the last example is one example, and this is its result."""
        self.add_result(outputs, result)
        self.begin(len(self._results))

    def add_result(self, outputs: Sequence[LazyTensor], result: Any) -> None:
        """The result of the next example, without the outputs that belong in it."""
        self._columns.outputs += [self._own(output, None)._value for output in outputs]
        self._results.append(result)

    def close(self, cells: dict[str, str] | None = None, weights: dict[str, str] | None = None) -> Recording:
        """The recording, its cells and weights under other names if there are any for them."""
        self._columns.nodes_of_example = self._count_segments()
        return self._columns.close(self._results, cells, weights)

    def finish(self) -> tuple[Planned, tuple[torch.Tensor, ...]]:
        """Run the last part of a batch that took several."""
        return self._run_part(self._results)

    def end(self) -> None:
        """Nothing more is recorded. What is computed lives as long as somebody holds a handle."""
        self.on_demand = self.fibers = None
        self._is_over = True
        self._input_of_tensor, self._calls, self._calls_of_mode = {}, {}, {}

    # ---- Modes and errors.

    @property
    def _mode(self) -> tuple[bool, bool]:
        return self._grad, self._autocast

    def _change_mode(self) -> None:
        """Calls in another mode are other ops."""
        self._grad, self._autocast = is_grad_enabled(), is_autocast_enabled("cpu")
        key = (self._grad, self._autocast, autocast_state()) if self._autocast else (self._grad, False)
        self._calls = self._calls_of_mode.setdefault(key, {})

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

    def _foreign(self, cell: Cell | None, value: LazyTensor) -> ForeignValueError:
        doing = "returned from this example or used in it" if cell is None else f"given to cell {cell.label}"
        return ForeignValueError(
            f"a value ({value._type}) that belongs to another fl.batch, or to one that is over, was {doing}. Values live "
            "as long as the call that recorded them: return them from the function given to fl.batch, and pass on what "
            f"fl.batch returns\n  {self._where()}"
        )

    def _where(self) -> str:
        return f"in example {self.example}, at {user_line()}"


LOOKUPS = frozenset((torch.nn.functional.embedding, torch.embedding))
"""Functions that look up every place of a vector."""


class _Given:
    """Stands for the recorder of handles whose tensor is known: asked for values, it has them."""

    is_over = False

    def __init__(self, recorder: Recorder) -> None:
        self.grad_enabled = True
        self._recorder: Any = weakref.proxy(recorder)

    def device_of(self, handle: LazyTensor) -> torch.device:
        return handle._value.device  # type: ignore[no-any-return]

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


def _code(leaf: Any) -> Hashable | Mark:
    if type(leaf) is LazyTensor:
        return OPERAND
    return SHARED if isinstance(leaf, torch.Tensor) else static(leaf)


def _mode_of_op() -> Hashable:
    return is_grad_enabled(), autocast_state()


def _in_mode(op: Op) -> Op:
    from dataclasses import replace

    return replace(op, mode=_mode_of_op())


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
