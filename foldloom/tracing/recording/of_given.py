"""Numbers that follow from given whole numbers alone: masks, places, lengths. They are computed at once, for the one example.

There is little to compute, and nothing to differentiate. Recorded, such calls would hardly share steps, because their shapes are those of
sentences; and whoever asks for their values would wait. What is a view of a given tensor is given in turn, as if the example had consisted
of it; what is new is a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from foldloom.pytrees import flatten, unflatten
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.mutation.functional import changes_in_place
from foldloom.tracing.mutation.views import id_of_memory, is_strided
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.scope import ActiveRecorder, recording_paused
from foldloom.tracing.values.lazy_tensor import LazyTensor


class RecorderOfGiven(ActiveRecorder, Protocol):
    """A recorder with the parts that know given tensors."""

    @property
    def inputs(self) -> Inputs: ...
    @property
    def flushes(self) -> Flushes: ...
    def give(self, tensor: torch.Tensor) -> LazyTensor: ...


def call_of_given(recorder: RecorderOfGiven, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The result of a call whose operands are all given, or follow from what was given; NotImplemented if it is to be recorded."""
    if function in DRAWS or changes_in_place(function) or not _IN_PLACE.isdisjoint(kwargs):
        return NotImplemented
    leaves: list[Any] = []
    nesting = flatten((tuple(args), kwargs), leaves)
    if not _is_worth_it(recorder, leaves):
        return NotImplemented
    operands = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    numbers = [_numbers_of(recorder, operand) for operand in operands]
    if any(found is None for found in numbers):
        return NotImplemented
    tensors = iter(numbers)
    filled = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    given_args, given_kwargs = unflatten(nesting, iter(filled))
    with recording_paused():
        result = function(*given_args, **given_kwargs)
    found: list[Any] = []
    shape = flatten(result, found)
    if not found or not all(type(item) is torch.Tensor and is_strided(item) for item in found):
        return NotImplemented
    results = [_taken_in(recorder, item, operands, numbers) for item in found]
    return NotImplemented if any(item is None for item in results) else unflatten(shape, iter(results))


_IN_PLACE = frozenset(("out", "inplace"))


def _is_worth_it(recorder: RecorderOfGiven, leaves: Sequence[Any]) -> bool:
    """Whether it is a call of whole numbers; of several of them, or of one that is no input yet. A recording that is kept, or captured,
    may be used for others."""
    if recorder.guards.runs_later or recorder.flushes.refuses is not None:
        return False
    has_several = has_values = False
    for leaf in leaves:
        if type(leaf) is LazyTensor:
            if not leaf._type.dtype.startswith(("int", "uint", "bool")):
                return False
            has_values = True
            has_several = has_several or bool(leaf._type.shape) or recorder.is_given(leaf)
        elif type(leaf) is torch.Tensor:
            if leaf.is_floating_point() or leaf.is_complex() or recorder.inputs.is_shared(leaf) or not is_strided(leaf):
                return False
        elif not isinstance(leaf, _SETTINGS):
            return False
    return has_values and has_several


_SETTINGS = (int, float, str, type(None), slice, type(...), torch.dtype, torch.device)


def _numbers_of(recorder: RecorderOfGiven, operand: Any) -> Any:
    if type(operand) is not LazyTensor:
        return operand
    given: torch.Tensor | None = recorder.tensor_given_as(operand)
    if given is not None or operand._recorder is not recorder or operand._type.ragged:
        return given
    reader = recorder.flushes.reader
    return reader.read(operand._value) if reader.may_follow(operand._value) else None


def _taken_in(
    recorder: RecorderOfGiven,
    result: torch.Tensor,
    operands: Sequence[Any],
    numbers: Sequence[torch.Tensor | None],
) -> Any:
    """A result as the program sees it; None for a view of a value, which is recorded, so that changes of either reach the other."""
    for operand, found in zip(operands, numbers, strict=True):
        if result is found:
            return operand
        if found is not None and id_of_memory(result) == id_of_memory(found):
            if type(operand) is not LazyTensor:
                return result
            return None if recorder.tensor_given_as(operand) is None else recorder.give(result)
    return recorder.lift(result, ragged=False)
