"""`fl.batch`, `fl.record` and `fl.plan`: one example's program, run for many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foldloom.engine import Planned, execute, prepare
from foldloom.errors import ArgumentError
from foldloom.execution import Kernel
from foldloom.lazy.cell import Cell, find_cell
from foldloom.lazy.recorder import Recorder
from foldloom.lazy.scope import recording_into
from foldloom.lazy.tensor import LazyTensor
from foldloom.recording import Recording, merge_recordings
from foldloom.results import stack_values, stacked, template_of, unstacked
from foldloom.schedulers import ByDepth, Scheduler


class Batched:
    """A function of one example, as a function of many. Made by `batch`."""

    def __init__(self, function: Callable[..., Any], scheduler: Scheduler, stack: bool) -> None:
        self.function = function
        self.scheduler = scheduler
        self.stack = stack

    def __call__(self, *columns: Sequence[Any]) -> Any:
        """The results of the examples ``zip(*columns)``."""
        recorder = Recorder()
        with recording_into(recorder):
            for number, args in enumerate(_examples(columns)):
                _record_example(recorder, self.function, args, number)
        return self.run(prepare(recorder.close(), self.scheduler))

    def run(self, planned: Planned) -> Any:
        """The results of a batch that was planned before, in this process or in another."""
        kernels: list[Kernel | None] = []
        device: torch.device | None = None
        for op in planned.plan.ops:
            if op.is_input:
                kernels.append(None)
                continue
            cell = find_cell(op.key, self.function)
            device = device or cell.device
            if cell.device not in (device, None):
                raise ArgumentError(
                    f"the weights of cell {cell.label} are on {cell.device}, those of others on {device}: a batch runs on one "
                    f"device, so write `model.to({str(device)!r})`"
                )
            kernels.append(cell.kernel(op))
        blocks = execute(planned, kernels, device or _device_of_inputs(planned))
        give_back = stacked if self.stack else unstacked
        return give_back(planned.plan, blocks, planned.results)

    def __repr__(self) -> str:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"fl.batch({name}, scheduler={self.scheduler}, stack={self.stack})"


def batch(function: Callable[..., Any], *, scheduler: Scheduler | None = None, stack: bool = False) -> Batched:
    """``batch(function)(xs, ys)`` is ``[function(x, y) for x, y in zip(xs, ys)]``, in few large steps.

    The function is written for one example and may recurse, loop and branch as it likes; what it computes on tensors, it
    computes in cells. Results may be nested in tuples, lists, dicts and dataclasses. With ``stack=True`` they come in the
    nesting of one example's result instead, every tensor stacked over the examples and every list of like tensors
    as one `Ragged`.

    >>> import torch, foldloom as fl
    >>> double = fl.cell(lambda x: 2 * x)
    >>> def power(exponent, x):
    ...     return x if exponent == 0 else double(power(exponent - 1, x))
    >>> fl.batch(power)([1, 4, 10], torch.tensor([1.0, 1.0, 1.0]))
    [tensor(2.), tensor(16.), tensor(1024.)]
    >>> fl.batch(power, stack=True)([1, 4, 10], [1, 1, 1])
    tensor([   2,   16, 1024])
    """
    return Batched(function, scheduler or ByDepth(), stack)


def one_by_one(function: Callable[..., Any], *, stack: bool = False) -> Callable[..., Any]:
    """What `batch` must equal, computed the plain way: each example alone, in a loop. To check and to debug with."""

    def run(*columns: Sequence[Any]) -> Any:
        results = [function(*args) for args in _examples(columns)]
        return stack_values(results) if stack else results

    return run


def record(function: Callable[..., Any], *args: Any) -> Recording:
    """What the function asks for on one example, computed later: plan several with `plan`, run them with `Batched.run`.

    If the function is a module, its cells are named by their path in it, and the recording can be kept on disk.
    """
    recorder = Recorder()
    with recording_into(recorder):
        _record_example(recorder, function, args, 0)
    if not isinstance(function, torch.nn.Module):
        return recorder.close()
    return recorder.close({child.key: path for path, child in function.named_modules() if isinstance(child, Cell)})


def plan(recordings: Sequence[Recording], scheduler: Scheduler | None = None) -> Planned:
    """Merge, schedule and place recordings as one batch; no Python runs per node. Serves as a ``collate_fn``."""
    if not recordings:
        raise ArgumentError("there is nothing to plan: give fl.plan at least one recording")
    return prepare(merge_recordings(recordings), scheduler or ByDepth())


def _examples(columns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    if not columns:
        raise ArgumentError("call the batched function with at least one list of arguments: fl.batch(f)(xs)")
    lists = [list(column) for column in columns]
    lengths = [len(column) for column in lists]
    if len(set(lengths)) > 1:
        raise ArgumentError(f"the lists of arguments have different lengths {lengths}; every example needs one of each")
    return list(zip(*lists, strict=True))


def _record_example(recorder: Recorder, function: Callable[..., Any], args: Sequence[Any], number: int) -> None:
    try:
        outputs: list[LazyTensor] = []
        template = template_of(function(*args), LazyTensor, outputs)
    except Exception as error:
        error.add_note(f"while recording example {number} for fl.batch")
        raise
    recorder.end_example(outputs, template)


def _device_of_inputs(planned: Planned) -> torch.device:
    for column in planned.inputs:
        if isinstance(column, tuple):
            return column[0].device  # type: ignore[no-any-return]
    return torch.get_default_device()
