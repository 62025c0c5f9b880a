"""Tensors of the user's that examples change in place: who else sees them, in which order, and what has to run before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from foldloom.errors import SharedStateError
from foldloom.execution.kernels import describe
from foldloom.pytrees import contents
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.mutation.guards import Guards, memory_of
from foldloom.tracing.mutation.in_place import read_anew
from foldloom.tracing.scope import ActiveRecorder, current_mode, in_mode, unwatched, user_line
from foldloom.tracing.weights import DerivedWeights

_MOST_OBJECTS = 5000


class Outside:
    """Changes of tensors that were made outside of a batch."""

    def __init__(
        self, graph: GraphBuilder, inputs: Inputs, guards: Guards, derived: DerivedWeights, flushes: Flushes
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._guards = guards
        self._derived = derived
        self._flushes = flushes
        self._mode = current_mode()
        self.fibers: Fibers | None = None
        self.examples: Mapping[int, Any] = {}
        """What the examples of the batch consist of."""
        self._owners: dict[int, list[tuple[int, int, int]]] | None = None
        """By memory: an example that was given a part of it, and where the part begins and ends."""

    def forget_owners(self) -> None:
        """There are other examples now."""
        self._owners = None

    # ---- Before a change.

    def wait_for_turn(self, tensors: Sequence[torch.Tensor]) -> None:
        """Returns when all earlier examples are done that might see a change of these, or make one. Later ones do not begin before this
        example is done."""
        fibers = self.fibers
        if fibers is None or not any(map(self._is_shared, tensors)):
            return
        example = self._graph.example
        if not fibers.in_order():
            raise SharedStateError(
                f"example {example} changes {describe(tensors[0])} in place, which other examples see too. Some that come later in a loop "
                "are under way, and may have read it already. Change it before the first value is waited for, change a copy "
                f"(`x = x.clone()`), or run the examples one by one\n  at {user_line()}"
            )
        self._graph.begin(example)

    def _is_shared(self, tensor: torch.Tensor) -> bool:
        """Whether another example can see a tensor."""
        assert self.fibers is not None
        memory = memory_of(tensor)
        if memory is None or self.fibers.is_nested() or memory in self.fibers.shared_memory():
            return True
        if self._owners is None:
            self._owners = {}
            for example, args in self.examples.items():
                for given in _tensors_in(args):
                    self._owners.setdefault(memory_of(given) or 0, []).append((example, *_extent(given)))
        start, end = _extent(tensor)
        owners = self._owners.get(memory, ())
        return any(owner != self._graph.example and first < end and start < last for owner, first, last in owners)

    def run_readers(self, tensors: Sequence[torch.Tensor]) -> None:
        """Run what has been recorded, if it reads these tensors."""
        memory = {memory_of(tensor) for tensor in tensors}
        if memory & self._inputs.memory or self._guards.guards_any(memory):
            with in_mode(self._mode):
                self._flushes.flush_all()

    # ---- After it.

    def note_changed(self, recorder: ActiveRecorder, tensors: Sequence[torch.Tensor]) -> None:
        """What is known of these tensors does not hold any longer."""
        memory = {memory_of(tensor) for tensor in tensors}
        if self._guards.refresh(memory):
            self._derived.forget()
            self._flushes.forget_kernels()
        if recorder.has_gradients:
            for values, is_ragged in self._inputs.values_in(memory):
                self._graph.note_change_of_given(values, is_ragged)
        for handle, tensor in self._inputs.handles_given():
            if memory_of(tensor) in memory and recorder.tensor_given_as(handle) is tensor:
                read_anew(recorder, handle, tensor)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first and last address of a tensor."""
    with unwatched():
        start = tensor.data_ptr()
        if not tensor.numel():
            return start, start
        places = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        return start, start + (sum(places) + 1) * tensor.element_size()


def _tensors_in(args: Any) -> Iterator[torch.Tensor]:
    """The tensors in what an example consists of."""
    for value in contents([args], most=_MOST_OBJECTS):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield value
