"""`fl.batch`, `fl.record` and `fl.plan`: one example's program, run for many."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import torch

from foldloom.errors import ArgumentError, CellError, RecordingError, ValueNotReadyError
from foldloom.execution.engine import Planned, execute, prepare
from foldloom.execution.gc_pause import gc_paused
from foldloom.execution.interrupts import Interrupts
from foldloom.execution.observer import observing
from foldloom.execution.results import GivenBack, stack_values, stacked, unstacked
from foldloom.graph import Op
from foldloom.graph.recording import Recording, merge_recordings, refuse_tracked, split_recording
from foldloom.planning.schedulers import ByAgenda, ByDepth, Scheduler
from foldloom.pytrees import patched, template_of
from foldloom.torch_private import count_dispatch_modes, current_transform
from foldloom.tracing.arguments import described, examples_of, scheduler_of
from foldloom.tracing.automatic.capture import automatic_cells
from foldloom.tracing.building.training_mode import check_training, training_of
from foldloom.tracing.catching import Limit, is_caught, passing_on
from foldloom.tracing.cells.bodies import single_ops
from foldloom.tracing.cells.lookup import cell_of_module, find_cell, paths_of_cells
from foldloom.tracing.fibers.fibers import Fibers
from foldloom.tracing.flushing.kernels import is_function, kernels_of
from foldloom.tracing.interception import uncompiled, watch_all
from foldloom.tracing.interception.function_mode import RecordingMode
from foldloom.tracing.looking import looking_at
from foldloom.tracing.pace import Paces, run_alone
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import current_mode, in_mode, is_machinery, recording_into, scope, user_line
from foldloom.tracing.values.lazy_tensor import LazyTensor, is_tensor
from foldloom.tracing.weights import Weights, module_of, paths_of

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
    ) -> None:
        self.function = function
        self.scheduler = scheduler
        self.stack = stack
        self.automatic_cells = automatic_cells
        self.cells = tuple([cell_of_module(module) for module in cells])
        self._modules = tuple(cells)  # their cells do not keep them alive
        self.paces = Paces()

    def __call__(self, *columns: Iterable[Any]) -> Results:
        """The results of the examples ``zip(*columns)``."""
        examples = examples_of(columns)
        outer = scope.recorder
        if outer is not None:
            assert isinstance(outer, Recorder), "nothing else records"
            return self._call_within(outer, examples)  # type: ignore[no-any-return]
        if current_transform() is not None:
            return one_by_one(self.function, stack=self.stack)(*columns)  # type: ignore[no-any-return]
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
                return self._together(examples)
        results: list[Any] = []
        if split:
            unstacked = (
                Batched(self.function, self.scheduler, False, self._modules, self.automatic_cells)
                if self.stack
                else self
            )
            # A few more would hardly have taken longer, so all count.
            with pace.together(len(examples)):
                results = unstacked._together(examples[:split])
        with pace.alone(alone):
            results += run_alone(self.function, examples[split:], split, self.paces.state())
        return stack_values(results) if self.stack else results

    def _together(self, examples: list[tuple[Any, ...]]) -> Any:
        watch_all()
        with Interrupts() as interrupts, gc_paused(), uncompiled():
            return self._call_outermost(examples, interrupts)

    def _call_outermost(self, examples: list[tuple[Any, ...]], interrupts: Interrupts) -> Any:
        recorder = Recorder(self.scheduler, self.function, self.cells)
        fibers = Fibers(recorder.flushes.flush, noun="example", function=self.function, interrupts=interrupts)
        recorder.flushes.on_demand = fibers.park
        fibers.settled = recorder.settled
        recorder.fibers = recorder.outside.fibers = fibers
        recorder.outside.examples = examples
        try:
            with recording_into(recorder), automatic_cells(recorder, self.automatic_cells):
                taken = template_of if self.stack else patched
                record_one = partial(_record_example, recorder, self.function, taken)
                tasks = [partial(record_one, args, n) for n, args in enumerate(examples)]
                back = GivenBack()
                for outputs, of_example, template in _recorded(recorder, fibers, tasks):
                    back.add(of_example)
                    recorder.graph.add_result(outputs, template)
            recorder.inputs.check_copies()
            graph = recorder.graph
            if torch.is_grad_enabled():
                back.requires_grad = graph.requires_grad(graph.outputs)
            if recorder.flushes.has_begun or recorder.flushes.watches_gradients:
                return self._give_back(*recorder.flushes.finish(apart=not self.stack), back)
            planned = prepare(graph.close(), self.scheduler)
            with recorder.guards.as_recorded():
                return self._run(planned, back)
        except (CellError, IndexError) as error:
            _add_line(error, recorder)
            raise
        finally:
            recorder.end()

    def _call_within(self, recorder: Recorder, examples: list[tuple[Any, ...]]) -> Any:
        """Inside another batch the examples join it: everything is recorded there."""
        function: Callable[..., Any] = self.function
        tasks: list[Callable[[], Any]] = [partial(function, *args) for args in examples]
        if recorder.fibers is not None and is_caught():
            tasks = [passing_on(task) for task in tasks]
        example = recorder.graph.example
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
) -> Batched[P, R, list[R]]: ...


@overload
def batch(
    function: Callable[P, R],
    *,
    scheduler: Scheduler | None = None,
    stack: bool,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
) -> Batched[P, R, Any]: ...


def batch(
    function: Callable[P, R],
    *,
    scheduler: Scheduler | None = None,
    stack: bool = False,
    cells: Sequence[torch.nn.Module] = (),
    automatic_cells: bool = True,
) -> Batched[P, R, Any]:
    """``batch(function)(xs, ys)`` is ``[function(x, y) for x, y in zip(xs, ys)]``, in few large steps.

    The function is written for one example and may recurse, loop and branch as it likes; what it computes on tensors, it
    computes in cells. Results keep their types, of whatever classes they are. With ``stack=True`` they come in the
    nesting of one example's result instead, every tensor stacked over the examples and every list of like tensors
    as one `Ragged`.

    Functions and modules that are called often, and are found to do the same each time, become *automatic cells*: each of their calls is
    one operation, and their Python is not run again. ``automatic_cells=False`` turns that off; results are the same.

    >>> import torch, foldloom as fl
    >>> double = fl.cell(lambda x: 2 * x)
    >>> def power(exponent, x):
    ...     return x if exponent == 0 else double(power(exponent - 1, x))
    >>> fl.batch(power)([1, 4, 10], torch.tensor([1.0, 1.0, 1.0]))
    [tensor(2.), tensor(16.), tensor(1024.)]
    >>> fl.batch(power, stack=True)([1, 4, 10], [1, 1, 1])
    tensor([   2,   16, 1024])
    """
    if not callable(function):
        raise ArgumentError(
            f"fl.batch takes a function or a module, and was given {described(function)}: write `fl.batch(f)(xs)`"
        )
    return Batched(function, scheduler_of(scheduler, ByDepth), stack, cells, automatic_cells)


@contextmanager
def batching(*, scheduler: Scheduler | None = None, cells: Sequence[torch.nn.Module] = ()) -> Iterator[None]:
    """Within it, what torch is asked to compute is recorded, and batched when a value is needed or it is over.

    For code that has no function of one example: a loop over a minibatch, say. Tensors that come out of it are computed when
    they are used. In `batch` each example waits for its own values while others go on; here everything waits.

    >>> import torch, foldloom as fl
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> with fl.batching():
    ...     losses = [(weight * torch.tensor([x, 1.0])).sum() for x in (1.0, 2.0, 3.0)]
    >>> torch.stack(losses).sum().backward()
    >>> weight.grad
    tensor([6., 3.])
    """
    if scope.recorder is not None:
        raise RecordingError(
            "fl.batching() inside fl.batch or fl.batching() has nothing to add: leave out the inner one"
        )
    if current_transform() is not None:
        yield
        return
    watch_all()
    recorder = Recorder(scheduler_of(scheduler, ByAgenda), None, [cell_of_module(module) for module in cells])
    mode = current_mode()

    def flush(_: object) -> None:
        # A value may be demanded within `torch.no_grad()`: everything is computed in the mode of the batch.
        with in_mode(mode):
            recorder.flushes.flush_all()

    recorder.flushes.on_demand = flush
    recorder.flushes.limit = Limit.here()
    recorder.graph.begin(0)
    try:
        with recording_into(recorder), gc_paused(), RecordingMode(recorder):
            yield
        if not recorder.flushes.has_failed:
            recorder.flushes.flush_all()
            recorder.flushes.watch_gradients()
    except CellError as error:
        _add_line(error, recorder)
        raise
    finally:
        recorder.flushes.limit = None
        recorder.end()


def lift(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a value of the example that is being recorded, so that what is computed with it is batched too.

    Arguments of the function given to `batch` are such values already, and so is whatever meets a weight or another value. Outside
    of a recording, the tensor itself.

    >>> import torch, foldloom as fl
    >>> table = torch.tensor([1.0, 2.0, 3.0])
    >>> fl.batch(lambda n: fl.lift(table)[n] * 2)([2, 0])  # the products of all examples run as one
    [tensor(6.), tensor(2.)]
    """
    recorder = scope.recorder
    if recorder is None or not is_tensor(tensor) or tensor.layout is not torch.strided:
        return tensor
    return recorder.give(tensor)  # type: ignore[no-any-return]


