"""The recorder: records one example's calls of cells, of torch's functions and of its modules.

A call is recorded in four steps. Its *key* is made of what is called, the types of its operands and its settings. If the key is *known*,
a *node* is appended to the graph, and the caller gets *handles* for its results. Otherwise it is the first call of its signature:
`first_calls.py`. Types are interned, so a key is found by comparing identities. `_fast_path.c` takes the same four steps for
most known calls, in front of `call`, `call_module` and the methods of `LazyTensor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import is_grad_enabled

from foldloom.errors import ArgumentError, CellError
from foldloom.execution.kernels import type_of
from foldloom.graph import Type
from foldloom.planning.schedulers import ByAgenda, Scheduler
from foldloom.pytrees import flatten, unflatten
from foldloom.torch_private import is_any_autocast_enabled
from foldloom.tracing import fast_path
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.columns import InputColumn
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.catching import may_be_caught
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.flushing.gradient_calls import Retained
from foldloom.tracing.flushing.outside import Outside
from foldloom.tracing.mutation.guards import Guards, is_plain
from foldloom.tracing.mutation.in_place import set_data, set_item
from foldloom.tracing.mutation.spoiled import spoiled_among
from foldloom.tracing.mutation.views import MAY_COPY, Views, note_views
from foldloom.tracing.recording.at_once import call_at_once, changed_at_once, demand_at_once
from foldloom.tracing.recording.first_calls import (
    call_with_values,
    first_call,
    first_module_call,
    with_given_taken,
)
from foldloom.tracing.recording.function_calls import (
    OF_DENSE,
    call_known,
    call_unknown,
    call_with_number,
    call_with_spoiled,
    numbers_among,
    with_dense,
)
from foldloom.tracing.recording.gradients.derivatives import backward
from foldloom.tracing.recording.gradients.derived_changes import derived_under, note_change_of_derived
from foldloom.tracing.recording.gradients.hooks import values_of
from foldloom.tracing.recording.gradients.leaves import array_of, let_go, own_tensor
from foldloom.tracing.recording.handlers import HANDLERS, TYPE_OF_STACK
from foldloom.tracing.recording.handles import (
    add_node,
    add_node_of,
    cuts,
    dense,
    keep_together,
    own,
    rows_of,
    settled,
    tensor_given_as,
)
from foldloom.tracing.recording.keys import PLAIN_TYPES, key_of
from foldloom.tracing.recording.numbers import VaryingNumbers, default_dtype, kinds_of
from foldloom.tracing.recording.of_given import call_of_given
from foldloom.tracing.recording.signatures import KnownCall, Signatures, frozen_settings
from foldloom.tracing.rules.indexing import take
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import NUMBER, Form, Given, LazyTensor, computed, new_handle
from foldloom.tracing.weights import DerivedWeights

_TAKEN_APART = "taken apart"
"""Stands for what is known of a call of a module that is not recorded as one operation."""


class Recorder:
    """Records the calls of one batch, in one thread. Handles refer to it; its parts do not, so that it is freed with the last handle."""

    __slots__ = (
        "__weakref__", "automatic", "derived", "fibers", "flushes", "graph", "guards", "has_spoiled", "inputs", "is_over",
        "names_cells", "numbers", "outside", "signatures",
    )  # fmt: skip

    def __init__(
        self,
        scheduler: Scheduler | None = None,
        owner: object = None,
        cells: Sequence[Cell] = (),
        numbers: VaryingNumbers | None = None,
    ) -> None:
        self.guards = Guards()
        self.derived = DerivedWeights(self.guards)
        self.graph = GraphBuilder({id(cell.function): cell for cell in cells}, self.guards.module_states)
        self.inputs = Inputs(self.graph, self.guards, self.derived)
        self.signatures = Signatures(self.graph, self.inputs, self.guards, self.derived)
        self.flushes = Flushes(self.graph, self.inputs, self.guards, self.derived, scheduler or ByAgenda(), owner)
        self.outside = Outside(self.graph, self.inputs, self.guards, self.derived, self.flushes)
        self.numbers = numbers or VaryingNumbers()
        self.fibers: Fibers | None = None
        self.automatic = False
        """Whether calls of functions may be recorded as automatic cells."""
        self.names_cells = bool(cells)
        self.has_spoiled = False
        """Whether there may be handles of views that cannot be differentiated any more."""
        self.is_over = False
        """Whether handles stand for tensors that can be computed at once."""

    def let_go(self) -> None:
        """After the end: values that somebody holds become tensors."""
        let_go(self)

    def end(self) -> None:
        """Nothing more is recorded. What is computed lives as long as there are handles."""
        self.is_over = True
        self.fibers = self.outside.fibers = self.flushes.on_demand = None
        self.inputs.forget()
        self.signatures.end()
        self.guards.clear()

    # ---- Calls of cells.

    @fast_path.cell
    def call(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Record one call of a cell; handles for its results."""
        graph = self.graph
        if is_grad_enabled() is not graph.grad or is_any_autocast_enabled() or graph.autocast:
            self.signatures.change_mode()
        if settings:
            return self._call_nested(cell, args, settings)
        operands: list[int] = []
        key: list[Any] = [cell]
        depth = 0
        for arg in args:
            if type(arg) is LazyTensor:
                if arg._recorder is not self:
                    arg = self._argument(cell, arg)
                operands.append(arg._value)
                key.append(arg._type)
                if arg._depth > depth:
                    depth = arg._depth
                continue
            column = graph.column_of_number.get(type(arg))
            if column is not None:
                operands.append(graph.add_input(column, arg))
                key.append(column.type)
            elif isinstance(arg, (tuple, list, dict)):
                done = zip(args, operands, key[1:], strict=False)
                handles = [a if type(a) is LazyTensor else new_handle(self, value, t, 0) for a, value, t in done]
                return self._call_nested(cell, (*handles, *args[len(operands) :]), settings)
            else:
                value, kind = self.inputs.add_argument(cell, arg)
                operands.append(value)
                key.append(kind)
        frozen = tuple(key)
        known = graph.calls.get(frozen)
        if known is None:
            if any(type.ragged for type in key[1:]):
                handles = [new_handle(self, value, type, depth) for value, type in zip(operands, key[1:], strict=True)]
                return self.call(cell, tuple([self.dense(handle) for handle in handles]), settings)
            known = self.signatures.of_cell(frozen, cell, frozen[1:], None, ())
        return add_node(self, known, operands, depth + 1)

    def _call_nested(self, cell: Cell, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """The same where arguments are nested or settings are given."""
        leaves: list[Any] = []
        nesting = flatten(args, leaves)
        frozen = frozen_settings(cell, settings)
        handles = [self.dense(handle) for handle in [self._argument(cell, leaf) for leaf in leaves]]
        types = tuple([handle._type for handle in handles])
        key = (cell, *types, nesting, frozen)
        known = self.graph.calls.get(key)
        if known is None:
            known = self.signatures.of_cell(key, cell, types, nesting, frozen)
        return add_node_of(self, known, handles)

    def _argument(self, cell: Cell, value: Any) -> LazyTensor:
        """Anything that is given to a cell, as a handle of this recorder."""
        if type(value) is LazyTensor:
            if self.is_given(value):
                self.inputs.check_device(value.device, cell)
            return self.own(value, cell=cell)
        return new_handle(self, *self.inputs.add_argument(cell, value), 0)

    # ---- Calls of functions.

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        """Record one call of a torch function with at least one value or weight among its arguments."""
        graph = self.graph
        kwargs = kwargs or {}
        if self.is_over:
            return computed(function, tuple(args), kwargs)
        if scope.recorder is None:
            return call_at_once(self, function, tuple(args), kwargs)
        if self.has_spoiled and (spoiled := spoiled_among(args, kwargs)):
            return call_with_spoiled(self, function, args, kwargs, spoiled)
        if is_grad_enabled() is not graph.grad or is_any_autocast_enabled() or graph.autocast:
            self.signatures.change_mode()
        handler = HANDLERS.get(function)
        if handler is not None:
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
        found = key_of(self, function, args, kwargs)
        as_called = args
        if found is None:
            of_given = call_of_given(self, function, args, kwargs)
            if of_given is not NotImplemented:
                return of_given
            args = with_given_taken(self, function, args, kwargs)
            found = None if args is as_called else key_of(self, function, args, kwargs)
        if found is None:
            return first_call(self, function, tuple(as_called), kwargs)[0]
        key, operands, depth, is_ragged = found
        known = graph.calls.get(key)
        if known is None:
            if not kwargs and graph.numbers_vary:
                kinds = kinds_of(function, args, default_dtype())
                if kinds is not None and self.numbers.note(kinds, *numbers_among(args)):
                    return call_with_number(self, kinds, function, args)
            return call_unknown(self, key, function, tuple(as_called), kwargs, is_ragged)
        if args is not as_called and known is not OF_DENSE and known.shares_with is not None:
            return first_call(self, function, tuple(as_called), kwargs)[0]
        if known is OF_DENSE:
            return self.call_function(function, with_dense(self, args), kwargs)
        if is_ragged:
            return call_known(self, known, function, tuple(args), kwargs)
        if known.shares_with is None:
            return add_node(self, known, operands, depth + 1)
        if known.is_operand or known.shares_with or type(args[0]) is not LazyTensor:
            return call_known(self, known, function, tuple(args), kwargs)
        result = add_node(self, known, operands, depth + 1)
        note_views(function, tuple(args), kwargs, result, args[0])
        return result

    def call_with_values(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function at once, on the values of its arguments."""
        return call_with_values(self, function, args, kwargs)

    def set_item(self, target: LazyTensor, index: Any, value: Any) -> None:
        if scope.recorder is None and not self.is_over:
            raise changed_at_once(self, "[...] =")
        set_item(self, target, index, value)

    def set_data(self, target: LazyTensor, value: Any) -> None:
        set_data(self, target, value)

    # ---- Calls of modules.

    @fast_path.module
    def call_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of one of torch's modules, or of one that was named as a cell; NotImplemented if it is neither."""
        graph = self.graph
        cell = graph.cells.get(id(module))
        if cell is not None:
            try:
                return self.call(cell, args, kwargs)
            except (ArgumentError, CellError):
                module._call_impl(*args, **kwargs)  # if the module itself raises, then as one by one
                raise
        if kwargs or type(module) not in MODULES or module._forward_hooks or module._forward_pre_hooks:
            return NotImplemented
        if len(args) == 2 and args[1] is None and isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase)):
            args = args[:1]  # an initial state of None is none
        if is_grad_enabled() is not graph.grad or is_any_autocast_enabled() or graph.autocast:
            self.signatures.change_mode()
        state = graph.module_states.get(module)
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
                    handle = item if item._recorder is self else self.own(item, ragged=None)
                elif isinstance(item, torch.Tensor):
                    if graph.calls.get((module, torch.Tensor)) is _TAKEN_APART:
                        return NotImplemented
                    handle = self.lift(item)
                else:
                    return first_module_call(self, module, args)
                handles.append(handle)
                key.append(handle._type)
                operands.append(handle._value)
                is_ragged = is_ragged or handle._type.ragged
                if handle._depth > depth:
                    depth = handle._depth
        frozen = tuple(key)
        known = graph.calls.get(frozen)
        if known is _TAKEN_APART:
            return NotImplemented
        if known is None:
            calls = graph.calls
            result = first_module_call(self, module, args, frozen)
            if result is NotImplemented:
                calls[frozen] = _TAKEN_APART
                if any(type(arg) is torch.Tensor for arg in args):
                    calls[module, torch.Tensor] = _TAKEN_APART
            return result
        return add_node_of(self, known, handles) if is_ragged else add_node(self, known, operands, depth + 1)

    # ---- Handles for other values.

    def give(self, tensor: torch.Tensor) -> LazyTensor:
        """A handle for a tensor that an example consists of. It becomes an input of the graph when it is used."""
        self.inputs.has_given = True
        return new_handle(Given(self), tensor, type_of(tensor), 0)

    def lift(self, tensor: torch.Tensor, *, ragged: bool | None = None) -> LazyTensor:
        """A tensor as a value of the example that is being recorded."""
        return new_handle(self, *self.inputs.add_tensor(tensor, ragged), 0)

    def stand_for(self, handle: LazyTensor, tensor: torch.Tensor) -> None:
        """A value of this recorder stands for a tensor of the user's, or for a view of one."""
        self.inputs.has_given = True
        handle._source = (Given(self), tensor)
        self.inputs.note_handle(handle, tensor)

    def constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> LazyTensor:
        """What a function like `torch.zeros` returns."""
        return new_handle(self, *self.inputs.add_constant(function, args, kwargs), 0)

    def number(self, value: Any) -> LazyTensor:
        """A Python number as a value, as `torch.tensor` would make it."""
        return new_handle(self, *self.inputs.add_number(value), 0)

    def own(self, handle: LazyTensor, *, ragged: bool | None = False, cell: Cell | None = None) -> LazyTensor:
        return handle if handle._recorder is self else own(self, handle, ragged=ragged, cell=cell)

    def dense(self, handle: LazyTensor) -> LazyTensor:
        return dense(self, handle) if handle._type.ragged else handle

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        return rows_of(self, handle)

    def keep_together(self, handle: LazyTensor) -> None:
        keep_together(self, handle)

    def check_may_rearrange(self) -> None:
        """Values are about to be stacked or taken apart without a node. In what is captured they must not be: it is told from numbers of values
        which operand is which, and in another call what is a row of one operand now may be none."""
        self.flushes.check_not_captured("it stacks tensors, or takes rows of a value with any number of rows")

    def cuts(self, handle: LazyTensor) -> bool:
        return cuts(self, handle)

    def settled(self, value: Any) -> Any:
        """What an example left on a module, with tensors in place of handles."""
        return settled(self, value)

    # ---- What handles ask.

    def demand(self, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
        """What handles stand for: see `Flushes.demand`."""
        if scope.recorder is not None or self.is_over:
            return self.flushes.demand(handles, form)
        return demand_at_once(self, handles, form)

    def number_of(self, handle: LazyTensor) -> Any:
        """A value as Python's number."""
        if handle._type.ragged or (scope.recorder is None and not self.is_over):
            return self.demand((handle,), NUMBER)[0]
        return self.flushes.number_of(handle)

    def own_tensor(self, handle: LazyTensor) -> torch.Tensor:
        return own_tensor(self, handle)

    def array_of(self, handle: LazyTensor) -> Any:
        """A value as an array of numpy, which shares its memory."""
        if self.is_over or scope.recorder is None:
            return handle._detached().clone().numpy()
        return array_of(self, handle)

    def grad_of(self, handle: LazyTensor) -> torch.Tensor | None:
        """The gradient that has arrived in a leaf, or in a value that retains it."""
        known = self.known_of(handle)
        return None if known is None else known.grad

    def note_change(self, values: tuple[int, ...], is_ragged: bool, made: int) -> None:
        self.flushes.note_change(values, is_ragged, made)

    def strides_of(self, handle: LazyTensor) -> tuple[int, ...] | None:
        """Of a computed value; None if it lies in order."""
        return None if self.is_over or handle._type.ragged else self.flushes.layouts.strides_of(handle._value)

    def note_flag(self, tensor: torch.Tensor) -> None:
        self.signatures.note_flag(tensor)

    def derived_under(self, handle: LazyTensor) -> torch.Tensor | None:
        return derived_under(self, handle)

    def note_change_of_derived(self, tensor: torch.Tensor, made: Any) -> None:
        note_change_of_derived(self, tensor, made)

    def backward(self, handle: LazyTensor, args: Any, kwargs: Any) -> None:
        if self.is_over or scope.recorder is None:
            handle._tensor().backward(*args, **kwargs)
        else:
            backward(self, (handle, *args), kwargs)

    def requires_grad_of(self, handle: LazyTensor) -> bool:
        values = handle._value if handle._type.ragged else (handle._value,)
        return handle._type.differentiable and any(self.graph.requires_grad(values))

    @property
    def has_gradients(self) -> bool:
        return self.signatures.has_gradients

    def device_of(self, _: LazyTensor) -> torch.device:
        return self.inputs.device

    def is_given(self, handle: LazyTensor) -> bool:
        """Whether a handle stands for a given tensor of this batch that has not been used yet."""
        return type(handle._recorder) is Given and handle._recorder.recorder is self

    def tensor_given_as(self, handle: LazyTensor) -> torch.Tensor | None:
        return tensor_given_as(self, handle)

    def known_of(self, handle: LazyTensor) -> torch.Tensor | Retained | None:
        """What is known of a result: the user's tensor that it is, or that it retains its gradient."""
        given = self.tensor_given_as(handle)
        return self.flushes.gradients.retained.get(values_of(handle)) if given is None else given

    def read_given(self, handle: LazyTensor) -> torch.Tensor | None:
        return self.flushes.reader.read_handle(handle)

    def is_derived(self, value: object) -> bool:
        return self.derived.is_derived(value) or self.inputs.is_buffer(value)

    def where(self) -> str:
        return self.graph.where()


fast_path.bind(
    recorder=Recorder, graph=GraphBuilder, known=KnownCall, column=InputColumn, views=Views, type=Type,
    is_grad_enabled=is_grad_enabled, is_autocast_enabled=is_any_autocast_enabled, scope=scope,
    handlers=HANDLERS, module_types=MODULES, parameter=torch.nn.Parameter, tensor=torch.Tensor, plain_types=PLAIN_TYPES, may_copy=MAY_COPY,
    rebuilt=unflatten, make_tensor=torch.tensor, stack=torch.stack, type_of_stack=TYPE_OF_STACK, may_be_caught=may_be_caught,
    get_item=torch.Tensor.__getitem__, take=take, type_of_index=Type((), "int64"),
)  # fmt: skip
