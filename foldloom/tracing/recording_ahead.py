"""`fl.record` and `fl.plan`: examples are recorded and planned ahead, and run later or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from foldloom.errors import ArgumentError, RecordingError, ValueNotReadyError
from foldloom.execution.engine import Planned, prepare
from foldloom.execution.gc_pause import gc_paused
from foldloom.graph import Op
from foldloom.graph.recording import Recording, merge_recordings, refuse_tracked, split_recording
from foldloom.planning.schedulers import ByAgenda, Scheduler
from foldloom.pytrees import template_of
from foldloom.tracing.arguments import described, examples_of, scheduler_of
from foldloom.tracing.building.training_mode import training_of
from foldloom.tracing.cells.lookup import paths_of_cells
from foldloom.tracing.examples.one_example import record_example
from foldloom.tracing.flushing.kernels import is_function
from foldloom.tracing.interception import watch_all
from foldloom.tracing.looking import looking_at
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import recording_into, user_line
from foldloom.tracing.weights import module_of, paths_of


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
    recorder = Recorder(ByAgenda(), function)
    recorder.flushes.on_demand = partial(_refuse_demand, function)
    recorder.guards.runs_later = True
    recorder.flushes.waits_for_errors = False
    # An exported file knows the operations that examples showed, each recorded by itself: whoever is recorded with others must call the same.
    recorder.graph.numbers_vary = False
    module = module_of(function)
    if module is not None:
        recorder.inputs.share_buffers(module)
    try:
        with looking_at(function, runs=False), recording_into(recorder), gc_paused():
            for number, args in enumerate(examples):
                recorder.inputs.forget()
                try:
                    outputs, _, template = record_example(recorder, function, template_of, args, number)
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
    planned = prepare(merge_recordings(recordings), scheduler_of(scheduler))
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


def _refuse_demand(function: object, _: object) -> None:
    name = getattr(function, "__name__", type(function).__name__)
    raise ValueNotReadyError(
        f"{name} asks for a value that is not computed yet, at {user_line()}, so what it does next cannot be recorded ahead. Run it "
        "with fl.batch, which waits for values, or move the decision into a cell (`torch.where`)"
    )
