"""Whether batching pays.

Recording, planning and waiting take time, and where steps are small that is more than batching saves. So the first batches of a function are
timed: of each, a few of the last examples run by themselves. Unless these take much longer, one whole batch runs one by one; and if that takes
less time, so do all later batches of about this size. The results are the same either way.

Where results require grad and are differentiated, backward counts too. A loss of all examples is differentiated in one pass, but autograd
runs the nodes that were made last first: what ran by itself is done before it comes to the batch. So the clock is read where the pass
reaches the first results of either.

Functions that draw random numbers always run in batches: examples that have waited draw other numbers than in a loop, and which
they draw must not depend on a clock. With `torch.use_deterministic_algorithms(True)` all functions do, because the last digits of a sum may
differ between the two ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

import torch

from foldloom.execution.kernels import random_state
from foldloom.pytrees import contents
from foldloom.torch_private import backward_pass, queue_callback
from foldloom.tracing.examples.outcomes import Errors, noted
from foldloom.tracing.fibers.torch_state import TorchState

FEW = 8
"""Smaller batches are timed as a whole, now one way and now the other. Of larger ones, one example in so many runs by itself."""

TRIALS, TRIALS_OF_FEW = 3, 8
"""So many batches are timed, after the first, in which everything is new. Small ones differ more from each other."""

clock: Callable[[], float] = time.thread_time
"""Time that this thread has worked: others may keep the machine busy."""

MARGIN, MARGIN_WITH_GRADIENTS = 1.0, 2.0
"""How many times as long batches must take; the second where there are gradients and backward was not seen, which gains more by
batching than forward does."""

CLEARLY = 0.5
"""A few examples decide only if they took so much longer by themselves; if not, a whole batch runs one by one and decides."""


class _Spent:
    def __init__(self) -> None:
        self.seconds, self.examples, self.times = 0.0, 0, 0
        self.backward_seconds, self.backward_examples = 0.0, 0

    @property
    def per_example(self) -> float:
        forward = self.seconds / max(1, self.examples)
        return forward + (self.backward_seconds / self.backward_examples if self.backward_examples else 0.0)


class _Backward:
    """Times the backward passes through the results of one batch, of which some examples may have run by themselves."""

    def __init__(self) -> None:
        self._pass = -1
        self._since = 0.0
        self._running: _Spent | None = None
        self._seen: list[_Spent] = []

    def watch(self, results: Any, spent: _Spent, count: int) -> None:
        for node in {tensor.grad_fn for tensor in _tensors_in(results) if tensor.grad_fn is not None}:
            node.register_prehook(partial(self._reached, spent, count))

    def _reached(self, spent: _Spent, count: int, _grads: Any) -> None:
        now = clock()
        if self._pass == backward_pass():
            self._stop(now)
        else:
            queue_callback(self._over)
            self._pass = backward_pass()
        if not any(spent is seen for seen in self._seen):
            self._seen.append(spent)
            spent.backward_examples += count
        self._running, self._since = spent, now

    def _stop(self, now: float) -> None:
        if self._running is not None:
            self._running.backward_seconds += now - self._since

    def _over(self) -> None:
        self._stop(clock())
        self._running = None


def _tensors_in(results: Any) -> Iterator[torch.Tensor]:
    """The tensors of plain containers; others may hold anything, and it does no harm to miss some."""
    return (value for value in contents([results], attributes=False) if isinstance(value, torch.Tensor))


class Pace:
    """How fast a function is in batches of about one size, and how fast one by one."""

    def __init__(self, count: int, *, with_gradients: bool) -> None:
        self._with_gradients = with_gradients
        self._in_parts = count >= FEW
        self._trials = TRIALS if self._in_parts else TRIALS_OF_FEW
        self._calls = 0
        self._whole_decides = False
        """Whether the next batch runs one by one as a whole, and decides."""
        self._together, self._alone = _Spent(), _Spent()
        self._backward = _Backward()
        self.is_settled = False
        self.is_alone = False
        """Whether examples run one by one, once that is settled."""

    def count_alone(self, count: int) -> int:
        """How many of the next examples, the last ones, are to run by themselves."""
        if not self.is_settled and self._is_known():
            self._settle()
        if self.is_settled:
            return count if self.is_alone else 0
        self._calls += 1
        self._backward = _Backward()
        if self._calls == 1:
            return 0
        if not self._in_parts:
            return count if self._calls % 2 else 0
        return count if self._whole_decides else count // FEW

    @contextmanager
    def together(self, count: int) -> Iterator[None]:
        """Time some examples that run as a batch."""
        before = random_state(None)
        with self._timed(self._together, count):
            yield
        if not torch.equal(random_state(None), before):
            self.is_settled, self.is_alone = True, False

    @contextmanager
    def alone(self, count: int) -> Iterator[None]:
        """Time some examples that run one by one."""
        with self._timed(self._alone, count):
            yield

    @contextmanager
    def _timed(self, spent: _Spent, count: int) -> Iterator[None]:
        start = clock()
        yield
        if self.is_settled or self._calls == 1 or not count:
            return
        spent.seconds += clock() - start
        spent.examples += count
        spent.times += 1

    def gave(self, results: Any, count: int, *, alone: bool) -> None:
        """Some examples returned this, and backward may come to it."""
        if self._with_gradients and not self.is_settled and self._calls > 1:
            self._backward.watch(results, self._alone if alone else self._together, count)

    def _is_known(self) -> bool:
        whole = self._whole_decides and self._alone.times > 0
        return self._together.times >= self._trials and (whole or self._alone.times >= self._trials)

    def _settle(self) -> None:
        has_backward = self._together.backward_examples and self._alone.backward_examples
        margin = MARGIN_WITH_GRADIENTS if self._with_gradients and not has_backward else MARGIN
        ratio = self._together.per_example / max(self._alone.per_example, 1e-9)
        if self._in_parts and not self._whole_decides and ratio > margin * CLEARLY:
            # The last examples may be smaller than others, or larger.
            self._whole_decides, self._alone = True, _Spent()
        else:
            self.is_settled, self.is_alone = True, ratio > margin

    @property
    def times_as_fast(self) -> float:
        """One by one, in relation to batches."""
        return self._together.per_example / max(self._alone.per_example, 1e-9)


class Paces:
    """The paces of one function, by the size of batches and whether there are gradients."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, bool], Pace] = {}
        self._state: TorchState | None = None

    def __reduce__(self) -> tuple[type[Paces], tuple[()]]:
        """What was timed here says nothing of another process."""
        return Paces, ()

    def state(self) -> TorchState:
        """Torch's modes as they are now; nearly always they are as they were."""
        if self._state is None or not self._state.holds():
            self._state = TorchState.capture()
        return self._state

    def of(self, count: int) -> Pace:
        with_gradients = torch.is_grad_enabled()
        key = (count.bit_length(), with_gradients)
        pace = self._of.get(key)
        if pace is None:
            pace = self._of[key] = Pace(count, with_gradients=with_gradients)
        return pace

    def in_words(self) -> list[str]:
        """What was found to be faster one by one."""
        return [
            f"batches of {_sizes(bits)} run one by one{' with gradients' if with_gradients else ''}, which was "
            f"{pace.times_as_fast:.1f} times as fast"
            for (bits, with_gradients), pace in sorted(self._of.items())
            if pace.is_alone
        ]


def _sizes(bits: int) -> str:
    return "1" if bits == 1 else f"{1 << bits - 1} to {(1 << bits) - 1}"


def run_alone(
    function: Callable[..., Any], examples: Sequence[tuple[Any, ...]], first: int, state: TorchState, errors: Errors
) -> list[Any]:
    """Call a function on each of these examples; ``first`` is the number of the first in its batch. As in a batch, no example leaves torch's
    modes, which are ``state`` now, or context variables changed."""
    results: list[Any] = []
    context = copy_context()
    for number, args in enumerate(examples, first):
        try:
            results.append(context.copy().run(function, *args))
        except Exception as error:
            if errors == "raise":
                error.add_note(f"in example {number}")
                raise
            results.append(noted(error, number))
        finally:
            if not state.holds():
                state.apply()
    return results
