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

from foldloom.errors import ArgumentError, CellError, ForeignValueError
from foldloom.execution.kernels import type_of
from foldloom.graph import Type
from foldloom.planning.schedulers import ByAgenda, Scheduler
from foldloom.pytrees import flatten, map_leaves, unflatten
from foldloom.torch_private import is_any_autocast_enabled
from foldloom.tracing import fast_path
from foldloom.tracing.building.builder import GraphBuilder, InputColumn
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.catching import may_be_caught
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.flushing.gradient_calls import Retained
from foldloom.tracing.flushing.outside import Outside
from foldloom.tracing.mutation.guards import Guards, is_plain
from foldloom.tracing.mutation.in_place import set_data, set_item
from foldloom.tracing.mutation.spoiled import (
    Spoiled,
    as_tensor,
    check_use,
    error_of,
    numbers_of,
    spoiled_among,
)
from foldloom.tracing.mutation.views import MAY_COPY, Views, note_views, row_handles
from foldloom.tracing.recording.at_once import call_at_once, changed_at_once, demand_at_once
from foldloom.tracing.recording.derivatives import backward
from foldloom.tracing.recording.first_calls import (
    call_with_values,
    first_call,
    first_module_call,
    is_of_nothing,
    with_given_taken,
    with_views_noted,
)
from foldloom.tracing.recording.gradient_hooks import values_of
from foldloom.tracing.recording.handlers import HANDLERS, ROW_HANDLERS, TYPE_OF_STACK
from foldloom.tracing.recording.keys import PLAIN_TYPES, key_of
from foldloom.tracing.recording.leaves import array_of, let_go, own_tensor
from foldloom.tracing.recording.numbers import Kinds, VaryingNumbers, default_dtype, kinds_of
from foldloom.tracing.recording.signatures import KnownCall, Signatures, frozen_settings
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.rules.ragged import together
from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import TENSOR, Form, Given, LazyTensor, computed, new_handle
from foldloom.tracing.weights import Derived, DerivedWeights

_OF_DENSE = "of dense operands"
"""Stands for what is known of a call with ragged values that has to be made with dense ones."""
_TAKEN_APART = "taken apart"
"""Stands for what is known of a call of a module that is not recorded as one operation."""


def _with_dense(recorder: Recorder, args: Sequence[Any]) -> list[Any]:
    """Arguments whose ragged values have become dense."""

    def dense(item: Any) -> Any:
        return recorder.dense(item) if type(item) is LazyTensor else item

    return [type(arg)(map(dense, arg)) if type(arg) in (list, tuple) else dense(arg) for arg in args]


