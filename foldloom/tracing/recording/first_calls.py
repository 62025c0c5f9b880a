"""The first call of each signature, and calls that are not recorded as one operation: everything beside the walk in `recorder.py`.

`first_call` takes arguments of any kind. In-place functions are functionalized, functions of weights alone are computed at once, and so
are functions whose result depends on values; all others are recorded, under a signature that is known from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CellType
from typing import Any, Protocol

import numpy as np
import torch

from foldloom.errors import CellError, RecordingError
from foldloom.execution.kernels import spare_hooks, type_of
from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.cells.lookup import cell_of_module
from foldloom.tracing.functions.derivatives import missing_derivative, without_derivative
from foldloom.tracing.mutation.functional import changed_beside_the_first, changes_in_place
from foldloom.tracing.mutation.in_place import call_in_place, call_with_out, replace
from foldloom.tracing.mutation.outside import change_outside, is_outside
from foldloom.tracing.mutation.views import Borrowed, id_of_memory, is_strided, note_views
from foldloom.tracing.recording.at_once import all_at_once
from foldloom.tracing.recording.draws import drawn_where_called, draws_now, noise_between_layers
from foldloom.tracing.recording.handles import RecorderOfHandles, add_node_of
from foldloom.tracing.recording.keys import PLAIN_TYPES
from foldloom.tracing.recording.of_given import call_of_given
from foldloom.tracing.recording.signatures import KnownCall
from foldloom.tracing.rules.base import DRAWS, forms
from foldloom.tracing.rules.modules import draws, draws_between_layers, is_hooked
from foldloom.tracing.scope import unwatched
from foldloom.tracing.values.lazy_tensor import TENSOR, Given, LazyTensor, new_handle
from foldloom.tracing.weights import Derived, DerivedWeights


class ComposedRecorder(RecorderOfHandles, Protocol):
    """A recorder with the parts that a first call needs."""

    @property
    def derived(self) -> DerivedWeights: ...


# ---- Functions.


def first_call(
    recorder: ComposedRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, KnownCall | None]:
    """The result of any call; and what is known of calls of its signature, if it was recorded as one operation."""
    if kwargs.get("out") is not None:
        return call_with_out(recorder, function, args, kwargs), None
    if changes_in_place(function):
        return call_in_place(recorder, function, args, kwargs), None
    if kwargs.get("inplace"):
        target = args[0] if args else kwargs["input"]
        if is_outside(recorder, target):
            change_outside(recorder, function, args, kwargs, [target])
            return target, None
        changed = recorder.call_function(function, args, {**kwargs, "inplace": False})
        replace(recorder, target, changed)
        return target, None
    others = changed_beside_the_first(function, args, kwargs)
    if others and not recorder.guards.runs_later:
        return _lifted_all(recorder, change_outside(recorder, function, args, kwargs, others)), None
    if others and function not in LOOKUPS:
        raise RecordingError(
            f"`{function.__name__}` updates running statistics, one example after the other, and a recording that is kept runs in another "
            "order. Record the module after `eval()`, or run it with fl.batch, which keeps the order of the examples\n"
            f"  {recorder.where()}"
        )
    of_given = call_of_given(recorder, function, args, kwargs)
    if of_given is not NotImplemented:
        return of_given, None
    leaves: list[Any] = []
    nesting = flatten((args, kwargs), leaves)
    given, leaves = leaves, _with_tensors_lifted(recorder, function, leaves)
    if function in _CHOICES and args and type(args[0]) is LazyTensor and args[0].dtype is torch.uint8:
        # An old kind of mask. Torch takes it, but not where it only infers types.
        mask = recorder.call_function(torch.ne, (args[0], 0), {})
        return recorder.call_function(function, (mask, *args[1:]), kwargs), None
    if not any(type(leaf) is LazyTensor for leaf in leaves):
        made = recorder.derived.derive(
            function, nesting, leaves, recorder.signatures.mode_of_op, recorder.graph.example
        )
        return _handles_of_derived(recorder, function, args, kwargs, given, made), None
    return _record(recorder, function, args, kwargs, nesting, leaves, given)


def _record(
    recorder: ComposedRecorder,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    nesting: Any,
    leaves: list[Any],
    given: list[Any],
) -> tuple[Any, KnownCall | None]:
    """Record a call as one operation, if it can be: leaves are handles, weights and settings; ``given`` is what they were before."""
    handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
    if any(handle._type.ragged for handle in handles):
        as_a_whole = is_of_nothing(function, handles) or (function in DRAWS and not recorder.guards.runs_later)
        for_ragged = None if as_a_whole else recorder.signatures.of_ragged(function, nesting, leaves, handles)
        if for_ragged is not None:
            if _has_no_history(for_ragged, leaves):
                return _without_history(recorder, function, args, kwargs), None
            result = add_node_of(recorder, for_ragged, handles)
            return with_views_noted(for_ragged, function, args, kwargs, handles, result), for_ragged
        leaves = [recorder.dense(leaf) if type(leaf) is LazyTensor else leaf for leaf in leaves]
    operands = [leaf for leaf in leaves if type(leaf) is LazyTensor]
    known = recorder.signatures.of_function(function, nesting, leaves, operands)
    if known is None:
        return _with_values(recorder, function, nesting, given), None
    if not isinstance(known, KnownCall):
        return unflatten(known.nesting, iter(())), None
    if known.draws is not None and draws_now(recorder):
        drawn = drawn_where_called(recorder, function, args, kwargs, known.draws)
        if drawn is not NotImplemented:
            return drawn, None
        known.draws = None
    if _has_no_history(known, leaves):
        return _without_history(recorder, function, args, kwargs), None
    result = None if known.is_operand else add_node_of(recorder, known, operands)
    return with_views_noted(known, function, args, kwargs, handles, result), known


def _has_no_history(known: KnownCall, leaves: list[Any]) -> bool:
    """Whether a function without a derivative is called on values that need none."""
    if known.is_derivable or not torch.is_grad_enabled():
        return False
    return not any(leaf.requires_grad for leaf in leaves if isinstance(leaf, torch.Tensor))


def _without_history(recorder: ComposedRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call that is recorded apart from those that have a history, with which it might share a step."""
    with torch.no_grad():
        return recorder.call_function(function, args, kwargs)


