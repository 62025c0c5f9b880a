"""Flushes: when pending nodes are computed.

A value that Python needs is demanded. `demand` waits until it is computed: in `fl.batch` the other examples go on first, until all of
them wait; then `flush` computes what they wait for, together. Everything that is still pending at the end is computed by `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from typing import Any, NamedTuple
from weakref import WeakMethod

import torch
from torch.autograd.graph import GradientEdge

from foldloom.errors import CellError, RecordingError
from foldloom.execution import Kernel
from foldloom.execution.dead_ends import with_flag
from foldloom.execution.engine import Planned, Session
from foldloom.execution.failures import Failure
from foldloom.execution.observer import observing
from foldloom.execution.run import Outputs
from foldloom.graph import Op
from foldloom.graph.recording import Recording
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing.building.builder import GraphBuilder, kept
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.catching import Limit, is_caught
from foldloom.tracing.flushing.gradient_calls import GradientCall, GradientWatch
from foldloom.tracing.flushing.kernels import kernels_of
from foldloom.tracing.flushing.layouts import Layouts
from foldloom.tracing.flushing.overwritten import Overwritten
from foldloom.tracing.flushing.pending import Cut, Pending
from foldloom.tracing.flushing.reading import GivenReader
from foldloom.tracing.flushing.saved import saved_by_outputs, saves_weight
from foldloom.tracing.functions.saved import SavedBy
from foldloom.tracing.mutation.guards import Guards
from foldloom.tracing.scope import computing, recording_paused, unwatched
from foldloom.tracing.values.lazy_tensor import DETACHED, NUMBER, TENSOR, Form, LazyTensor
from foldloom.tracing.weights import DerivedWeights, Weights

_MAY_RAISE = "may raise"
_NEEDS_A_VALUE = "it needs the value of a tensor"

_OF_VALUE, _OF_TENSOR = 200, 1000
"""About how many bytes are needed for what is known of a value, and for a tensor that was given, beside their numbers."""


class _Demanded(NamedTuple):
    """Values of one type that are waited for, by the form in which they are demanded."""

    numbers: list[int]
    tensors: list[int]
    others: list[int]


class Flushes:
    """Computes the values of a graph under construction when they are demanded."""

    def __init__(
        self,
        graph: GraphBuilder,
        inputs: Inputs,
        guards: Guards,
        derived: DerivedWeights,
        scheduler: Scheduler,
        owner: object,
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._guards = guards
        self._derived = derived
        self._scheduler = scheduler
        self._owner = owner
        self._weights: Weights | None = None
        self._kernel_of_op: dict[int, Kernel | None] = {}
        """By the number of the op in the graph."""
        self._session: Session | None = None
        self._pending = Pending()
        self.reader = GivenReader(graph, inputs)
        # Held weakly: a cycle would keep cells and tensors until the garbage collector runs.
        self.layouts = Layouts(graph, inputs, WeakMethod(self._weights_of_run))
        self._tensor_of_value: dict[int, torch.Tensor] = {}
        """Values that were demanded as tensors with gradients."""
        self._demanded: dict[Hashable, _Demanded] = {}
        """Values that are waited for, by type. Examples that wait for values of one type are taken to be at the same place."""
        self._numbers: dict[int, Any] = {}
        """Values that were demanded as numbers and computed."""
        self.gradients = GradientWatch(graph)
        self.on_demand: Callable[[Hashable], None] | None = None
        """Called with the type of a demanded value that is not computed yet; it returns after a `flush` of that type. If it is None,
        everything is flushed at once."""
        self.has_failed = False
        """Whether a flush has raised."""
        self.keeps_failures = False
        """Whether an operation that fails ends its example alone, and not the batch."""
        self._failed: dict[int, CellError] = {}
        """If so, by example, the error of its first operation that has failed, until `take_failed`."""
        self.waits_for_errors = True
        """Whether calls that may raise are waited for where somebody may catch what they raise."""
        self.limit: Limit | None = None
        """Where the batch begins, if it does not run in fibers."""
        self.refuses: Callable[[str], BaseException] | None = None
        """While a call is captured: the error for what cannot be. Nothing may depend on values, change or last."""
        self.pinned: list[list[int]] = []
        """Values that calls under way will return, and that nobody has a handle of yet."""
        self._watched: set[int] = set()
        """Values of such calls that are not computed yet."""

    @property
    def has_begun(self) -> bool:
        """Whether something has been flushed."""
        return self._session is not None

    def forget_kernels(self) -> None:
        """Weights have changed: what was computed from them is computed anew."""
        self._kernel_of_op, self._weights = {}, None

    def check_not_captured(self, doing: str) -> None:
        """Raise while a call is captured: nothing may happen that would last."""
        if self.refuses is not None:
            raise self.refuses(doing)

    # ---- Demanding values.

    def demand(self, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
        """What the handles stand for. Every value that leaves a recorder comes by here; what is not computed yet is flushed."""
        self.check_not_captured(_NEEDS_A_VALUE)
        first = handles[0]
        if form is NUMBER and not first._type.ragged:
            return [self.number_of(first)]
        missing = [value for handle in handles for value in self._missing(handle, form)]
        if missing:
            self._wait_for(first._type, missing, form)
        self._raise_failed(handles)
        return [self._read_rows(h, form) if h._type.ragged else self._read(h, form) for h in handles]

    def number_of(self, handle: LazyTensor) -> Any:
        """A value as Python's number: what programs branch on."""
        if self.refuses is not None:
            raise self.refuses(_NEEDS_A_VALUE)
        value = handle._value
        if value in self._numbers:
            return self._numbers[value]
        if handle._type.shape and handle.numel() != 1:
            raise RuntimeError(f"a Tensor with {handle.numel()} elements cannot be converted to Scalar")
        if not (self.reader.may_follow(value) and self._is_there(value)):
            self._wait_for(handle._type, (value,), NUMBER)
            value = handle._value  # values may have been given other numbers meanwhile
            if value in self._numbers:
                return self._numbers[value]
        self._raise_failed((handle,))
        return self._read(handle, NUMBER)

    def _is_there(self, value: int) -> bool:
        """Whether the numbers of a value can be had without a flush."""
        return (
            self._pending.number_of(value) >= 0
            or value in self._graph.number_of_value
            or self._tensor_of(value) is not None
            or self.reader.read(value) is not None
        )

    def _missing(self, handle: LazyTensor, form: Form) -> list[int]:
        """The values of a handle that must be computed."""
        if not handle._type.ragged:
            value = handle._value
            is_there = self._tensor_of(value) is not None if form is TENSOR else self._is_there(value)
            return [] if is_there else [value]
        not_given = [value for value in handle._value if self._tensor_of(value) is None]
        if form is TENSOR or not not_given:
            return not_given
        missing = [value for value in handle._value if self._pending.number_of(value) < 0]
        return [] if self._rows_given(handle) is not None else missing

    def _rows_given(self, handle: LazyTensor) -> list[torch.Tensor] | None:
        """The rows of a ragged value, if all of them follow from what was given."""
        rows: list[torch.Tensor] = []
        for value in handle._value:
            row = self.reader.read(value)
            if row is None:
                return None
            rows.append(row)
        return rows

    def _wait_for(self, kind: Hashable, values: Sequence[int], form: Form) -> None:
        """Returns when the values are computed."""
        if observing.observer is not None:
            observing.observer.demanded()
        demanded = self._demanded.get(kind)
        if demanded is None:
            demanded = self._demanded[kind] = _Demanded([], [], [])
        of_form = demanded.numbers if form is NUMBER else demanded.tensors if form is TENSOR else demanded.others
        of_form.extend(values)
        if self.on_demand is None:
            self.flush_all()
            return
        example = self._graph.example
        self.on_demand(kind)
        self._graph.begin(example)

    def _tensor_of(self, value: int) -> torch.Tensor | None:
        """A value that is a tensor already, given or demanded before."""
        given = self._inputs.tensor_of(value)
        return self._tensor_of_value.get(value) if given is None else given

    def _read(self, handle: LazyTensor, form: Form) -> Any:
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
        if self._pending.number_of(value) < 0:
            given = self.reader.read(value)
            assert given is not None, "what is not computed was given"
            with unwatched():
                return given.item() if form is NUMBER else given
        assert self._session is not None, "what has been computed was computed by a session"
        with unwatched():
            computed = self._pending.number_of(value)
            return self._session.number(computed) if form is NUMBER else self._session.row(computed)

    def _read_rows(self, handle: LazyTensor, form: Form) -> Any:
        tensors = [tensor for value in handle._value if (tensor := self._tensor_of(value)) is not None]
        if len(tensors) < len(handle._value) and form is not TENSOR:
            tensors = self._rows_given(handle) or []
        if len(tensors) == len(handle._value):
            with recording_paused():
                rows = torch.stack(tensors) if tensors else torch.empty(handle.shape, dtype=handle.dtype)
                rows = rows if form is TENSOR else rows.detach()
        else:
            assert self._session is not None, "what has been computed was computed by a session"
            with unwatched():
                rows = self._session.rows([self._pending.number_of(value) for value in handle._value])
        return rows.item() if form is NUMBER else rows

    # ---- Errors that a program catches.

    def wait_if_caught(self, op_number: int, values: range) -> int:
        """After a call that may raise has been recorded: if it stands in a `try`, wait for it, and raise what it raises. The first of its
        values, which may have been given other numbers meanwhile."""
        first: int = values.start
        if not values or not self.waits_for_errors or not is_caught(self.limit):
            return first
        self._watched.update(values)
        pinned: list[int] = [*values]
        self.pinned.append(pinned)
        try:
            self._wait_for((_MAY_RAISE, op_number), values, DETACHED)
        finally:
            self.pinned = [others for others in self.pinned if others is not pinned]
        assert self._session is not None, "what has been waited for was computed by a session"
        failure = self._session.failures.of(*self._session.place_of(self._pending.number_of(pinned[0])))
        if failure is not None:
            failure.error.add_note(f"raised by {failure.op.label or failure.op.key} {self._graph.where()}")
            try:
                raise failure.error
            finally:
                del failure  # else it would hold this frame, which holds it
        return pinned[0]

    def _raise_uncaught(self, session: Session) -> None:
        """Of the failures of the last flush, those that nobody waits for end the batch."""
        computed = {value for value in self._watched if self._pending.number_of(value) >= 0}
        self._watched -= computed
        places = {session.place_of(self._pending.number_of(value)) for value in computed}
        uncaught = [failure for failure in session.failures.take_new() if failure.place not in places]
        uncaught.sort(key=lambda failure: failure.order)
        if self.keeps_failures:
            for failure in uncaught:
                self._failed.setdefault(failure.order[0], failure.as_cell_error())
        elif uncaught:
            self.has_failed = True
            raise uncaught[0].as_cell_error()

    def _raise_failed(self, handles: Sequence[LazyTensor]) -> None:
        """Of values that could not be computed there are no numbers."""
        for handle in handles:
            failure = self._failure_of(handle)
            if failure is not None:
                raise failure.as_cell_error()

    def _failure_of(self, handle: LazyTensor) -> Failure | None:
        session = self._session
        if session is None or not session.failures:
            return None
        for value in handle._value if handle._type.ragged else (handle._value,):
            computed = self._pending.number_of(value)
            failure = None if computed < 0 else session.failures.of(*session.place_of(computed))
            if failure is not None:
                return failure
        return None

    def has_error(self, handle: LazyTensor) -> bool:
        """Whether a value could not be computed."""
        return self._failure_of(handle) is not None

    def error_before(self, example: int) -> CellError | None:
        """What this example, or one before it, would have raised already if its calls did not run later than they are made."""
        if self.has_failed:
            return None
        try:
            self.flush_all()
        except CellError as error:
            return error if error.example is not None and error.example <= example else None
        return None

    # ---- Forgetting.

    def held_bytes(self) -> int:
        """About how much memory values take, whether anybody can reach them or not."""
        computed = 0 if self._session is None else self._session.size
        return computed + _OF_VALUE * self._graph.value_count + _OF_TENSOR * self._inputs.tensor_count

    def keep(self, moved: Mapping[int, int]) -> None:
        """Of all values keep these, under other numbers. All have been computed, and there are no gradients."""
        assert self._session is not None, "what has been computed was computed by a session"
        self._session.keep(self._pending.numbers_of([*moved]))
        self._pending.keep(len(moved))
        self.renumbered()
        self._tensor_of_value = kept(self._tensor_of_value, moved)
        self._numbers = kept(self._numbers, moved)
        for pinned in self.pinned:  # where they stand: calls under way hold them
            pinned[:] = [moved[value] for value in pinned]

    def renumbered(self) -> None:
        """Some values are gone, and others have their numbers, or will."""
        self.reader.forget()
        self.layouts.forget()

    # ---- Changes in place.

    def note_change(self, values: tuple[int, ...], is_ragged: bool, made: int) -> None:
        """What these values stand for is changed in place. What was computed with them at once has saved tensors."""
        self.check_not_captured("it changes a value in place")
        self._graph.note_change(values, is_ragged, made)
        self.gradients.note_change(values, made)
        for value in values:
            tensor = self._tensor_of_value.get(value)
            if tensor is not None and not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)

    # ---- Gradients.

    def capture(self, values: tuple[int, ...], is_ragged: bool, call: GradientCall) -> Callable[[], None]:
        """Have this called with the gradient of a value that is computed, until what is returned is called."""
        assert self._session is not None, "what has been computed was computed by a session"
        return self._session.add_hook([self._pending.number_of(value) for value in values], is_ragged, call)

    def edge_into(self, value: int) -> GradientEdge | None:
        """Where in autograd's graph the gradient of a computed value goes; None if it has no history."""
        assert self._session is not None, "what has been computed was computed by a session"
        return self._session.edge_into(self._pending.number_of(value))

    def watch_gradients(self) -> None:
        """Have backward call hooks, and raise where it would one by one, for all that has been computed."""
        self.gradients.place(self._overwritten, self._pending, self.capture)

    def _overwritten(self) -> list[int]:
        """The values of nodes that saved what was changed in place later."""
        weights = self._weights_of_run()
        known: dict[Op, tuple[SavedBy, ...]] = {}

        def saved(op: Op) -> tuple[SavedBy, ...]:
            if op not in known:
                known[op] = saved_by_outputs(op, self._owner, weights)
            return known[op]

        def saves(op: Op, names: Collection[Hashable]) -> bool:
            return saves_weight(op, names, weights)

        return Overwritten(self._graph, saved, saves, self._inputs.is_one_tensor).values()

    # ---- Flushing.

    def flush(self, kinds: Set[Hashable]) -> None:
        """Compute the values of these types that are demanded."""
        demanded = [found for kind in kinds if (found := self._demanded.pop(kind, None)) is not None]
        self._flush_demanded(demanded, [value for of_kind in demanded for values in of_kind for value in values])

    def flush_all(self) -> None:
        """Compute everything that has been recorded."""
        self.flush_results((), ())

    def flush_results(self, outputs: Sequence[int], results: Sequence[Any]) -> tuple[Planned, Outputs]:
        """The same, and these values as the results of examples."""
        demanded = [*self._demanded.values()]
        self._demanded = {}
        return self._flush_demanded(demanded, None, outputs, results)

    @property
    def demanded_kinds(self) -> Set[Hashable]:
        """The types of the values that are waited for."""
        return self._demanded.keys()

    def take_failed(self) -> dict[int, CellError]:
        """The examples that have failed since this was last asked, if they do not end the batch, each with its error."""
        failed, self._failed = self._failed, {}
        return failed

    def finish(self, *, apart: bool) -> tuple[Planned, Outputs]:
        """Compute everything that is still pending, and the results of all examples."""
        planned, found = self._flush(None, self._graph.outputs, self._graph.results, apart=apart)
        self.watch_gradients()
        return planned, found

    def _flush_demanded(
        self,
        demanded: Sequence[_Demanded],
        roots: list[int] | None,
        outputs: Sequence[int] = (),
        results: Sequence[Any] = (),
    ) -> tuple[Planned, Outputs]:
        """Compute values that are demanded, what ``roots`` depend on, and ``outputs``, which are those of ``results``."""
        wanted = list(dict.fromkeys([value for of_kind in demanded for value in of_kind.tensors]))
        as_numbers = [value for of_kind in demanded for value in of_kind.numbers]
        planned, rows = self._flush(roots, [*outputs, *wanted], results, apart=True)
        if wanted:
            blocks = planned.plan.block_of_output[len(outputs) :].tolist()
            places = zip(blocks, planned.plan.row_of_output[len(outputs) :].tolist(), strict=True)
            histories = self._graph.requires_grad(wanted)
            for value, (block, row), has_history in zip(wanted, places, histories, strict=True):
                self._tensor_of_value[value] = with_flag(rows[block][row], has_history)
        if as_numbers:
            assert self._session is not None
            with unwatched():
                found = self._session.numbers(self._pending.numbers_of(as_numbers))
            self._numbers.update(zip(as_numbers, found, strict=True))
        return planned, rows

    def _flush(
        self, roots: Sequence[int] | None, outputs: Sequence[int], results: Sequence[Any], *, apart: bool
    ) -> tuple[Planned, Outputs]:
        if self.has_failed:
            raise RecordingError(
                "a flush of this batch has failed, and what is asked for now was to be computed with it or after it. Values that had "
                "been computed before can be had; for others begin the batch anew"
            )
        if self._session is None:
            self._session = Session(self._scheduler, self._inputs.device)
        graph = self._graph
        new = graph.take()
        self._inputs.flushed()
        cut = self._pending.cut(
            graph.ops, new, graph.value_count, roots, outputs, self._session.arena_of_value, self._session.earlier_ops
        )
        recording = Recording(cut.graph, new.inputs, tuple(results))
        if observing.observer is not None:
            observing.observer.recorded(recording, new.recorded, cut.nodes)
        try:
            with computing():
                planned, found = self._run(self._session, recording, cut, apart=apart)
        except BaseException:
            self.has_failed = True
            raise
        self._pending.ran(cut)
        if self._watched or self._session.failures.has_new:
            self._raise_uncaught(self._session)
        return planned, found

    def _weights_of_run(self) -> Weights:
        if self._weights is None:
            self._weights = Weights(self._owner)
        self._derived.pass_on(self._weights)
        return self._weights

    def _run(self, session: Session, recording: Recording, cut: Cut, *, apart: bool) -> tuple[Planned, Outputs]:
        weights = self._weights_of_run()
        known = self._kernel_of_op
        new = [number for number in cut.used_ops if number not in known]
        if new:
            ops = [self._graph.ops[number] for number in new]
            known.update(zip(new, kernels_of(ops, self._owner, weights), strict=True))
        earlier = [None] * (len(recording.graph.ops) - len(cut.used_ops))
        kernels = [*earlier, *[known[number] for number in cut.used_ops]]
        with self._guards.as_recorded():
            return session.run(
                recording,
                cut.earlier,
                kernels,
                apart=apart,
                example_of_node=cut.example_of_node,
            )
