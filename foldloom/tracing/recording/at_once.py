"""What runs at once inside a program, and what it calls back: a transform of `torch.func`, say, or a module with hooks.

Nothing is recorded meanwhile. A value of the recording that such code meets is demanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from foldloom.errors import ArgumentError
from foldloom.torch_private import no_transforms
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.mutation.functional import IN_PLACE_OPERATORS
from foldloom.tracing.recording.signatures import Signatures
from foldloom.tracing.scope import ActiveRecorder, computing, in_mode, recording_into
from foldloom.tracing.values.lazy_tensor import Form, LazyTensor, computed


class WaitingRecorder(ActiveRecorder, Protocol):
    """A recorder with the parts that a demand needs."""

    @property
    def flushes(self) -> Flushes: ...
    @property
    def signatures(self) -> Signatures: ...
    @property
    def fibers(self) -> object: ...


@contextmanager
def all_at_once(graph: GraphBuilder) -> Iterator[None]:
    """What is called within runs at once, also on values of the recording."""
    grad, graph.grad = (
        graph.grad,
        None,
    )  # a mode that torch is never in, so that the fast path leaves all calls to Python
    try:
        with computing():
            yield
    finally:
        graph.grad = grad


def call_at_once(recorder: ActiveRecorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of values, called by what runs at once."""
    name = getattr(function, "__name__", "")
    if function in IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__")):
        raise changed_at_once(recorder, name)
    return computed(function, args, kwargs)


def changed_at_once(recorder: ActiveRecorder, name: str) -> ArgumentError:
    return ArgumentError(
        f"a value is changed in place (`{name}`) by a function that runs at once (under a transform of torch.func, say), which the "
        f"recording would not see. Change a copy: `x = x.clone()`\n  {recorder.where()}"
    )


def demand_at_once(recorder: WaitingRecorder, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
    """What handles stand for, asked for by what runs at once. Other examples must not go on under the transform that may be on, so this
    one waits for nobody: all that has been recorded is computed."""
    flushes, waits = recorder.flushes, recorder.flushes.on_demand
    with no_transforms(), recording_into(recorder), in_mode(recorder.signatures.base_mode):
        if recorder.fibers is not None:
            flushes.on_demand = lambda _: flushes.flush_all()
        try:
            return flushes.demand(handles, form)
        finally:
            flushes.on_demand = waits