def is_of_nothing(function: Any, handles: Sequence[LazyTensor]) -> bool:
    """Whether there are no rows, of which torch says at once that they have no largest."""
    return function in OF_SOMETHING and any(handle._type.ragged and not handle._value for handle in handles)


def with_views_noted(
    known: KnownCall, function: Any, args: tuple[Any, ...], kwargs: Any, handles: Sequence[LazyTensor], result: Any
) -> Any:
    """The result of a call, noted as views of an operand if it is; or that operand, if the call returns it."""
    if known.shares_with is None:
        return result
    base = handles[known.shares_with]
    if known.is_operand:
        return base
    note_views(function, args, kwargs, result, base)
    return result


def _handles_of_derived(
    recorder: ComposedRecorder,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: list[Any],
    made: Any,
) -> Any:
    """Derived weights as handles, which an example may change in place for itself. A view of a weight stays a tensor: to change it is to
    change the weight."""
    operands = [leaf for leaf in leaves if isinstance(leaf, (torch.Tensor, LazyTensor))]
    for operand in operands:
        if type(operand) is LazyTensor and operand._value is made:
            return operand
    found: list[Any] = []
    nesting = flatten(made, found)
    if not found or not all(map(recorder.derived.is_derived, found)):
        return made
    shares_with = recorder.derived.shares_with(found[0])
    base = None if shares_with is None else operands[shares_with]
    if base is not None and type(base) is not LazyTensor:
        return made
    example = recorder.graph.example
    result = unflatten(nesting, iter([new_handle(Derived(recorder, example), t, type_of(t), 0) for t in found]))
    if base is not None:
        note_views(function, args, kwargs, result, base)
    return result