def _numbers_among(args: Sequence[Any]) -> list[Any]:
    return [arg for arg in args if type(arg) is not LazyTensor]


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
        return self._add_node(known, operands, depth + 1)

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
        return self.add_node_of(known, handles)

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
            return self._call_with_spoiled(function, args, kwargs, spoiled)
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
            args = with_given_taken(self, function, args, kwargs)
            found = None if args is as_called else key_of(self, function, args, kwargs)
        if found is None:
            return first_call(self, function, tuple(as_called), kwargs)[0]
        key, operands, depth, is_ragged = found
        known = graph.calls.get(key)
        if known is None:
            if not kwargs and graph.numbers_vary:
                kinds = kinds_of(function, args, default_dtype())
                if kinds is not None and self.numbers.note(kinds, *_numbers_among(args)):
                    return self._call_with_number(kinds, function, args)
            return self._call_unknown(key, function, tuple(as_called), kwargs, is_ragged)
        if args is not as_called and known is not _OF_DENSE and known.shares_with is not None:
            return first_call(self, function, tuple(as_called), kwargs)[0]
        if known is _OF_DENSE:
            return self.call_function(function, _with_dense(self, args), kwargs)
        if is_ragged:
            return self._call_known(known, function, tuple(args), kwargs)
        if known.shares_with is None:
            return self._add_node(known, operands, depth + 1)
        if known.is_operand or known.shares_with or type(args[0]) is not LazyTensor:
            return self._call_known(known, function, tuple(args), kwargs)
        result = self._add_node(known, operands, depth + 1)
        note_views(function, tuple(args), kwargs, result, args[0])
        return result

    def _call_with_spoiled(self, function: Any, args: Any, kwargs: dict[str, Any], spoiled: list[LazyTensor]) -> Any:
        """A call that does not ask for the history of a view that has lost it takes it as any other value."""
        check_use(function, args, kwargs)
        before = [handle._recorder for handle in spoiled]
        for handle in spoiled:
            handle._recorder = self
        try:
            return self.call_function(function, args, kwargs)
        finally:
            for handle, recorder in zip(spoiled, before, strict=True):
                if handle._recorder is self:
                    handle._recorder = recorder

    def _call_known(self, known: KnownCall, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A known call with ragged values, or one that returns a view."""
        leaves: list[Any] = []
        flatten((args, kwargs), leaves)
        handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
        lengths = {len(handle._value) for handle in handles if handle._type.ragged}
        if len(lengths) > 1 or (0 in lengths and is_of_nothing(function, handles)):
            return first_call(self, function, args, kwargs)[0]
        result = None if known.is_operand else self.add_node_of(known, handles)
        return with_views_noted(known, function, args, kwargs, handles, result)

    def _call_unknown(
        self, key: tuple[Any, ...], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_ragged: bool
    ) -> Any:
        """The first call under a key, which is known from then on if the call is recorded as one operation."""
        handler = ROW_HANDLERS.get(function) if is_ragged else None
        if handler is not None:
            result = handler(self, args, kwargs)
            if result is not NotImplemented:
                return result
        result, known = first_call(self, function, args, kwargs)
        if known is not None and known.is_derivable:
            if known.is_ragged is is_ragged:
                self.graph.calls[key] = known
            elif known.shares_with is None:
                self.graph.calls[key] = _OF_DENSE
        return result

    def _call_with_number(self, kinds: Kinds, function: Any, args: Sequence[Any]) -> Any:
        """A call whose number is an operand. Such calls are known by the kind of the number, from then on and to C too."""
        operands = [arg if type(arg) is LazyTensor else self.number(arg) for arg in args]
        result = self.call_function(function, operands, None)
        if kinds not in self.graph.calls:
            found = key_of(self, function, operands, {})
            known = None if found is None else self.graph.calls.get(found[0])
            if isinstance(known, KnownCall) and known.shares_with is None:
                self.graph.calls[kinds] = known
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
            result = first_module_call(self, module, args, frozen)
            if result is NotImplemented:
                graph.calls[frozen] = _TAKEN_APART
                if any(type(arg) is torch.Tensor for arg in args):
                    graph.calls[module, torch.Tensor] = _TAKEN_APART
            return result
        return self.add_node_of(known, handles) if is_ragged else self._add_node(known, operands, depth + 1)

    # ---- Nodes, and handles for their results.

    def _add_node(self, known: KnownCall, operands: list[int], depth: int) -> Any:
        types = known.output_types
        value = self.graph.add_node(known.op_number, operands, depth, len(types))
        if known.may_raise:
            self.flushes.wait_if_caught(known.op_number, range(value, value + len(types)))
        if known.returns_one:
            return new_handle(self, value, types[0], depth)
        handles = [new_handle(self, number, type, depth) for number, type in enumerate(types, value)]
        return tuple(handles) if known.returns_tuple else unflatten(known.returns, iter(handles))

    def add_node_of(self, known: KnownCall, handles: Sequence[LazyTensor]) -> Any:
        """Any node: operands and results may be ragged."""
        operands: list[int] = []
        lengths: list[int] = []
        depth = rows = 0
        for handle in handles:
            if handle._type.ragged:
                operands += handle._value
                rows = len(handle._value)
                lengths.append(rows)
            else:
                operands.append(handle._value)
            if handle._depth > depth:
                depth = handle._depth
        if not lengths:
            return self._add_node(known, operands, depth + 1)
        types = known.output_types
        sizes = [rows if type.ragged else 1 for type in types]
        lengths += [rows for type in types if type.ragged]
        value = self.graph.add_ragged_node(known.op_number, operands, depth + 1, sum(sizes), lengths)
        if known.may_raise:
            self.flushes.wait_if_caught(known.op_number, range(value, value + sum(sizes)))
        outputs: list[LazyTensor] = []
        for type, size in zip(types, sizes, strict=True):
            outputs.append(new_handle(self, range(value, value + size) if type.ragged else value, type, depth + 1))
            value += size
        return unflatten(known.returns, iter(outputs))

    # ---- Handles for other values.

    def give(self, tensor: torch.Tensor) -> LazyTensor:
        """A handle for a tensor that an example consists of. It becomes an input of the graph when it is used."""
        self.inputs.has_given = True
        return new_handle(Given(self), tensor, type_of(tensor), 0)

    def lift(self, tensor: torch.Tensor, *, ragged: bool | None = None) -> LazyTensor:
        """A tensor as a value of the example that is being recorded."""
        return new_handle(self, *self.inputs.add_tensor(tensor, ragged), 0)

    def constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> LazyTensor:
        """What a function like `torch.zeros` returns."""
        return new_handle(self, *self.inputs.add_constant(function, args, kwargs), 0)

    def number(self, value: Any) -> LazyTensor:
        """A Python number as a value, as `torch.tensor` would make it."""
        return new_handle(self, *self.inputs.add_number(value), 0)

    def own(self, handle: LazyTensor, *, ragged: bool | None = False, cell: Cell | None = None) -> LazyTensor:
        """The handle as one of this recorder: a given tensor becomes an input, and so does what a recorder that is over computed."""
        recorder = handle._recorder
        if recorder is self:
            return handle
        if isinstance(recorder, Spoiled):
            if is_grad_enabled():
                raise error_of(handle)
            return numbers_of(handle)
        if isinstance(recorder, Derived) and recorder.recorder is self:  # it goes on as a weight, for all examples
            return self.lift(handle._value, ragged=ragged)
        if self.is_given(handle) and self.inputs.is_in_array(handle._value):
            return self.lift(handle._value.clone(), ragged=ragged)  # as it is now, whoever writes to the array
        if self.is_given(handle):
            value, type = self.inputs.add_tensor(handle._value, ragged)
            if type.ragged:
                handle._source = (recorder, handle._value)
            else:
                self.inputs.note_users_own(value)
            self.inputs.note_handle(handle, handle._value)
            handle._recorder, handle._value, handle._type = self, value, type
            return handle
        if recorder.is_over and recorder.flushes.has_begun:
            return self.lift(recorder.demand((handle,), TENSOR)[0], ragged=handle._type.ragged)
        doing = "returned from this example or used in it" if cell is None else f"given to cell {cell.label}"
        raise ForeignValueError(
            f"a value ({handle._type}) that belongs to another fl.batch, or to one that is over, was {doing}. Values live "
            "as long as the call that recorded them: return them from the function given to fl.batch, and pass on what "
            f"fl.batch returns\n  {self.where()}"
        )

    def dense(self, handle: LazyTensor) -> LazyTensor:
        """A ragged value as one of a fixed shape."""
        if not handle._type.ragged:
            return handle
        if not handle._value:
            return self.constant(torch.zeros, (handle.shape,), {"dtype": handle.dtype})
        if is_grad_enabled() is not self.graph.grad or is_any_autocast_enabled() or self.graph.autocast:
            self.signatures.change_mode()  # the last call may have been made in another mode
        key = (torch.stack, handle._type, len(handle._value))
        known = self.graph.calls.get(key)
        if known is None:
            rows = [new_handle(self, value, handle._type.row, handle._depth) for value in handle._value]
            known = self.signatures.of_function(torch.stack, flatten(((rows,), {}), []), list(rows), rows)
            assert isinstance(known, KnownCall), "what a stack returns does not depend on values"
            self.graph.calls[key] = known
        return self._add_node(known, list(handle._value), handle._depth + 1)  # type: ignore[no-any-return]

    def keep_together(self, handle: LazyTensor) -> None:
        """Rows are taken of a stack. Backward from one of them reaches all, if only with zeros, as it does through `torch.stack`: so the
        stack becomes a node of its own."""
        is_stack = type(handle._value) is list and len(handle._value) > 1
        if is_stack and not self.is_over and is_grad_enabled() and handle.requires_grad:
            joined = self.call_function(together, (handle,), None)
            handle._value, handle._depth = joined._value, joined._depth

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        """The rows of a value: free if it is ragged, one operation otherwise."""
        if not handle._type.ragged:
            return list(self.call_function(torch.unbind, (handle,), None))
        if not self.cuts(handle):
            return row_handles(self, handle)
        rows = self.call_function(torch.unbind, (self.dense(handle),), None)
        note_views(torch.unbind, (handle,), {}, rows, handle)
        return list(rows)

    def cuts(self, handle: LazyTensor) -> bool:
        """Whether rows of a value that are put together or taken apart here lose their history: without gradients for this part of the batch."""
        return not is_grad_enabled() and self.has_gradients and handle.requires_grad

    # ---- What examples leave behind.

    def settled(self, value: Any) -> Any:
        """What an example left on a module: values in it become the tensors that they stand for."""
        self.flushes.on_demand = None  # no example is left that could go on meanwhile
        return map_leaves(value, self._settled_leaf)

    def _settled_leaf(self, value: Any) -> Any:
        if type(value) is not LazyTensor:
            return value
        given = self.tensor_given_as(value)
        if given is not None:
            return given
        if type(value._recorder) is Spoiled:
            return as_tensor(value, value._detached())
        (tensor,) = self.demand((self.own(value),), TENSOR)
        return tensor if value.requires_grad else tensor.detach()

    # ---- What handles ask.

    def demand(self, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
        """What handles stand for: see `Flushes.demand`."""
        if scope.recorder is not None or self.is_over:
            return self.flushes.demand(handles, form)
        return demand_at_once(self, handles, form)

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
        """The user's tensor that a handle stands for, if it is one."""
        source = getattr(handle, "_source", (None, None))
        if type(source[0]) is Given or self.is_given(handle):
            return source[1] if type(source[0]) is Given else handle._value
        is_own = handle._recorder is self and not handle._type.ragged
        return self.inputs.users_own(handle._value) if is_own else None

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
)  # fmt: skip
