"""Values on demand: a recording that is run part by part.

Whoever needs a value that is not computed yet calls `on_demand`, which lets others go on first or not; in the end `advance` runs
what all of them wait for, as one part of the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Any

import torch

from foldloom.errors import ArgumentError, RecordingError
from foldloom.execution.engine import Planned, Session
from foldloom.execution.observer import observing
from foldloom.execution.run import Outputs
from foldloom.graph import Op, Type
from foldloom.graph.recording import Recording
from foldloom.planning.schedulers import ByDepth, Scheduler
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.flush import Examples, Parts
from foldloom.tracing.functions.kernels import kernels_of
from foldloom.tracing.inputs import Inputs
from foldloom.tracing.lazy_tensor import LazyTensor
from foldloom.tracing.mutation.guards import Unchanged
from foldloom.tracing.scope import recording_paused, unwatched
from foldloom.tracing.weights import Weights


class Progress(Inputs):
    """A recording under way: how far it has been computed, and what its examples return."""

    def __init__(self, scheduler: Scheduler | None, owner: object) -> None:
        super().__init__()
        self.on_demand: Callable[[Hashable], None] | None = None
        self.fibers: Fibers | None = None
        self.session: Session | None = None
        self._scheduler = scheduler or ByDepth()
        self._owner = owner
        self._weights: Weights | None = None
        self._kernel_of_op: dict[Op, Any] = {}
        self._is_over = False
        self._parts = Parts()
        self.has_failed = False
        """Whether a part could not be computed."""
        self._asked: defaultdict[Hashable, list[int]] = defaultdict(list)
        """Values that somebody waits for, by their types: who waits for a value of one type is taken to wait for one kind of thing."""
        self._asked_with_gradients: defaultdict[Hashable, list[int]] = defaultdict(list)
        """Those of them whose gradients are to flow on."""
        self._results: list[Any] = []
        self._segments: list[tuple[int, int]] = [(0, 0)]

    @property
    def is_over(self) -> bool:
        """Whether what handles stand for can be computed at once."""
        return self._is_over

    def number_of(self, handle: LazyTensor) -> Any:
        if not handle._type.ragged and handle._value in self._number_of_input:
            return self._number_of_input[handle._value]
        if handle._type.shape and handle.numel() != 1:
            raise RuntimeError(f"a Tensor with {handle.numel()} elements cannot be converted to Scalar")
        if handle._type.ragged or handle._value in self._value_of_input:
            return self.plain_value_of(handle).item()
        number = self._computed(handle)
        with unwatched():
            return self._session.number(number)

    def plain_value_of(self, handle: LazyTensor) -> torch.Tensor:
        """The value, without its gradient."""
        if handle._type.ragged:
            return self._plain_rows_of(handle)
        given = self._value_of_input.get(handle._value)
        if given is not None:
            return given.detach()
        if handle._value in self._number_of_input:
            with recording_paused():
                return torch.tensor(self._number_of_input[handle._value], dtype=handle.dtype)
        number = self._computed(handle)
        with unwatched():
            return self._session.row(number)

    def _plain_rows_of(self, handle: LazyTensor) -> torch.Tensor:
        given = [self._value_of_input[value] for value in handle._value if value in self._value_of_input]
        if len(given) == len(handle._value):
            with recording_paused():
                return torch.stack(given).detach() if given else torch.empty(handle.shape, dtype=handle.dtype)
        missing = [value for value in handle._value if self._parts.number_of(value) < 0]
        if missing:
            self._demand(handle._type, missing)
        numbers = [self._parts.number_of(value) for value in handle._value]
        with unwatched():
            return self._session.rows(numbers)

    def _computed(self, handle: LazyTensor) -> int:
        """The number of a value in the order of computing, which it has when this returns."""
        number = self._parts.number_of(handle._value)
        if number < 0:
            self._demand(handle._type, [handle._value])
            number = self._parts.number_of(handle._value)
        return number

    def value_of(self, handle: LazyTensor) -> torch.Tensor:
        return self.values_of([handle])[0]

    def values_of(self, handles: Sequence[LazyTensor]) -> list[torch.Tensor]:
        """The values, with their gradients."""
        numbers = [n for h in handles for n in (h._value if h._type.ragged else (h._value,))]
        missing = [number for number in numbers if number not in self._value_of_input]
        if missing:
            self._asked_with_gradients[handles[0]._type] += missing
            self._demand(handles[0]._type, missing)
        with recording_paused():
            return [
                torch.stack([self._value_of_input[value] for value in handle._value])
                if handle._type.ragged and len(handle._value)
                else torch.empty(handle.shape, dtype=handle.dtype)
                if handle._type.ragged
                else self._value_of_input[handle._value]
                for handle in handles
            ]

    def backward(self, handle: LazyTensor, args: Any, kwargs: Any) -> None:
        if not self.is_over:
            raise ArgumentError(
                "`backward` inside the function given to fl.batch, or inside `with fl.batching()`, would run before everything is "
                f"recorded. Return the loss and call `backward` on what fl.batch returns\n  {self.where()}"
            )
        self.value_of(handle).backward(*args, **kwargs)

    def _demand(self, kind: Type, values: Sequence[int]) -> None:
        if observing.observer is not None:
            observing.observer.demanded()
        self._asked[kind] += values
        if self.on_demand is None:
            self.advance_all()
            return
        example = self.example
        self.on_demand(kind)
        self.begin(example)

    def begin(self, example: int) -> None:
        """What is recorded next belongs to this example."""
        self.example = example
        self._segments.append((example, len(self.op_of_node)))

    def advance(self, kinds: Set[Hashable]) -> None:
        """Compute what has been asked for of these kinds."""
        self._advance(kinds, [value for kind in kinds for value in self._asked[kind]])

    def advance_all(self) -> None:
        """Compute everything that has been recorded."""
        self._advance(set(self._asked), None)

    def _advance(self, kinds: Set[Hashable], roots: list[int] | None) -> None:
        wanted = list(dict.fromkeys([value for kind in kinds for value in self._asked_with_gradients.pop(kind, ())]))
        for kind in kinds:
            self._asked.pop(kind, None)
        self.outputs = wanted
        planned, blocks = self._run_part((), roots, apart=True)
        if wanted:
            places = zip(planned.plan.block_of_output.tolist(), planned.plan.row_of_output.tolist(), strict=True)
            self._value_of_input.update(zip(wanted, [blocks[block][row] for block, row in places], strict=True))

    def _run_part(self, results: Sequence[Any], roots: Sequence[int] | None, *, apart: bool) -> tuple[Planned, Outputs]:
        if self.has_failed:
            raise RecordingError(
                "a part of this batch has failed, and what is asked for now was to be computed with it or after it. Values that had "
                "been computed before can be had; for others begin the batch anew"
            )
        if self.session is None:
            self.session = Session(self._scheduler, self.device)
        examples = self._examples()
        self._segments = [(self.example, 0)]
        new = self.take()
        part = self._parts.cut(
            self.ops, new, examples, self.value_count, roots, self.session.arena_of_value, self.session.earlier_ops
        )
        recording = Recording(part.graph, new.inputs, tuple(results))
        if observing.observer is not None:
            observing.observer.recorded(recording, new.op_of_node, part.nodes)
        self._column_of_number, self._input_of_tensor = {}, {}
        try:
            with recording_paused():
                planned, blocks = self._run(recording, part.earlier, apart=apart)
        except BaseException:
            self.has_failed = True
            raise
        self._parts.ran(part)
        return planned, blocks

    @property
    def _session(self) -> Session:
        assert self.session is not None, "what has been computed was computed by a session"
        return self.session

    def _run(self, part: Recording, earlier: Any, *, apart: bool) -> tuple[Planned, Outputs]:
        if self._weights is None:
            self._weights = Weights(self._owner)
        for derivation, tensor in self._derived.items():
            self._weights.remember(derivation, tensor)
        new = [op for op in part.graph.ops if not op.is_input and op not in self._kernel_of_op]
        self._kernel_of_op.update(zip(new, kernels_of(new, self._owner, self._weights), strict=True))
        kernels = [None if op.is_input else self._kernel_of_op[op] for op in part.graph.ops]
        with self.unchanged.as_recorded():
            return self._session.run(part, earlier, kernels, apart=apart)

    def _examples(self) -> Examples:
        return Examples.of(self._segments, len(self.op_of_node), len(self._results))

    def end_example(self, outputs: Sequence[LazyTensor], result: Any) -> None:
        """What has been called since the last example is one example, and this is its result."""
        self.add_result(outputs, result)
        self.begin(len(self._results))

    def add_result(self, outputs: Sequence[LazyTensor], result: Any) -> None:
        """The result of the next example, without the outputs that belong in it."""
        self.outputs += [output._value for output in outputs]
        self._results.append(result)

    def close(self, cells: dict[str, str] | None = None, weights: dict[str, str] | None = None) -> Recording:
        """The recording, its cells and weights under other names if there are any for them."""
        return self.as_recording(self._examples().counts(), self._results, cells, weights)

    def finish(self, *, apart: bool) -> tuple[Planned, Outputs]:
        """Run the last part of a batch that took several."""
        return self._run_part(self._results, None, apart=apart)

    def end(self) -> None:
        """Nothing more is recorded. What is computed lives as long as somebody holds a handle."""
        self.on_demand = self.fibers = None
        self._is_over = True
        self._input_of_tensor, self._constants = {}, {}
        self.unchanged = Unchanged()
