"""`fl.batching`: what is computed within a `with` block is batched; and `fl.lift`, which makes a tensor a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from foldloom.errors import CellError, RecordingError
from foldloom.execution.gc_pause import gc_paused
from foldloom.planning.schedulers import Scheduler
from foldloom.torch_private import current_transform
from foldloom.tracing.arguments import scheduler_of
from foldloom.tracing.catching import Limit
from foldloom.tracing.cells.lookup import cell_of_module
from foldloom.tracing.examples.one_example import add_line
from foldloom.tracing.interception import watch_all
from foldloom.tracing.interception.function_mode import RecordingMode
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import current_mode, in_mode, recording_into, scope
from foldloom.tracing.values.lazy_tensor import is_tensor


@contextmanager
def batching(*, scheduler: Scheduler | None = None, cells: Sequence[torch.nn.Module] = ()) -> Iterator[None]:
    """Within it, what torch is asked to compute is recorded, and batched when a value is needed or it is over.

    For code that has no function of one example: a loop over a minibatch, say. In `batch` each example waits for its own values while others go on; here everything waits.

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
    recorder = Recorder(scheduler_of(scheduler), None, [cell_of_module(module) for module in cells])
    mode, inference = current_mode(), torch.is_inference_mode_enabled()

    def flush(_: object) -> None:
        # A value may be demanded within `torch.no_grad()`: everything is computed in the mode of the batch.
        with torch.inference_mode(inference), in_mode(mode):
            recorder.flushes.flush_all()

    recorder.flushes.on_demand = flush
    recorder.flushes.limit = Limit.here()
    recorder.graph.begin(0)
    is_done = False
    try:
        with recording_into(recorder), gc_paused(), RecordingMode(recorder):
            yield
        if not recorder.flushes.has_failed:
            recorder.flushes.flush_all()
            recorder.flushes.watch_gradients()
            is_done = True
    except CellError as error:
        add_line(error, recorder)
        raise
    finally:
        recorder.flushes.limit = None
        recorder.end()
    if is_done:
        recorder.let_go()


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
