"""`fl.batch`: the program of one example, run for many at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import torch

from foldloom.errors import ArgumentError, CellError
from foldloom.execution.engine import Planned, execute, prepare
from foldloom.execution.gc_pause import gc_paused
from foldloom.execution.interrupts import Interrupts
from foldloom.execution.observer import observing
from foldloom.execution.results import GivenBack, stack_values, stacked, unstacked
from foldloom.planning.schedulers import Scheduler
from foldloom.pytrees import patched, template_of
from foldloom.torch_private import count_dispatch_modes, current_transform
from foldloom.tracing.arguments import described, examples_of, scheduler_of
from foldloom.tracing.automatic.capture import automatic_cells
from foldloom.tracing.building.training_mode import check_training
from foldloom.tracing.catching import is_caught, passing_on
from foldloom.tracing.cells.bodies import single_ops
from foldloom.tracing.cells.lookup import cell_of_module, find_cell
from foldloom.tracing.examples.in_fibers import fibers_of
from foldloom.tracing.examples.one_example import add_line, record_example
from foldloom.tracing.examples.outcomes import Errors, errors_of, outcome_of, result_or_error, together
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.flushing.kernels import is_function, kernels_of
from foldloom.tracing.interception import uncompiled, watch_all
from foldloom.tracing.mutation.spoiled import raise_if_spoiled
from foldloom.tracing.pace import Paces, run_alone
from foldloom.tracing.recording.numbers import VaryingNumbers
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import computing, recording_into, scope
from foldloom.tracing.weights import Weights

P = ParamSpec("P")
R = TypeVar("R")
Results = TypeVar("Results", covariant=True)


class Batched(Generic[P, R, Results]):
    """A function of one example, as a function of many. Made by `batch`.

    >>> import torch, foldloom as fl
    >>> halves = fl.batch(lambda x: x / 2)
    >>> halves([torch.ones(()), torch.zeros(())])
    [tensor(0.5000), tensor(0.)]
    >>> halves.run(fl.plan([fl.record(halves.function, torch.ones(2))]))
    [tensor([0.5000, 0.5000])]
    """

    def __init__(
        self,
        function: Callable[P, R],
        scheduler: Scheduler,
        stack: bool,
        cells: Sequence[torch.nn.Module] = (),
        automatic_cells: bool = True,
        errors: Errors = "raise",
    ) -> None:
        self.function = function
        self.scheduler = scheduler
        self.stack = stack
        self.errors = errors
        self.automatic_cells = automatic_cells
        self.cells = tuple([cell_of_module(module) for module in cells])
        self._modules = tuple(cells)  # their cells do not keep them alive
        self.paces = Paces()
        self._numbers = VaryingNumbers()

    def __call__(self, *columns: Iterable[Any]) -> Results:
        """The results of the examples ``zip(*columns)``."""
        examples = examples_of(columns)
        outer = scope.recorder
        if outer is not None:
            assert isinstance(outer, Recorder), "nothing else records"
            return self._call_within(outer, examples)  # type: ignore[no-any-return]
        if current_transform() is not None:
            return one_by_one(self.function, stack=self.stack, errors=self.errors)(*columns)  # type: ignore[no-any-return]
        # Whoever looks on wants to see the batch, and no clock may decide about the last digits.
        is_watched = observing.observer is not None or count_dispatch_modes()
        if is_watched or torch.are_deterministic_algorithms_enabled() or not examples:
            return self._together(examples)  # type: ignore[no-any-return]
        return self._at_best_pace(examples)  # type: ignore[no-any-return]

    def _at_best_pace(self, examples: list[tuple[Any, ...]]) -> Any:
        """As a batch, or one by one if that is known to be faster; while it is not known, some of the last by themselves."""
        pace = self.paces.of(len(examples))
        if pace.is_settled and not pace.is_alone:
            return self._together(examples)
        alone = pace.count_alone(len(examples))
        split = len(examples) - alone
        if not alone:
            with pace.together(len(examples)):
                together = self._together(examples)
            pace.gave(together, len(examples), alone=False)
            return together
        results: list[Any] = []
        if split:
            unstacked = (
                Batched(self.function, self.scheduler, False, self._modules, self.automatic_cells, self.errors)
                if self.stack
                else self
            )
            # A few more would hardly have taken longer, so all count.
            with pace.together(len(examples)):
                results = unstacked._together(examples[:split])
            pace.gave(results, len(examples), alone=False)
        with pace.alone(alone):
            by_themselves = run_alone(self.function, examples[split:], split, self.paces.state(), self.errors)
        pace.gave(by_themselves, alone, alone=True)
        results += by_themselves
        return stack_values(results) if self.stack else results

    def _together(self, examples: list[tuple[Any, ...]]) -> Any:
        watch_all()
        recorder = Recorder(self.scheduler, self.function, self.cells, self._numbers)
        with Interrupts() as interrupts, gc_paused(), uncompiled():
            results = self._call_outermost(recorder, examples, interrupts)
        if recorder.flushes.has_begun:
            recorder.let_go()
        return results

    def _call_outermost(self, recorder: Recorder, examples: list[tuple[Any, ...]], interrupts: Interrupts) -> Any:
        failed: dict[int, CellError] = {}

        def advance(kinds: set[Hashable]) -> list[tuple[int, CellError]]:
            recorder.flushes.flush(kinds)
            new = recorder.flushes.take_failed()
            failed.update(new)
            return [*new.items()]

        fibers = fibers_of(recorder, self.function, interrupts, advance)
        recorder.outside.examples = dict(enumerate(examples))
        recorder.flushes.keeps_failures = self.errors == "return"
        try:
            with recording_into(recorder), automatic_cells(recorder, self.automatic_cells):
                outcomes = _run_examples(recorder, fibers, self._tasks(recorder, examples))
            back = self._given_back(recorder, outcomes)
            if self.errors == "return":
                results = iter(self._give_back(*recorder.flushes.finish(apart=True), back))
                failed = recorder.flushes.take_failed() | failed
                return together(enumerate(outcomes), failed, results, partial(add_line, recorder=recorder))
            if recorder.flushes.has_begun or recorder.flushes.gradients:
                return self._give_back(*recorder.flushes.finish(apart=not self.stack), back)
            planned = prepare(recorder.graph.close(), self.scheduler)
            with recorder.guards.as_recorded():
                return self._run(planned, back)
        except (CellError, IndexError) as error:
            add_line(error, recorder)
            raise
        finally:
            recorder.end()

    def _tasks(self, recorder: Recorder, examples: list[tuple[Any, ...]]) -> list[Callable[[], Any]]:
        taken = template_of if self.stack else patched
        record_one = partial(record_example, recorder, self.function, taken)
        tasks: list[Callable[[], Any]] = [partial(record_one, args, n) for n, args in enumerate(examples)]
        return [partial(outcome_of, task) for task in tasks] if self.errors == "return" else tasks

    def _given_back(self, recorder: Recorder, outcomes: list[Any]) -> GivenBack:
        """Have the results of the examples computed; what is known of them."""
        back = GivenBack()
        for outputs, of_example, template in [outcome for outcome in outcomes if type(outcome) is tuple]:
            if self.stack:
                raise_if_spoiled(of_example)
            back.add(of_example)
            recorder.graph.add_result(outputs, template)
        recorder.inputs.check_copies()
        if torch.is_grad_enabled():
            back.requires_grad = recorder.graph.requires_grad(recorder.graph.outputs)
        return back

    def _call_within(self, recorder: Recorder, examples: list[tuple[Any, ...]]) -> Any:
        """Inside another batch the examples join it: everything is recorded there."""
        example = recorder.graph.example
        tasks: list[Callable[[], Any]] = [
            partial(_run_within, recorder, example, self.function, args) for args in examples
        ]
        if self.errors == "return":
            tasks = [partial(result_or_error, passing_on(task), (), number) for number, task in enumerate(tasks)]
        elif recorder.fibers is not None and is_caught():
            tasks = [passing_on(task) for task in tasks]
        results = [task() for task in tasks] if recorder.fibers is None else recorder.fibers.run(tasks)
        recorder.graph.begin(example)  # others may have had their turns
        return stack_values(results) if self.stack else results

    def run(self, planned: Planned) -> Results:
        """The results of a batch that was planned before, in this process or in another."""
        if not isinstance(planned, Planned):
            raise ArgumentError(
                f"run takes a plan, and was given {described(planned)}: write `run(fl.plan(recordings))`"
            )
        check_training(planned.plan.ops, self.function)
        return self._run(planned, GivenBack())  # type: ignore[no-any-return]

    def _run(self, planned: Planned, back: GivenBack) -> Any:
        kernels = kernels_of(planned.plan.ops, self.function, Weights(self.function))
        with computing():
            blocks = execute(planned, kernels, self._device_of(planned), apart=not self.stack)
        return self._give_back(planned, blocks, back)

    def _give_back(self, planned: Planned, outputs: Any, back: GivenBack) -> Any:
        if self.stack:
            return stacked(planned.plan, outputs, planned.results, back.requires_grad)
        return unstacked(planned.plan, outputs, planned.results, back)

    def _device_of(self, planned: Planned) -> torch.device:
        device: torch.device | None = None
        for op in single_ops(planned.plan.ops):
            if op.is_input or is_function(op):
                continue
            cell = find_cell(op.key, self.function)
            device = device or cell.device
            if cell.device not in (device, None):
                raise ArgumentError(
                    f"the weights of cell {cell.label} are on {cell.device}, those of others on {device}: a batch runs on one "
                    f"device, so write `model.to({str(device)!r})`"
                )
        return device or _device_of_inputs(planned)

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"fl.batch({name}, scheduler={self.scheduler}, stack={self.stack})"


@overload
def batch(
    function: Callable[P, R],
    *,
    scheduler: Scheduler | None = None,
    stack: Literal[False] = False,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
    errors: Literal["raise"] = "raise",
) -> Batched[P, R, list[R]]: ...


@overload
def batch(
    function: Callable[P, R],
    *,
    scheduler: Scheduler | None = None,
    stack: Literal[False] = False,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
    errors: Literal["return"],
) -> Batched[P, R, list[R | Exception]]: ...


@overload
def batch(
    function: Callable[P, R],
    *,
    scheduler: Scheduler | None = None,
    stack: bool,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
    errors: Errors = "raise",
) -> Batched[P, R, Any]: ...


def batch(
    function: Callable[P, R],
    *,
    scheduler: Scheduler | None = None,
    stack: bool = False,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
    errors: Errors = "raise",
) -> Batched[P, R, Any]:
    """``batch(function)(xs, ys)`` is ``[function(x, y) for x, y in zip(xs, ys)]``, in few large steps.

    The function is written for one example and may recurse, loop and branch as it likes; what it computes on tensors, it
    computes in cells. Results keep their types, of whatever classes they are. With ``stack=True`` they come in the
    nesting of one example's result instead, every tensor stacked over the examples and every list of like tensors
    as one `Ragged`.

    Functions and modules that are called often, and are found to do the same each time, become *automatic cells*: each of their calls is
    one operation, and their Python is not run again. ``automatic_cells=False`` turns that off; results are the same.

    With ``errors="return"`` an exception that an example raises, itself or in an operation, is its result: it has notes that say which
    example it was, and which line of yours. All others have the values and gradients that they would have had.

    >>> import torch, foldloom as fl
    >>> double = fl.cell(lambda x: 2 * x)
    >>> def power(exponent, x):
    ...     return x if exponent == 0 else double(power(exponent - 1, x))
    >>> fl.batch(power)([1, 4, 10], torch.tensor([1.0, 1.0, 1.0]))
    [tensor(2.), tensor(16.), tensor(1024.)]
    >>> fl.batch(power, stack=True)([1, 4, 10], [1, 1, 1])
    tensor([   2,   16, 1024])
    >>> results = fl.batch(lambda x: x / (6 // x.numel()), errors="return")([torch.ones(3), torch.empty(0)])
    >>> results[0], type(results[1]).__name__, results[1].__notes__[0]
    (tensor([0.5000, 0.5000, 0.5000]), 'ZeroDivisionError', 'in example 1')
    """
    if not callable(function):
        raise ArgumentError(
            f"fl.batch takes a function or a module, and was given {described(function)}: write `fl.batch(f)(xs)`"
        )
    if errors_of(errors) == "return" and stack:
        raise ArgumentError('exceptions cannot be stacked: leave out `stack=True`, or `errors="return"`')
    return Batched(function, scheduler_of(scheduler), stack, cells, automatic_cells, errors)


def one_by_one(function: Callable[..., Any], *, stack: bool = False, errors: Errors = "raise") -> Callable[..., Any]:
    """What `batch` must equal, computed the plain way: each example alone, in a loop. To check and to debug with.

    >>> import foldloom as fl
    >>> fl.one_by_one(lambda x, y: x + y)([1, 2], [10, 20])
    [11, 22]
    """

    def run(*columns: Sequence[Any]) -> Any:
        examples = examples_of(columns)
        if errors == "return":
            return [result_or_error(function, args, number) for number, args in enumerate(examples)]
        results = [function(*args) for args in examples]
        return stack_values(results) if stack else results

    return run


def _run_examples(recorder: Recorder, fibers: Fibers, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the examples. One that raises might have raised something else before, in a call that has not run yet; or one before it."""
    try:
        return fibers.run(tasks)
    except Exception:
        earlier = None if fibers.failed_at is None else recorder.flushes.error_before(fibers.failed_at)
        if earlier is None:
            raise
        raise earlier from earlier.__cause__


def _run_within(recorder: Recorder, example: int, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """An example of a batch inside another. What it records belongs to the outer example, whoever had the turn before."""
    recorder.graph.begin(example)
    return function(*args)


def _device_of_inputs(planned: Planned) -> torch.device:
    for column in planned.inputs:
        if isinstance(column, tuple):
            return column[0].device  # type: ignore[no-any-return]
    return torch.get_default_device()
