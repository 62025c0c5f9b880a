"""Recording one example's calls: of cells, of torch's functions, of its modules.

What is recorded is found in two steps. A key is made of what is called, the types of its operands and its settings; types are compared
by identity, so one lookup in `_calls` finds a known signature. Everything that happens once for each signature is elsewhere.
`_fast_path.c` makes the same keys: of the many calls whose signature is known, few come by here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import is_grad_enabled
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled

from foldloom.errors import ArgumentError
from foldloom.graph import Type
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing import fast_path
from foldloom.tracing.cells.core import Cell, cell_of_module
from foldloom.tracing.cells.nesting import flatten
from foldloom.tracing.columns import InputColumn
from foldloom.tracing.functions.calls import leaves_of, rebuilt
from foldloom.tracing.functions.special import HANDLERS, IN_PLACE_OPERATORS, ROW_HANDLERS
from foldloom.tracing.lazy_tensor import LazyTensor, Views, computed
from foldloom.tracing.mutation.guards import is_plain
from foldloom.tracing.mutation.in_place import call_in_place, replace, set_item
from foldloom.tracing.mutation.views import MAY_COPY, id_of_memory, is_strided, note_views, row_handles
from foldloom.tracing.nodes import TYPE_OF_STACK, Nodes
from foldloom.tracing.rules.base import forms
from foldloom.tracing.rules.modules import MODULES, is_hooked
from foldloom.tracing.scope import recording_paused, scope
from foldloom.tracing.signatures import KnownCall, frozen_settings

_CONTAINERS = (tuple, list, dict)
_STATIC = frozenset((int, bool, str, type(None), torch.dtype, torch.device, type(...)))
_Parameter = torch.nn.Parameter
_NOT_PLAIN = frozenset((LazyTensor, torch.Tensor, _Parameter, tuple, list, dict, torch.Size, slice, np.ndarray))


class Recorder(Nodes):
    """Records the calls of one batch. One recorder serves one thread.

    ``on_demand`` is called when a value is needed that is not computed yet; when it returns, `advance` has run.
    """

    __slots__ = ("_cells",)

    def __init__(self, scheduler: Scheduler | None = None, owner: object = None, cells: Sequence[Cell] = ()) -> None:
        super().__init__(scheduler, owner)
        self._cells = {id(cell.function): cell for cell in cells}
        self.names_cells = bool(cells)

    @property
    def grad_enabled(self) -> bool:
        return is_grad_enabled()

    # ---- Cells.

    @fast_path.cell
    def call(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Record one call of a cell; handles for its results."""
        if is_grad_enabled() is not self._grad or is_any_autocast_enabled() or self._autocast:
            self._change_mode()
        if settings:
            return self._call_nested(cell, args, settings)
        operands: list[int] = []
        key: list[Any] = [cell]
        depth = 0
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
                operands.append(self.add_input(column, arg))
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
        return self._add_node(known, operands, depth + 1)

    def _without_done(self, args: tuple[Any, ...], operands: list[int], types: list[Type]) -> tuple[Any, ...]:
        """The arguments, with handles for those that have been added as inputs already."""
        done = zip(args, operands, types, strict=False)
        handles = [a if type(a) is LazyTensor else LazyTensor(self, value, t, 0) for a, value, t in done]
        return (*handles, *args[len(operands) :])

    def _call_nested(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The same where arguments are nested or settings are given: the leaves are recorded as one call."""
        leaves: list[Any] = []
        nesting = flatten(args, leaves)
        frozen = frozen_settings(cell, settings)
        handles = [self._add_other_input(cell, leaf) for leaf in leaves]
        handles = [self.dense(handle) for handle in handles]
        types = tuple([handle._type for handle in handles])
        key = (cell, *types, nesting, frozen)
        known = self._calls.get(key)
        if known is None:
            known = self._new_cell_call(key, cell, types, nesting, frozen)
        return self._add_node_of(known, handles)

    # ---- Functions.

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """Record one call of a torch function with at least one value or weight among its arguments."""
        if is_grad_enabled() is not self._grad or is_any_autocast_enabled() or self._autocast:
            self._change_mode()
        if self._is_over:
            return computed(function, tuple(args), kwargs or {})
        handler = HANDLERS.get(function)
        if handler is not None:
            result = handler(self, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return self._call_by_key(function, args, kwargs or {})

    def _call_by_key(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The same for any arguments: those that are values, weights or plain settings make a key, under which a call like this
        may be known. The key says everything that tells two calls apart, lists and tuples by their kind and length."""
        key: list[Any] = [function]
        operands: list[Any] = []
        depth = 0
        is_ragged = False
        if kwargs:
            # Settings by name are many and mostly plain: all of them in one go.
            kinds = tuple(map(type, kwargs.values()))
            if not _NOT_PLAIN.isdisjoint(kinds):
                return self._first_call(function, tuple(args), kwargs)[0]
            key += (tuple(kwargs), kinds)
            # Kinds tell 0 from False; only a float has two zeros, which are equal.
            key += kwargs.values() if float not in kinds else [repr(v) if v == 0.0 else v for v in kwargs.values()]
        for arg in args:
            kind = type(arg)
            if kind is tuple or kind is list:
                items = arg
                key += (kind, len(arg))
            else:
                items = (arg,)
            for item in items:
                kind = type(item)
                if kind is LazyTensor:
                    if item._recorder is not self:
                        return self._first_call(function, tuple(args), kwargs)[0]
                    key.append(item._type)
                    if item._type.ragged:
                        is_ragged = True
                    else:
                        operands.append(item._value)
                        if item._depth > depth:
                            depth = item._depth
                elif kind is _Parameter:
                    key += (kind, id(item))
                elif kind in _STATIC:
                    key += (kind, item)
                elif kind is float:
                    key += (kind, item or repr(item))
                else:
                    return self._first_call(function, tuple(args), kwargs)[0]
        frozen = tuple(key)
        known = self._calls.get(frozen)
        if known is None:
            return self._call_unknown(frozen, function, tuple(args), kwargs, is_ragged)
        if is_ragged:
            return self._call_known_ragged(known, function, tuple(args), kwargs)
        if known.shares_with is None:
            return self._add_node(known, operands, depth + 1)
        if known.is_operand or known.shares_with or type(args[0]) is not LazyTensor:
            return self._call_known_view(known, function, tuple(args), kwargs)
        result = self._add_node(known, operands, depth + 1)
        note_views(function, tuple(args), kwargs, result, args[0])
        return result

    def _call_unknown(
        self, key: tuple[Any, ...], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_ragged: bool
    ) -> Any:
        """The first call under a key. What it teaches is kept, if the key says all that there is to it."""
        handler = ROW_HANDLERS.get(function) if is_ragged else None
        if handler is not None:
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
        result, known = self._first_call(function, args, kwargs)
        if known is not None and known.is_ragged is is_ragged:
            self._calls[key] = known
        return result

    def _call_known_ragged(self, known: KnownCall, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves: list[Any] = []
        leaves_of((args, kwargs), leaves)
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        if len({len(handle._value) for handle in handles if handle._type.ragged}) > 1:
            return self._first_call(function, args, kwargs)[0]
        return self._noted(known, function, args, kwargs, handles, self._add_node_of(known, handles))

    def _call_known_view(self, known: KnownCall, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves: list[Any] = []
        leaves_of((args, kwargs), leaves)
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        result = None if known.is_operand else self._add_node_of(known, handles)
        return self._noted(known, function, args, kwargs, handles, result)

    @staticmethod
    def _noted(
        known: KnownCall, function: Any, args: tuple[Any, ...], kwargs: Any, handles: Sequence[LazyTensor], result: Any
    ) -> Any:
        """The result of a call, known as what shares memory with one of its operands if it does."""
        if known.shares_with is None:
            return result
        base = handles[known.shares_with]
        if known.is_operand:
            return base
        note_views(function, args, kwargs, result, base)
        return result

    def _first_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, KnownCall | None]:
        """Any call, with arguments of any kind; and what is known about calls of its signature, if that is all there is to it."""
        name = getattr(function, "__name__", "")
        if kwargs.get("out") is not None:
            raise ArgumentError(
                f"{name}(..., out=...) writes into a tensor that is not computed yet. Use what it returns instead\n  {self.where()}"
            )
        if function in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
            return call_in_place(self, function, args, kwargs), None
        if kwargs.get("inplace"):
            changed = self.call_function(function, args, {**kwargs, "inplace": False})
            target = args[0] if args else kwargs["input"]
            replace(self, target, changed)
            return target, None
        if is_grad_enabled() is not self._grad or is_any_autocast_enabled() or self._autocast:
            self._change_mode()
        leaves: list[Any] = []
        nesting = leaves_of((args, kwargs), leaves)
        if function in CHANGES_OTHERS and _keeps_statistics(args, kwargs):
            # A tensor that was given is there already, and may be one of those that are changed.
            leaves = [
                leaf._value if type(leaf) is LazyTensor and leaf._recorder is self.given else leaf for leaf in leaves
            ]
            return self._call_with_values(function, nesting, leaves), None
        leaves = self._with_tensors_lifted(function, leaves)
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        if not handles:
            return self._derive(function, nesting, leaves), None
        if any(handle._type.ragged for handle in handles):
            for_ragged = self._known_ragged(function, nesting, leaves, handles)
            if for_ragged is not None:
                result = self._add_node_of(for_ragged, handles)
                return self._noted(for_ragged, function, args, kwargs, handles, result), for_ragged
            leaves = [self.dense(leaf) if type(leaf) is LazyTensor else leaf for leaf in leaves]
        operands = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        known = self._known(function, nesting, leaves, operands)
        if known is None:
            return self._call_with_values(function, nesting, leaves), None
        if not isinstance(known, KnownCall):
            return rebuilt(known.nesting, iter(())), None
        result = None if known.is_operand else self._add_node_of(known, operands)
        return self._noted(known, function, args, kwargs, handles, result), known

    @fast_path.module
    def call_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record one of torch's own modules, or one that was named as a cell, as one operation; NotImplemented if it is neither."""
        cell = self._cells.get(id(module))
        if cell is not None:
            return self.call(cell, args, kwargs)
        if kwargs or type(module) not in MODULES or module._forward_hooks or module._forward_pre_hooks:
            return NotImplemented
        if is_grad_enabled() is not self._grad or is_any_autocast_enabled() or self._autocast:
            self._change_mode()
        state = self.unchanged.modules.get(module)
        if state is not None and not is_plain(state):
            return NotImplemented
        key: list[Any] = [module]
        handles: list[LazyTensor] = []
        operands: list[int] = []
        depth = 0
        is_ragged = False
        for arg in args:
            for item in arg if type(arg) is tuple else (arg,):
                if type(item) is LazyTensor:
                    handle = item if item._recorder is self else self._own(item, None)
                elif isinstance(item, torch.Tensor):
                    handle = self.lift(item)
                else:
                    return self._call_new_module(module, args)
                handles.append(handle)
                key.append(handle._type)
                operands.append(handle._value)
                if handle._type.ragged:
                    is_ragged = True
                if handle._depth > depth:
                    depth = handle._depth
        frozen = tuple(key)
        known = self._calls.get(frozen)
        if known is not None:
            return self._add_node_of(known, handles) if is_ragged else self._add_node(known, operands, depth + 1)
        return self._call_new_module(module, args, frozen)

    def _call_new_module(
        self, module: torch.nn.Module, args: tuple[Any, ...], key_of_types: tuple[Any, ...] | None = None
    ) -> Any:
        """A call that is not known under its key, and will be if its operands are taken as they are."""
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
        if not self.unchanged.takes_module(module):
            return NotImplemented
        types = tuple([handle._type for handle in handles])
        key = (cell, *types, nesting, ())
        known = self._calls.get(key)
        if known is None:
            known = self._new_cell_call(key, cell, types, nesting, ())
        if key_of_types is not None and key_of_types[1:] == types:
            self._calls[key_of_types] = known
        return self._add_node_of(known, handles)

    def call_with_values(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run at once what must see tensors."""
        leaves: list[Any] = []
        nesting = leaves_of((args, kwargs), leaves)
        return self._call_with_values(function, nesting, leaves)

    def _call_with_values(self, function: Any, nesting: Any, leaves: list[Any]) -> Any:
        """Run a function whose result depends on values, on the values; what it returns is given."""
        handles = [self._own(leaf, None, ragged=False) for leaf in leaves if type(leaf) is LazyTensor]
        values = iter(self.values_of(handles))
        arguments = [next(values) if type(leaf) is LazyTensor else leaf for leaf in leaves]
        args, kwargs = rebuilt(nesting, iter(arguments))
        with recording_paused():
            result = function(*args, **kwargs)
        found: list[Any] = []
        shape = leaves_of(result, found)
        memory = {id_of_memory(leaf) for leaf in arguments if is_strided(leaf)}
        return rebuilt(shape, iter([self._lifted_result(item, memory) if is_strided(item) else item for item in found]))

    def _lifted_result(self, tensor: torch.Tensor, memory: set[int]) -> LazyTensor:
        handle = self.lift(tensor, ragged=False)
        if id_of_memory(tensor) not in memory:
            return handle
        # Of the same memory as a value that is the user's or of all examples: it can be read, not changed.
        view = LazyTensor(self, handle._value, handle._type, handle._depth)
        view._source = (self.given, tensor)
        return view

    # ---- Rows.

    def set_item(self, target: LazyTensor, index: Any, value: Any) -> None:
        set_item(self, target, index, value)

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        """The rows of a value that has some: free if it is ragged, one operation otherwise."""
        if handle._type.ragged:
            return row_handles(self, handle)
        return list(self.call_function(torch.unbind, (handle,), None))


def _keeps_statistics(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether there is a running mean, and this call may change it."""
    mean = args[1] if len(args) > 1 else kwargs.get("running_mean")
    by_position = args[5] if len(args) > 5 else False
    return mean is not None and bool(kwargs.get("training", kwargs.get("use_input_stats", by_position)))


CHANGES_OTHERS = frozenset(forms("batch_norm instance_norm"))
"""Functions that change tensors that they are given beside the first: statistics, which every example must reach in turn."""


fast_path.bind(
    handle=LazyTensor,
    recorder=Recorder,
    known=KnownCall,
    column=InputColumn,
    views=Views,
    type=Type,
    is_grad_enabled=is_grad_enabled,
    is_autocast_enabled=is_any_autocast_enabled,
    scope=scope,
    handlers=HANDLERS,
    module_types=MODULES,
    parameter=_Parameter,
    plain_types=_STATIC | {float},
    may_copy=MAY_COPY,
    rebuilt=rebuilt,
    make_tensor=torch.tensor,
    stack=torch.stack,
    type_of_stack=TYPE_OF_STACK,
)
