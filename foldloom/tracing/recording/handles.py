"""Handles of a recorder: those for the results of a node, and what other values become when they are used in a recording.

A handle belongs to one recorder. `own` makes it one of this recorder: a given tensor becomes an input, and so does a result of a batch that
is over. A ragged value is a list of rows, one handle; `dense` makes a value of a fixed shape of it, and `rows_of` takes it apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import is_grad_enabled

from foldloom.errors import ForeignValueError
from foldloom.pytrees import flatten, map_leaves, unflatten
from foldloom.torch_private import is_any_autocast_enabled
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.mutation.guards import Guards
from foldloom.tracing.mutation.spoiled import Spoiled, as_tensor, error_of, numbers_of
from foldloom.tracing.mutation.views import as_inference, is_of_inference, note_views, row_handles
from foldloom.tracing.recording.signatures import KnownCall, Signatures
from foldloom.tracing.rules.ragged import together
from foldloom.tracing.scope import ActiveRecorder
from foldloom.tracing.values.lazy_tensor import TENSOR, Given, LazyTensor, new_handle
from foldloom.tracing.weights import Derived


class RecorderOfHandles(ActiveRecorder, Protocol):
    """A recorder with the parts that know where values are."""

    @property
    def graph(self) -> GraphBuilder: ...
    @property
    def inputs(self) -> Inputs: ...
    @property
    def signatures(self) -> Signatures: ...
    @property
    def flushes(self) -> Flushes: ...
    @property
    def guards(self) -> Guards: ...
    @property
    def is_over(self) -> bool: ...
    def is_given(self, handle: Any) -> bool: ...
    def give(self, tensor: torch.Tensor) -> LazyTensor: ...
    def lift(self, tensor: torch.Tensor, *, ragged: bool | None = None) -> LazyTensor: ...
    def constant(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> LazyTensor: ...


# ---- Nodes, and handles for their results.


def add_node(recorder: RecorderOfHandles, known: KnownCall, operands: list[int], depth: int) -> Any:
    """A node without ragged values."""
    types = known.output_types
    value = recorder.graph.add_node(known.op_number, operands, depth, len(types))
    if known.may_raise:
        value = recorder.flushes.wait_if_caught(known.op_number, range(value, value + len(types)))
    if known.returns_one:
        return new_handle(recorder, value, types[0], depth)
    handles = [new_handle(recorder, number, type, depth) for number, type in enumerate(types, value)]
    return tuple(handles) if known.returns_tuple else unflatten(known.returns, iter(handles))


def add_node_of(recorder: RecorderOfHandles, known: KnownCall, handles: Sequence[LazyTensor]) -> Any:
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
        return add_node(recorder, known, operands, depth + 1)
    types = known.output_types
    sizes = [rows if type.ragged else 1 for type in types]
    lengths += [rows for type in types if type.ragged]
    value = recorder.graph.add_ragged_node(known.op_number, operands, depth + 1, sum(sizes), lengths)
    if known.may_raise:
        value = recorder.flushes.wait_if_caught(known.op_number, range(value, value + sum(sizes)))
    outputs: list[LazyTensor] = []
    for type, size in zip(types, sizes, strict=True):
        outputs.append(new_handle(recorder, range(value, value + size) if type.ragged else value, type, depth + 1))
        value += size
    return unflatten(known.returns, iter(outputs))


# ---- Handles for other values.


def own(
    recorder: RecorderOfHandles, handle: LazyTensor, *, ragged: bool | None = False, cell: Cell | None = None
) -> LazyTensor:
    """The handle as one of this recorder: a given tensor becomes an input, and so does what a recorder that is over computed."""
    owner = handle._recorder
    if owner is recorder:
        return handle
    if isinstance(owner, Spoiled):
        if is_grad_enabled():
            raise error_of(handle)
        return numbers_of(handle)
    if isinstance(owner, Derived) and owner.recorder is recorder:  # it goes on as a weight, for all examples
        return recorder.lift(handle._value, ragged=ragged)
    if recorder.is_given(handle) and recorder.inputs.is_in_array(handle._value):
        return recorder.lift(handle._value.clone(), ragged=ragged)  # as it is now, whoever writes to the array
    if recorder.is_given(handle):
        recorder.flushes.check_not_captured("it uses a tensor that was given")
        value, type = recorder.inputs.add_tensor(handle._value, ragged)
        if type.ragged:
            handle._source = (owner, handle._value)
        else:
            recorder.inputs.note_users_own(value)
        recorder.inputs.note_handle(handle, handle._value)
        handle._recorder, handle._value, handle._type = recorder, value, type
        return handle
    if owner.is_over and owner.flushes.has_begun:
        return recorder.lift(owner.demand((handle,), TENSOR)[0], ragged=handle._type.ragged)
    doing = "returned from this example or used in it" if cell is None else f"given to cell {cell.label}"
    raise ForeignValueError(
        f"a value ({handle._type}) that belongs to another fl.batch, or to one that is over, was {doing}. Values live "
        "as long as the call that recorded them: return them from the function given to fl.batch, and pass on what "
        f"fl.batch returns\n  {recorder.where()}"
    )


def dense(recorder: RecorderOfHandles, handle: LazyTensor) -> LazyTensor:
    """A ragged value as one of a fixed shape."""
    if not handle._type.ragged:
        return handle
    recorder.check_may_rearrange()
    if not handle._value:
        return recorder.constant(torch.zeros, (handle.shape,), {"dtype": handle.dtype})
    if recorder.cuts(handle):
        with torch.enable_grad():  # it is the same value, and keeps its history
            found = dense(recorder, handle)
        recorder.signatures.change_mode()
        return found
    if is_grad_enabled() is not recorder.graph.grad or is_any_autocast_enabled() or recorder.graph.autocast:
        recorder.signatures.change_mode()  # the last call may have been made in another mode
    key = (torch.stack, handle._type, len(handle._value))
    known = recorder.graph.calls.get(key)
    if known is None:
        rows = [new_handle(recorder, value, handle._type.row, handle._depth) for value in handle._value]
        known = recorder.signatures.of_function(torch.stack, flatten(((rows,), {}), []), list(rows), rows)
        assert isinstance(known, KnownCall), "what a stack returns does not depend on values"
        recorder.graph.calls[key] = known
    return add_node(recorder, known, list(handle._value), handle._depth + 1)  # type: ignore[no-any-return]


def keep_together(recorder: RecorderOfHandles, handle: LazyTensor) -> None:
    """Rows are taken of a stack. Backward from one of them reaches all, if only with zeros, as it does through `torch.stack`: so the
    stack becomes a node of its own."""
    is_stack = type(handle._value) is list and len(handle._value) > 1
    if is_stack and not recorder.is_over and is_grad_enabled() and handle.requires_grad:
        recorder.flushes.check_not_captured("it takes rows of a stack")
        joined = recorder.call_function(together, (handle,), None)
        handle._value, handle._depth = joined._value, joined._depth


def rows_of(recorder: RecorderOfHandles, handle: LazyTensor) -> list[LazyTensor]:
    """The rows of a value: free if it is ragged, one operation otherwise."""
    if recorder.is_given(handle):
        if not recorder.guards.runs_later or len(handle._type.shape) < 2:
            return [recorder.give(row) for row in handle._value]  # each of which may be changed in place
        # What runs later allows no such change. So the tensor is given as a whole, whoever reads its rows.
        handle = own(recorder, handle, ragged=None)
    if not handle._type.ragged:
        return list(recorder.call_function(torch.unbind, (handle,), None))
    if not recorder.cuts(handle):
        return row_handles(recorder, handle)
    rows = recorder.call_function(torch.unbind, (recorder.dense(handle),), None)
    note_views(torch.unbind, (handle,), {}, rows, handle)
    return list(rows)


def cuts(recorder: RecorderOfHandles, handle: LazyTensor) -> bool:
    """Whether rows of a value that are put together or taken apart here lose their history: without gradients for this part of the batch."""
    return not is_grad_enabled() and recorder.has_gradients and handle.requires_grad


def tensor_given_as(recorder: RecorderOfHandles, handle: LazyTensor) -> torch.Tensor | None:
    """The user's tensor that a handle stands for, if it is one."""
    source = getattr(handle, "_source", (None, None))
    if type(source[0]) is Given or recorder.is_given(handle):
        return source[1] if type(source[0]) is Given else handle._value
    is_own = handle._recorder is recorder and not handle._type.ragged
    return recorder.inputs.users_own(handle._value) if is_own else None


# ---- What examples leave behind.


def settled(recorder: RecorderOfHandles, value: Any) -> Any:
    """What an example left on a module: values in it become the tensors that they stand for."""
    recorder.flushes.on_demand = None  # no example is left that could go on meanwhile
    return map_leaves(value, lambda leaf: _settled_leaf(recorder, leaf))


def _settled_leaf(recorder: RecorderOfHandles, value: Any) -> Any:
    if type(value) is not LazyTensor:
        return value
    given = recorder.tensor_given_as(value)
    if given is not None:
        return given
    if type(value._recorder) is Spoiled:
        return as_tensor(value, value._detached())
    (tensor,) = recorder.demand((recorder.own(value),), TENSOR)
    if is_of_inference(recorder, value):
        return as_inference(tensor)
    return tensor if value.requires_grad else tensor.detach()