def one_by_one(function: Callable[..., Any], *, stack: bool = False) -> Callable[..., Any]:
    """What `batch` must equal, computed the plain way: each example alone, in a loop. To check and to debug with.

    >>> import foldloom as fl
    >>> fl.one_by_one(lambda x, y: x + y)([1, 2], [10, 20])
    [11, 22]
    """

    def run(*columns: Sequence[Any]) -> Any:
        results = [function(*args) for args in examples_of(columns)]
        return stack_values(results) if stack else results

    return run


def record(function: Callable[..., Any], *args: Any) -> Recording:
    """What the function asks for on one example, computed later: plan several with `plan`, run them with `Batched.run`.

    If the function is a module, or a method of one, its cells are named by their path in it, and the recording can be kept on disk.

    >>> import torch, foldloom as fl
    >>> model = torch.nn.Linear(2, 1)
    >>> recordings = [fl.record(model, torch.ones(2)), fl.record(model, torch.zeros(2))]
    >>> len(fl.batch(model).run(fl.plan(recordings)))
    2
    """
    return record_together(function, [args])


def record_each(function: Callable[..., Any], *columns: Sequence[Any]) -> list[Recording]:
    """``record`` for each of the examples ``zip(*columns)``, which costs less than for one at a time.

    >>> import torch, foldloom as fl
    >>> model = torch.nn.Linear(2, 1)
    >>> len(fl.record_each(model, [torch.ones(2), torch.zeros(2)]))
    2
    """
    examples = examples_of(columns)
    return split_recording(record_together(function, examples, 0)) if examples else []


