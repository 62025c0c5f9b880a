"""Values that are there: given, computed by an earlier flush, or following from what was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from foldloom.execution.engine import Session
from foldloom.execution.failures import Failure
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.columns import kept
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.flushing.gradient_calls import GradientCall
from foldloom.tracing.flushing.pending import Pending
from foldloom.tracing.flushing.reading import GivenReader
from foldloom.tracing.scope import recording_paused, unwatched
from foldloom.tracing.values.lazy_tensor import NUMBER, TENSOR, Form, LazyTensor


class Computed:
    """Finds values that need no flush any more, in the form in which they are demanded."""

    def __init__(self, graph: GraphBuilder, inputs: Inputs, pending: Pending, reader: GivenReader) -> None:
        self._graph = graph
        self._inputs = inputs
        self._pending = pending
        self._reader = reader
        self.session: Session | None = None
        """What computes; None before the first flush."""
        self._tensor_of_value: dict[int, torch.Tensor] = {}
        """Values that were demanded as tensors with gradients."""
        self._numbers: dict[int, Any] = {}
        """Values that were demanded as numbers and computed."""

    def begin(self, scheduler: Scheduler) -> Session:
        """Before the first flush."""
        self.session = Session(scheduler, self._inputs.device)
        return self.session

    @property
    def _begun(self) -> Session:
        assert self.session is not None, "what has been computed was computed by a session"
        return self.session

    @property
    def size(self) -> int:
        """The memory of what has been computed, in bytes."""
        return 0 if self.session is None else self.session.size

    # ---- Reading.

    def number(self, value: int) -> Any:
        """A value that was demanded as a number before; None if it was not."""
        return self._numbers.get(value)

    def is_there(self, value: int) -> bool:
        """Whether the numbers of a value can be had without a flush."""
        return (
            self._pending.number_of(value) >= 0
            or value in self._graph.number_of_value
            or self._tensor_of(value) is not None
            or self._reader.read(value) is not None
        )

    def missing(self, handle: LazyTensor, form: Form) -> list[int]:
        """The values of a handle that must be computed."""
        if not handle._type.ragged:
            value = handle._value
            is_there = self._tensor_of(value) is not None if form is TENSOR else self.is_there(value)
            return [] if is_there else [value]
        not_given = [value for value in handle._value if self._tensor_of(value) is None]
        if form is TENSOR or not not_given:
            return not_given
        missing = [value for value in handle._value if self._pending.number_of(value) < 0]
        return [] if self._rows_given(handle) is not None else missing

    def read(self, handle: LazyTensor, form: Form) -> Any:
        """What a handle stands for, of which no value is missing."""
        return self._rows(handle, form) if handle._type.ragged else self._value(handle, form)

    def _tensor_of(self, value: int) -> torch.Tensor | None:
        """A value that is a tensor already, given or demanded before."""
        given = self._inputs.tensor_of(value)
        return self._tensor_of_value.get(value) if given is None else given

    def _rows_given(self, handle: LazyTensor) -> list[torch.Tensor] | None:
        """The rows of a ragged value, if all of them follow from what was given."""
        rows: list[torch.Tensor] = []
        for value in handle._value:
            row = self._reader.read(value)
            if row is None:
                return None
            rows.append(row)
        return rows

    def _value(self, handle: LazyTensor, form: Form) -> Any:
        value = handle._value
        tensor = self._tensor_of(value)
        if form is TENSOR:
            return tensor
        if tensor is not None:
            return tensor.detach().item() if form is NUMBER else tensor.detach()
        number = self._graph.number_of_value.get(value)
        if number is not None:
            if form is NUMBER:
                return number
            with recording_paused():
                return torch.tensor(number, dtype=handle.dtype)
        computed = self._pending.number_of(value)
        if computed < 0:
            given = self._reader.read(value)
            assert given is not None, "what is not computed was given"
            with unwatched():
                return given.item() if form is NUMBER else given
        with unwatched():
            return self._begun.number(computed) if form is NUMBER else self._begun.row(computed)

    def _rows(self, handle: LazyTensor, form: Form) -> Any:
        tensors = [tensor for value in handle._value if (tensor := self._tensor_of(value)) is not None]
        if len(tensors) < len(handle._value) and form is not TENSOR:
            tensors = self._rows_given(handle) or []
        if len(tensors) == len(handle._value):
            with recording_paused():
                rows = torch.stack(tensors) if tensors else torch.empty(handle.shape, dtype=handle.dtype)
                rows = rows if form is TENSOR else rows.detach()
        else:
            with unwatched():
                rows = self._begun.rows([self._pending.number_of(value) for value in handle._value])
        return rows.item() if form is NUMBER else rows

    # ---- What could not be computed.

    def failure_at(self, value: int) -> Failure | None:
        """The error of the operation that should have computed a value that has been flushed."""
        session = self._begun
        return session.failures.of(*session.place_of(self._pending.number_of(value)))

    def failure_of(self, handle: LazyTensor) -> Failure | None:
        if self.session is None or not self.session.failures:
            return None
        for value in handle._value if handle._type.ragged else (handle._value,):
            failure = None if self._pending.number_of(value) < 0 else self.failure_at(value)
            if failure is not None:
                return failure
        return None

    # ---- After a flush.

    def add_tensor(self, value: int, tensor: torch.Tensor) -> None:
        """A value that was demanded with its gradient."""
        self._tensor_of_value[value] = tensor

    def read_numbers(self, values: Sequence[int]) -> None:
        """These values were demanded as numbers. To read them together is faster."""
        with unwatched():
            found = self._begun.numbers(self._pending.numbers_of([*values]))
        self._numbers.update(zip(values, found, strict=True))

    def note_change(self, values: Sequence[int]) -> None:
        """What these values stand for is changed in place. What was computed with them at once has saved tensors."""
        for value in values:
            tensor = self._tensor_of_value.get(value)
            if tensor is not None and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)

    def keep(self, moved: Mapping[int, int]) -> None:
        """Of all values keep these, under other numbers. All have been computed, and there are no gradients."""
        self._begun.keep(self._pending.numbers_of([*moved]))
        self._pending.keep(len(moved))
        self._tensor_of_value = kept(self._tensor_of_value, moved)
        self._numbers = kept(self._numbers, moved)

    # ---- Gradients.

    def capture(self, values: tuple[int, ...], is_ragged: bool, call: GradientCall) -> Callable[[], None]:
        """Have this called with the gradient of a value that is computed, until what is returned is called."""
        return self._begun.add_hook([self._pending.number_of(value) for value in values], is_ragged, call)

    def edge_into(self, value: int) -> GradientEdge | None:
        """Where in autograd's graph the gradient of a computed value goes; None if it has no history."""
        return self._begun.edge_into(self._pending.number_of(value))
