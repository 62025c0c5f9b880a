"""Flushes: when pending nodes are computed.

A value that Python needs is demanded. `demand` waits until it is computed: in `fl.batch` the other examples go on first, until all of
them wait; then `flush` computes what they wait for, together. Everything that is still pending at the end is computed by `finish`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakMethod

from foldloom.errors import CellError, RecordingError
from foldloom.execution import Kernel
from foldloom.execution.backward.dead_ends import with_flag
from foldloom.execution.engine import Planned, Session
from foldloom.execution.observer import observing
from foldloom.execution.run import Outputs
from foldloom.graph import Op
from foldloom.graph.recording import Recording
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.catching import Limit, is_caught
from foldloom.tracing.flushing.computed import Computed
from foldloom.tracing.flushing.gradient_calls import GradientWatch
from foldloom.tracing.flushing.kernels import kernels_of
from foldloom.tracing.flushing.layouts import Layouts
from foldloom.tracing.flushing.overwritten import Overwritten
from foldloom.tracing.flushing.pending import Cut, Pending
from foldloom.tracing.flushing.reading import GivenReader
from foldloom.tracing.flushing.saved import saved_by_outputs, saves_weight
from foldloom.tracing.functions.saved import SavedBy
from foldloom.tracing.mutation.guards import Guards
from foldloom.tracing.scope import computing
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
        self._pending = Pending()
        self.reader = GivenReader(graph, inputs)
        self.computed = Computed(graph, inputs, self._pending, self.reader)
        # Held weakly: a cycle would keep cells and tensors until the garbage collector runs.
        self.layouts = Layouts(graph, inputs, WeakMethod(self._weights_of_run))
        self._demanded: dict[Hashable, _Demanded] = {}
        """Values that are waited for, by type. Examples that wait for values of one type are taken to be at the same place."""
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
        return self.computed.session is not None

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
        missing = [value for handle in handles for value in self.computed.missing(handle, form)]
        if missing:
            self._wait_for(first._type, missing, form)
        self._raise_failed(handles)
        return [self.computed.read(handle, form) for handle in handles]

    def number_of(self, handle: LazyTensor) -> Any:
        """A value as Python's number: what programs branch on."""
        if self.refuses is not None:
            raise self.refuses(_NEEDS_A_VALUE)
        value = handle._value
        number = self.computed.number(value)
        if number is not None:
            return number
        if handle._type.shape and handle.numel() != 1:
            raise RuntimeError(f"a Tensor with {handle.numel()} elements cannot be converted to Scalar")
        if not (self.reader.may_follow(value) and self.computed.is_there(value)):
            self._wait_for(handle._type, (value,), NUMBER)
            number = self.computed.number(handle._value)  # values may have been given other numbers meanwhile
            if number is not None:
                return number
        self._raise_failed((handle,))
        return self.computed.read(handle, NUMBER)

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
        failure = self.computed.failure_at(pinned[0])
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
            failure = self.computed.failure_of(handle)
            if failure is not None:
                raise failure.as_cell_error()

    def has_error(self, handle: LazyTensor) -> bool:
        """Whether a value could not be computed."""
        return self.computed.failure_of(handle) is not None

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
        return self.computed.size + _OF_VALUE * self._graph.value_count + _OF_TENSOR * self._inputs.tensor_count

    def keep(self, moved: Mapping[int, int]) -> None:
        """Of all values keep these, under other numbers. All have been computed, and there are no gradients."""
        self.computed.keep(moved)
        self.renumbered()
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
        self.computed.note_change(values)

    # ---- Gradients.

    def watch_gradients(self) -> None:
        """Have backward call hooks, and raise where it would one by one, for all that has been computed."""
        self.gradients.place(self._overwritten, self._pending, self.computed.capture)

    def _overwritten(self) -> list[int]:
        """The values of nodes that saved what was changed in place later."""
        weights = self._weights_of_run()
        known: dict[Op, tuple[SavedBy, ...]] = {}

        def saved(op: Op) -> tuple[SavedBy, ...]:
            if op not in known:
                known[op] = saved_by_outputs(op, self._owner, weights)
            return known[op]

        @cache
        def saves(op: Op, names: frozenset[Any], tracked: tuple[bool, ...]) -> bool:
            return saves_weight(op, names, weights, tracked)

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
                self.computed.add_tensor(value, with_flag(rows[block][row], has_history))
        if as_numbers:
            self.computed.read_numbers(as_numbers)
        return planned, rows

    def _flush(
        self, roots: Sequence[int] | None, outputs: Sequence[int], results: Sequence[Any], *, apart: bool
    ) -> tuple[Planned, Outputs]:
        if self.has_failed:
            raise RecordingError(
                "a flush of this batch has failed, and what is asked for now was to be computed with it or after it. Values that had "
                "been computed before can be had; for others begin the batch anew"
            )
        session = self.computed.session
        if session is None:
            session = self.computed.begin(self._scheduler)
        graph = self._graph
        new = graph.take()
        self._inputs.flushed()
        cut = self._pending.cut(
            graph.ops, new, graph.value_count, roots, outputs, session.arena_of_value, session.earlier_ops
        )
        recording = Recording(cut.graph, new.inputs, tuple(results))
        if observing.observer is not None:
            observing.observer.recorded(recording, new.recorded, cut.nodes)
        try:
            with computing():
                planned, found = self._run(session, recording, cut, apart=apart)
        except BaseException:
            self.has_failed = True
            raise
        self._pending.ran(cut)
        if self._watched or session.failures.has_new:
            self._raise_uncaught(session)
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