def record_together(
    function: Callable[..., Any], examples: Sequence[tuple[Any, ...]], first: int | None = None
) -> Recording:
    """One recording of several examples, which share nothing. ``first`` is the number of the first in its batch, if it is in one."""
    watch_all()
    recorder = Recorder(ByDepth(), function)
    recorder.flushes.on_demand = partial(_refuse_demand, function)
    recorder.guards.runs_later = True
    recorder.flushes.waits_for_errors = False
    module = module_of(function)
    if module is not None:
        recorder.inputs.share_buffers(module)
    try:
        with looking_at(function), recording_into(recorder), gc_paused():
            for number, args in enumerate(examples):
                recorder.inputs.forget()
                try:
                    outputs, _, template = _record_example(recorder, function, template_of, args, number)
                    recorder.graph.add_result(outputs, template)
                except Exception as error:
                    if first is not None:
                        error.add_note(f"in example {first + number} of the batch")
                    raise
        recorder.guards.check_modules()
        ops = recorder.graph.ops
        if torch.utils.data.get_worker_info() is not None:
            refuse_tracked(ops)
        if module is None:
            return recorder.graph.close()
        cells = paths_of_cells(module, [op.key for op in ops if not op.is_input and not is_function(op)])
        weights = paths_of(module) if any(op.shared for op in ops) else None
        return recorder.graph.close(cells, weights, training_of(module, cells))
    finally:
        recorder.end()


def plan(recordings: Sequence[Recording], scheduler: Scheduler | None = None) -> Planned:
    """Merge, schedule and place recordings as one batch; no Python runs per node. Serves as a ``collate_fn``.

    >>> import torch, foldloom as fl
    >>> model = torch.nn.Linear(2, 1)
    >>> planned = fl.plan(fl.record_each(model, [torch.ones(2), torch.zeros(2)]))
    >>> planned.statistics().steps  # both in one
    1
    >>> results = fl.batch(model, stack=True).run(planned)
    >>> results.shape
    torch.Size([2, 1])
    """
    if isinstance(recordings, Recording) or not isinstance(recordings, Iterable):
        raise ArgumentError(
            f"fl.plan takes a list of recordings, and was given {described(recordings)}: write `fl.plan([recording])`"
        )
    recordings = list(recordings)
    for recording in recordings:
        if not isinstance(recording, Recording):
            raise ArgumentError(
                f"fl.plan takes recordings, and was given {described(recording)}: write `fl.plan(fl.record_each(f, examples))`"
            )
    if not recordings:
        raise ArgumentError("there is nothing to plan: give fl.plan at least one recording")
    planned = prepare(merge_recordings(recordings), scheduler_of(scheduler, ByDepth))
    _check_can_leave(planned.plan.ops, planned.results)
    return planned