def _with_tensors_lifted(recorder: ComposedRecorder, function: Any, leaves: list[Any]) -> list[Any]:
    """Weights stay as they are; other tensors and arrays become values of the current example."""
    lengths = {len(leaf._value) for leaf in leaves if type(leaf) is LazyTensor and leaf._type.ragged}
    result: list[Any] = []
    for leaf in leaves:
        if type(leaf) is LazyTensor and type(leaf._recorder) is Derived:
            result.append(leaf._value)
        elif type(leaf) is LazyTensor:
            rows = recorder.is_given(leaf) and _has_rows(leaf._value, function, lengths)
            result.append(recorder.own(leaf, ragged=rows))
        elif type(leaf) in PLAIN_TYPES:
            result.append(leaf)
        elif is_strided(leaf):
            is_shared = recorder.inputs.is_shared(leaf)
            result.append(leaf if is_shared else recorder.lift(leaf, ragged=_has_rows(leaf, function, lengths)))
        elif isinstance(leaf, np.ndarray):
            # A copy, because the array may change before it is read.
            result.append(recorder.lift(torch.from_numpy(leaf.copy()), ragged=False))
        else:
            result.append(leaf)
    return result


def with_given_taken(
    recorder: ComposedRecorder, function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Sequence[Any]:
    """The arguments of a call with given tensors as values of the example, where that is all that has to be done about them."""
    if changes_in_place(function) or function in LOOKUPS or kwargs.get("out") is not None or kwargs.get("inplace"):
        return args
    if changed_beside_the_first(function, args, kwargs):
        return args
    flat = [item for arg in args for item in (arg if type(arg) in (list, tuple) else (arg,))]
    kinds = set(map(type, flat))
    if LazyTensor not in kinds and torch.nn.Parameter not in kinds:
        return args
    if not kinds <= _TAKEN or Derived in [type(item._recorder) for item in flat if type(item) is LazyTensor]:
        return args
    if torch.Tensor in kinds:
        with unwatched():
            layouts = {item.layout for item in flat if type(item) is torch.Tensor}
        if layouts != {torch.strided}:
            return args
    taken = iter(_with_tensors_lifted(recorder, function, flat))
    return [type(arg)([next(taken) for _ in arg]) if type(arg) in (list, tuple) else next(taken) for arg in args]


def _has_rows(tensor: torch.Tensor, function: Any, lengths: set[int]) -> bool:
    """Whether a given tensor is best taken as ragged: beside ragged values of its length, or for a lookup."""
    with unwatched():
        shape = tensor.shape
    if not shape:
        return False
    return shape[0] in lengths or (function in LOOKUPS and len(shape) == 1) or function in OF_SEQUENCES


_TAKEN = PLAIN_TYPES | {LazyTensor, torch.Tensor, torch.nn.Parameter}
"""Types of arguments that `with_given_taken` knows."""

OF_SOMETHING = frozenset(forms("max min amax amin aminmax argmax argmin median nanmedian mode kthvalue topk logsumexp"))
"""Functions that raise where there is nothing."""

LOOKUPS = frozenset((torch.nn.functional.embedding, torch.embedding))
"""Functions that look up each element of a vector."""

_CHOICES = frozenset(forms("where"))

OF_SEQUENCES = frozenset((torch.nn.functional.multi_head_attention_forward,))
"""Functions of sequences of any length."""

# ---- Functions that need values.


def call_with_values(recorder: ComposedRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function at once, on the values of its arguments. The tensors that it returns are given to the recording."""
    leaves: list[Any] = []
    nesting = flatten((args, kwargs), leaves)
    return _with_values(recorder, function, nesting, leaves)


def _with_values(recorder: ComposedRecorder, function: Any, nesting: Any, leaves: list[Any]) -> Any:
    handles = [recorder.own(leaf) for leaf in leaves if type(leaf) is LazyTensor]
    others = [recorder.own(value) for leaf in leaves for value in _closed_over(leaf)]
    values = iter(recorder.demand([*handles, *others], TENSOR) if handles or others else ())
    arguments = [next(values) if type(leaf) is LazyTensor else leaf for leaf in leaves]
    users = [recorder.tensor_given_as(leaf) if type(leaf) is LazyTensor else leaf for leaf in leaves]
    args, kwargs = unflatten(nesting, iter(arguments))
    spare_hooks([leaf for leaf in arguments if isinstance(leaf, torch.Tensor)])
    with all_at_once(recorder.graph):
        result = function(*args, **kwargs)
    found: list[Any] = []
    shape = flatten(result, found)
    # What a module computes may have hooks, which must not be called in vain.
    is_of_torch = not isinstance(getattr(function, "__self__", None), torch.nn.Module)
    missing = missing_derivative(
        [leaf for leaf in found if is_of_torch and is_strided(leaf)], [leaf for leaf in arguments if is_strided(leaf)]
    )
    if missing is not None:
        found = [
            without_derivative(leaf, missing) if is_strided(leaf) and leaf.requires_grad else leaf for leaf in found
        ]
    memory: dict[int, type[Given]] = {id_of_memory(leaf): Borrowed for leaf in arguments if is_strided(leaf)}
    memory |= {id_of_memory(leaf): Given for leaf in users if leaf is not None and is_strided(leaf)}
    return unflatten(shape, iter([_lifted(recorder, item, memory) if is_strided(item) else item for item in found]))


def _closed_over(function: Any) -> Iterator[LazyTensor]:
    """The values around a function, which it will ask for when it is called: better waited for together."""
    for cell in getattr(function, "__closure__", None) or ():
        if cell != CellType() and type(cell.cell_contents) is LazyTensor:
            yield cell.cell_contents


def _lifted_all(recorder: ComposedRecorder, result: Any) -> Any:
    leaves: list[Any] = []
    nesting = flatten(result, leaves)
    return unflatten(
        nesting, iter([recorder.lift(leaf, ragged=False) if is_strided(leaf) else leaf for leaf in leaves])
    )


def _lifted(recorder: ComposedRecorder, tensor: torch.Tensor, memory: dict[int, type[Given]]) -> LazyTensor:
    handle: LazyTensor = recorder.lift(tensor, ragged=False)
    source = memory.get(id_of_memory(tensor))
    if source is not None:  # it shares memory with a tensor of the user's, or with the values of other examples
        handle._source = (source(recorder), tensor)
        recorder.inputs.note_handle(handle, tensor)
    return handle


# ---- Modules.


def first_module_call(
    recorder: ComposedRecorder, module: torch.nn.Module, args: tuple[Any, ...], key: tuple[Any, ...] | None = None
) -> Any:
    """A call of one of torch's modules. From then on it is known under the key, if its operands are taken as they are."""
    leaves: list[Any] = []
    nesting = flatten(args, leaves)
    changes_weight = getattr(module, "max_norm", None) is not None and not recorder.guards.runs_later
    is_drawing = draws(module) and draws_now(recorder)
    if is_drawing and not draws_between_layers(module):
        return NotImplemented
    if is_hooked(module) or changes_weight or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return NotImplemented
    twin = recorder.guards.twin_of(module)
    if twin is not module and not is_hooked(twin):
        return first_module_call(recorder, twin, args)
    cell = cell_of_module(module)
    handles = [
        recorder.own(leaf, ragged=None, cell=cell) if type(leaf) is LazyTensor else recorder.lift(leaf)
        for leaf in leaves
    ]
    if not cell.takes([handle._type for handle in handles]):
        handles = [recorder.dense(handle) for handle in handles]
        if not cell.takes([handle._type for handle in handles]):
            return NotImplemented
    if not recorder.guards.guard_module(module):
        return NotImplemented
    if is_drawing:
        if not handles[0]._type.ragged or torch.is_autocast_enabled():
            return NotImplemented
        handles.append(noise_between_layers(recorder, module, handles[0]))
        key = None
    types = tuple([handle._type for handle in handles])
    calls, key_of_cell = recorder.graph.calls, (cell, *types, nesting, ())
    known = calls.get(key_of_cell)
    if known is None:
        try:
            known = recorder.signatures.of_cell(key_of_cell, cell, types, nesting, ())
        except CellError:  # taken apart, it raises what torch raises
            return NotImplemented
    if key is not None and key[1:] == types:
        calls[key] = known
    return add_node_of(recorder, known, handles)
