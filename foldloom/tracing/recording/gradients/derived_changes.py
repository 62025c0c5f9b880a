"""In-place changes of what an example has computed from weights alone.

That is one tensor for all examples, and real torch operations on weights have computed it. Where one by one backward raises, because such
an operation has saved what the example changed later, the other examples' backward must not. So nodes of the example that use a spoiled tensor raise
(`flushing/overwritten.py`), and handles of spoiled tensors become values of the example, which raise too.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from foldloom.tracing import fast_path
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.changes import DerivedChange
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.mutation.views import root_of
from foldloom.tracing.scope import ActiveRecorder
from foldloom.tracing.values.lazy_tensor import LazyTensor
from foldloom.tracing.weights import Derived, DerivedWeights


class RecorderOfDerived(ActiveRecorder, Protocol):
    """A recorder with the parts that know derived weights."""

    @property
    def graph(self) -> GraphBuilder: ...
    @property
    def flushes(self) -> Flushes: ...
    @property
    def derived(self) -> DerivedWeights: ...


def derived_under(recorder: RecorderOfDerived, handle: LazyTensor) -> torch.Tensor | None:
    """The derived weight with a history that a handle stands for, or is a view of."""
    root = root_of(handle, through_data=False)
    if type(root._recorder) is not Derived or not recorder.has_gradients:
        return None
    return root._value if root._value.requires_grad else None


def note_change_of_derived(recorder: RecorderOfDerived, tensor: torch.Tensor, made: Any) -> None:
    """The example has changed a derived weight in place, to a value or to another derived weight."""
    graph = recorder.graph
    is_derived = isinstance(made, torch.Tensor)
    change = recorder.derived.change_of(tensor, graph.example, made if is_derived else None)
    if change is None:
        return
    noted = DerivedChange(change, graph.value_count, graph.example, -1 if is_derived else made)
    graph.changes.of_derived.append(noted)
    for handle in fast_path.handles_of(recorder):
        owner = handle._recorder
        is_ours = type(owner) is Derived and owner.example == graph.example
        if is_ours and recorder.derived.name_of(handle._value) in change.spoiled:
            _raise_at(recorder, handle)


def _raise_at(recorder: RecorderOfDerived, handle: LazyTensor) -> None:
    with torch.enable_grad():
        own = recorder.call_function(torch.clone, (recorder.own(handle),), None)
    handle._recorder, handle._value, handle._type, handle._depth = own._recorder, own._value, own._type, own._depth
    recorder.flushes.gradients.raise_at(own._value)