def _check_can_leave(ops: Sequence[Op], results: Sequence[Any]) -> None:
    """In a worker of a DataLoader: raise what sending it would raise in a thread of the worker's, where nobody would hear of it."""
    if torch.utils.data.get_worker_info() is None:
        return
    refuse_tracked(ops)
    try:
        ForkingPickler.dumps((ops, results))
    except Exception as error:
        raise RecordingError(
            f"what was recorded cannot be pickled, and so cannot leave the worker: {error}. Return tensors and plain values from the "
            "function, and pass plain values to torch's functions; or plan where it runs, with num_workers=0"
        ) from error


def _record_example(
    recorder: Recorder, function: Callable[..., Any], taken: Callable[..., Any], args: Sequence[Any], number: int
) -> tuple[list[int], list[Any], Any]:
    """The values that one example returns, what is known of them (`GivenBack`), and its result without them, as ``taken`` takes it apart."""
    recorder.graph.begin(number)
    with RecordingMode(recorder):
        given = [_lifted(recorder, arg) for arg in args]
        copies = [
            value for value, arg in zip(given, args, strict=True) if value is not arg and type(value) in (list, dict)
        ]
        before = [_items_of(copy) for copy in copies]
        template, outputs = taken(function(*given), LazyTensor)
        if [_items_of(copy) for copy in copies] != before:
            raise ArgumentError(
                "the function changes a list or dict that it is given, by which values that are not computed yet would leave the batch. "
                f"Change a copy: `xs = list(xs)`\n  in example {number}"
            )
        none = not recorder.inputs.has_given and not recorder.flushes.retained
        given_back = [None if none else recorder.known_of(output) for output in outputs]
        return [_value_of(recorder, output) for output in outputs], given_back, template


def _recorded(recorder: Recorder, fibers: Fibers, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the examples. One that raises might have raised something else before, in a call that has not run yet; or one before it."""
    try:
        return fibers.run(tasks)
    except Exception:
        earlier = None if fibers.failed_at is None else recorder.flushes.error_before(fibers.failed_at)
        if earlier is None:
            raise
        raise earlier from earlier.__cause__


def _value_of(recorder: Recorder, output: LazyTensor) -> int:
    """The value that an example returns, of a fixed shape."""
    if output._recorder is not recorder or output._type.ragged:
        output = recorder.dense(recorder.own(output))
    return output._value  # type: ignore[no-any-return]


def _items_of(container: list[Any] | dict[Any, Any]) -> list[int]:
    """Which items there are, in which order."""
    return [*map(id, container), *(map(id, container.values()) if isinstance(container, dict) else ())]


def _lifted(recorder: Recorder, arg: Any) -> Any:
    """Tensors that an example consists of are its values, alone or in a list, tuple or dict."""
    if is_tensor(arg):
        return recorder.give(arg)
    kind = type(arg)
    if kind is list or kind is tuple:
        if not any(map(is_tensor, arg)):
            return arg
        return kind([recorder.give(item) if is_tensor(item) else item for item in arg])
    if kind is dict and any(map(is_tensor, arg.values())):
        return {key: recorder.give(item) if is_tensor(item) else item for key, item in arg.items()}
    return arg


def _add_line(error: Exception, recorder: Recorder) -> None:
    """Say where the operation that failed was called. All its calls are recorded alike, so only the first is known, if it did not fail at
    once."""
    if isinstance(error, CellError):
        line = None if error.op is None else recorder.signatures.line_of(error.op)
        if line is not None:
            error.add_note(f"first called at {line}")
        return
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [f"{file}:{line}" for file, line in frames if not is_machinery(file)]
    if users:
        error.add_note(f"at {users[-1]}")


def _refuse_demand(function: object, _: object) -> None:
    name = getattr(function, "__name__", type(function).__name__)
    raise ValueNotReadyError(
        f"{name} asks for a value that is not computed yet, at {user_line()}, so what it does next cannot be recorded ahead. Run it "
        "with fl.batch, which waits for values, or move the decision into a cell (`torch.where`)"
    )


def _device_of_inputs(planned: Planned) -> torch.device:
    for column in planned.inputs:
        if isinstance(column, tuple):
            return column[0].device  # type: ignore[no-any-return]
    return torch.get_default_device()
