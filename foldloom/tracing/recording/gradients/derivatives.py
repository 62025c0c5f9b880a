"""Derivatives that a program takes itself: `torch.autograd.grad` and `backward`.

What is differentiated is demanded, and autograd runs at once, through the arenas. All examples share its graph, so the graph is
always retained. The gradient of a value that is not a tensor of the user's is read where the exchange that wrote it hands it on.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.autograd.graph import GradientEdge

from foldloom.errors import ArgumentError
from foldloom.pytrees import map_leaves
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.recording.at_once import all_at_once
from foldloom.tracing.recording.gradients.hooks import values_of
from foldloom.tracing.scope import ActiveRecorder
from foldloom.tracing.values.lazy_tensor import DETACHED, TENSOR, LazyTensor
from foldloom.tracing.weights import Derived

_GRAD = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in (
            ("outputs", None), ("inputs", None), ("grad_outputs", None), ("retain_graph", None), ("create_graph", False),
            ("only_inputs", True), ("allow_unused", None), ("is_grads_batched", False), ("materialize_grads", False),
        )
    ]
)  # fmt: skip
_BACKWARD = inspect.Signature(
    [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for name, default in (
            ("tensors", None), ("grad_tensors", None), ("retain_graph", None), ("create_graph", False),
            ("grad_variables", None), ("inputs", None),
        )
    ]
)  # fmt: skip


class DifferentiatingRecorder(ActiveRecorder, Protocol):
    """A recorder with the parts that derivatives need."""

    @property
    def graph(self) -> GraphBuilder: ...
    @property
    def flushes(self) -> Flushes: ...


def grad(recorder: DifferentiatingRecorder, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.autograd.grad`."""
    given = _GRAD.bind(*args, **kwargs)
    given.apply_defaults()
    wishes = given.arguments
    inputs = _as_sequence(wishes["inputs"])
    _compute(recorder, inputs)
    outputs, seeds = _computed(recorder, [_as_sequence(wishes["outputs"]), wishes["grad_outputs"]])
    recorder.flushes.watch_gradients()
    captures = [_Capture(recorder, item) for item in inputs]
    try:
        with all_at_once(recorder.graph):
            found = torch.autograd.grad(
                outputs,
                [capture.source for capture in captures],
                seeds,
                retain_graph=True,
                create_graph=wishes["create_graph"],
                allow_unused=True,
                is_grads_batched=wishes["is_grads_batched"],
            )
            grads = [capture.gradient(item) for capture, item in zip(captures, found, strict=True)]
            grads = _without_gaps(grads, inputs, wishes["allow_unused"], wishes["materialize_grads"])
    finally:
        for capture in captures:
            capture.end()
    return tuple([None if item is None else recorder.lift(item, ragged=False) for item in grads])


def backward(recorder: DifferentiatingRecorder, args: Any, kwargs: dict[str, Any]) -> None:
    """`torch.autograd.backward`, and the method of tensors."""
    if "gradient" in kwargs:
        kwargs = {**kwargs, "grad_tensors": kwargs["gradient"]}
        del kwargs["gradient"]
    given = _BACKWARD.bind(*args, **kwargs)
    given.apply_defaults()
    wishes = given.arguments
    inputs = wishes["inputs"]
    sources = None if inputs is None else [_tensor_of(recorder, item) for item in _as_sequence(inputs)]
    tensors, seeds = _computed(recorder, [_as_sequence(wishes["tensors"]), wishes["grad_tensors"]])
    recorder.flushes.watch_gradients()
    with all_at_once(recorder.graph):
        torch.autograd.backward(tensors, seeds, retain_graph=True, create_graph=wishes["create_graph"], inputs=sources)


def _as_sequence(items: Any) -> Sequence[Any]:
    return [items] if isinstance(items, (torch.Tensor, GradientEdge)) else list(items)


def _compute(recorder: DifferentiatingRecorder, items: Sequence[Any]) -> None:
    values = [item for item in items if type(item) is LazyTensor and _users_tensor(recorder, item) is None]
    if values:
        recorder.demand(values, DETACHED)


def _computed(recorder: DifferentiatingRecorder, items: Any) -> Any:
    """The same with tensors in the place of handles."""
    handles: dict[int, LazyTensor] = {}

    def note(leaf: Any) -> Any:
        if type(leaf) is LazyTensor:
            handles[id(leaf)] = recorder.own(leaf)
        return leaf

    map_leaves(items, note)
    tensors = dict(zip(handles, recorder.demand(list(handles.values()), TENSOR) if handles else (), strict=True))
    return map_leaves(items, lambda leaf: tensors.get(id(leaf), leaf))


def _users_tensor(recorder: DifferentiatingRecorder, handle: LazyTensor) -> torch.Tensor | None:
    """A tensor that is there, in which the gradient of a handle arrives."""
    if type(handle._recorder) is Derived:
        return handle._value  # type: ignore[no-any-return]
    return recorder.tensor_given_as(handle)


def _tensor_of(recorder: DifferentiatingRecorder, item: Any) -> Any:
    tensor = _users_tensor(recorder, item) if type(item) is LazyTensor else item
    if tensor is None:
        raise ArgumentError(
            "`backward(inputs=...)` of a value that is no leaf. Take its gradient with `torch.autograd.grad`\n"
            f"  {recorder.where()}"
        )
    return tensor


class _Capture:
    """One of the tensors for which gradients are asked."""

    def __init__(self, recorder: DifferentiatingRecorder, item: Any) -> None:
        self._found: torch.Tensor | None = None
        self._end = None
        self.source: Any = item
        """What autograd is asked for in its place."""
        if type(item) is not LazyTensor:
            return
        self.source = _users_tensor(recorder, item)
        if self.source is None:
            values = values_of(item)
            self.source = recorder.flushes.computed.edge_into(values[0])
            if self.source is None or not item.requires_grad:
                raise RuntimeError("One of the differentiated Tensors does not require grad")
            self._end = recorder.flushes.computed.capture(values, item._type.ragged, self._capture)

    def _capture(self, grad: torch.Tensor) -> None:
        self._found = grad

    def gradient(self, found: torch.Tensor | None) -> torch.Tensor | None:
        return found if self._end is None else self._found

    def end(self) -> None:
        if self._end is not None:
            self._end()


def _without_gaps(
    grads: Sequence[torch.Tensor | None], inputs: Sequence[Any], allow_unused: bool | None, materialize: bool
) -> list[torch.Tensor | None]:
    if materialize:
        zeros = [torch.zeros(item.shape, dtype=item.dtype) for item in inputs]
        return [zero if item is None else item for item, zero in zip(grads, zeros, strict=True)]
    for number, item in enumerate(grads):
        if item is None and not allow_unused:
            raise RuntimeError(
                f"The differentiated Tensor at index {number} appears to not have been used in the graph. Set allow_unused=True if this is "
                "the desired behavior."
            )
    return list(grads)
