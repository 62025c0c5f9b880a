"""Calls of functions that are not one known node: the first under a key, with ragged values, with views, with numbers that vary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foldloom.pytrees import flatten
from foldloom.tracing.mutation.spoiled import check_use
from foldloom.tracing.recording.first_calls import ComposedRecorder, first_call, is_of_nothing, with_views_noted
from foldloom.tracing.recording.handlers import ROW_HANDLERS
from foldloom.tracing.recording.handles import add_node_of
from foldloom.tracing.recording.keys import key_of
from foldloom.tracing.recording.numbers import Kinds
from foldloom.tracing.recording.signatures import KnownCall
from foldloom.tracing.values.lazy_tensor import LazyTensor

OF_DENSE = "of dense operands"
"""Stands for what is known of a call with ragged values that has to be made with dense ones."""


def with_dense(recorder: ComposedRecorder, args: Sequence[Any]) -> list[Any]:
    """Arguments whose ragged values have become dense."""

    def dense(item: Any) -> Any:
        return recorder.dense(item) if type(item) is LazyTensor else item

    return [type(arg)(map(dense, arg)) if type(arg) in (list, tuple) else dense(arg) for arg in args]


def numbers_among(args: Sequence[Any]) -> list[Any]:
    return [arg for arg in args if type(arg) is not LazyTensor]


def call_with_spoiled(
    recorder: ComposedRecorder, function: Any, args: Any, kwargs: dict[str, Any], spoiled: list[LazyTensor]
) -> Any:
    """A call that does not ask for the history of a view that has lost it takes it as any other value."""
    check_use(function, args, kwargs)
    before = [handle._recorder for handle in spoiled]
    for handle in spoiled:
        handle._recorder = recorder
    try:
        return recorder.call_function(function, args, kwargs)
    finally:
        for handle, owner in zip(spoiled, before, strict=True):
            if handle._recorder is recorder:
                handle._recorder = owner


def call_known(
    recorder: ComposedRecorder, known: KnownCall, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A known call with ragged values, or one that returns a view."""
    leaves: list[Any] = []
    flatten((args, kwargs), leaves)
    handles = [leaf for leaf in leaves if type(leaf) is LazyTensor]
    lengths = {len(handle._value) for handle in handles if handle._type.ragged}
    if len(lengths) > 1 or (0 in lengths and is_of_nothing(function, handles)):
        return first_call(recorder, function, args, kwargs)[0]
    result = None if known.is_operand else add_node_of(recorder, known, handles)
    return with_views_noted(known, function, args, kwargs, handles, result)


def call_unknown(
    recorder: ComposedRecorder,
    key: tuple[Any, ...],
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_ragged: bool,
) -> Any:
    """The first call under a key, which is known from then on if the call is recorded as one operation."""
    calls = recorder.graph.calls  # of this mode: while the call waits, another example may set another
    handler = ROW_HANDLERS.get(function) if is_ragged else None
    if handler is not None:
        result = handler(recorder, args, kwargs)
        if result is not NotImplemented:
            return result
    result, known = first_call(recorder, function, args, kwargs)
    if known is not None and known.is_derivable:
        if known.is_ragged is is_ragged:
            calls[key] = known
        elif known.shares_with is None:
            calls[key] = OF_DENSE
    return result


def call_with_number(recorder: ComposedRecorder, kinds: Kinds, function: Any, args: Sequence[Any]) -> Any:
    """A call whose number is an operand. Such calls are known by the kind of the number, from then on and to C too."""
    operands = [arg if type(arg) is LazyTensor else recorder.number(arg) for arg in args]
    calls = recorder.graph.calls
    result = recorder.call_function(function, operands, None)
    if kinds not in calls:
        found = key_of(recorder, function, operands, {})
        known = None if found is None else calls.get(found[0])
        if isinstance(known, KnownCall) and known.shares_with is None:
            calls[kinds] = known
    return result
