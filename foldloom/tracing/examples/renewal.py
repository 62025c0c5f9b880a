"""Forgetting the values that nobody can reach any more, in a batch that does not end.

A program holds its values by handles, and a value that it has let go of has none. So once everything that was recorded has been computed, nothing
but the values of the handles that are left can be asked for again. They get new numbers, from 0 on, and their rows move into arenas of their own; what
else was known of values is forgotten. That costs as much as there are values in use, however many there were.

Values with gradients cannot be moved: autograd has noted where they are.
"""

from __future__ import annotations

from typing import Any

from foldloom.tracing import fast_path
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.values.lazy_tensor import LazyTensor


def renew(recorder: Recorder) -> bool:
    """Forget what cannot be reached. All that was recorded has been computed, and nobody records meanwhile. False if there are gradients, and
    nothing was forgotten."""
    flushes, graph = recorder.flushes, recorder.graph
    handles = [handle for handle in fast_path.handles_of(recorder) if handle._recorder is recorder]
    held = sorted({value for handle in handles for value in _values_of(handle)}.union(*flushes.pinned))
    if recorder.has_spoiled or flushes.gradients or flushes.gradients.retained or any(graph.requires_grad(held)):
        return False
    moved = {value: number for number, value in enumerate(held)}
    flushes.keep(moved)
    graph.keep(moved)
    recorder.inputs.keep(moved)
    for handle in handles:
        handle._value = _moved(handle._value, moved)
    return True


def _values_of(handle: LazyTensor) -> Any:
    return handle._value if handle._type.ragged else (handle._value,)


def _moved(value: Any, moved: dict[int, int]) -> Any:
    """Rows that stand in a row do so afterwards, because all of them are kept and values keep their order."""
    if isinstance(value, int):
        return moved[value]
    if isinstance(value, range) and value.step == 1 and len(value):
        return range(moved[value.start], moved[value.start] + len(value))
    return [moved[row] for row in value]
