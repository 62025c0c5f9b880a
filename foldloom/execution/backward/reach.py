"""Which rows of the arenas a backward pass has reached.

One by one, backward visits only what the loss depends on: an operation whose result nobody uses is never differentiated, and a weight that
the loss does not depend on gets no gradient at all. In a batch such an operation shares a step with others. It would be
differentiated with a gradient of zero, which is not the same: zero times an infinite derivative (``sqrt`` at 0) is NaN, and a weight
would get zeros instead of None, which weight decay and momentum tell apart.

So each backward pass keeps, beside its gradient arenas, which rows it has reached. A step none of whose rows were reached is
given None, and of one that was reached in part, only the gradients of its reached members are passed on.

Masks are numpy arrays: there is one small operation for each read, and numpy's cost a fraction of torch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foldloom.execution.backward.hooks import GradientHooks
from foldloom.graph import Ints
from foldloom.planning.plans import Access, Read, Write
from foldloom.torch_private import backward_pass, queue_callback

Mask = npt.NDArray[np.bool_]


class Members(NamedTuple):
    """The members of a step, as far as backward is concerned: which rows it wrote for them.

    ``writes`` are those among ``all_writes`` that have gradients, ``ragged`` tells which of them have several rows for a
    member: as many as ``lengths`` says, which is there for steps with ragged operands.
    """

    all_writes: Sequence[Write]
    writes: Sequence[Write]
    ragged: Sequence[bool]
    lengths: Ints | None


class Reach:
    """The rows that each backward pass under way has reached, arena by arena. Holds no tensor."""

    def __init__(self) -> None:
        self._masks_of_pass: dict[int, dict[int, Mask]] = {}
        self.hooks = GradientHooks()

    def _masks(self) -> dict[int, Mask]:
        number = backward_pass()
        masks = self._masks_of_pass.get(number)
        if masks is None:
            masks = self._masks_of_pass[number] = {}
            forget: Any = self._masks_of_pass.pop
            queue_callback(lambda: forget(number, None))
        return masks

    def _mask(self, arena: int, rows: int) -> Mask:
        masks = self._masks()
        mask = masks.get(arena)
        if mask is None or len(mask) < rows:
            grown = np.zeros(rows, np.bool_)
            if mask is not None:
                grown[: len(mask)] = mask
            mask = masks[arena] = grown
        return mask

    def add(self, read: Read, rows: Ints | None, arena_rows: int) -> None:
        """The rows of a read were reached; ``rows`` says which, where the read does not say it."""
        mask = self._mask(read.arena, arena_rows)
        if rows is not None:
            mask[rows] = True
        elif read.access is Access.SLICE:
            mask[read.start : read.start + read.size] = True
        else:
            mask[read.start] = True

    def of_write(self, write: Write) -> Mask:
        """For each row that was written, whether it was reached."""
        mask = self._masks().get(write.arena)
        rows = mask[write.start : write.start + write.size] if mask is not None else ()
        if len(rows) == write.size:
            return rows  # type: ignore[return-value]
        reached = np.zeros(write.size, np.bool_)
        reached[: len(rows)] = rows
        return reached

    def of_members(self, members: Members) -> Mask | None:
        """For each member of a step, whether any of its outputs was reached; None if all were."""
        found: Mask | None = None
        for write, is_ragged in zip(members.writes, members.ragged, strict=True):
            rows = self.of_write(write)
            if is_ragged:
                assert members.lengths is not None, "rows of ragged outputs are those of ragged operands"
                rows = _any_of_each(rows, members.lengths)
            found = rows if found is None else found | rows
        return None if found is None or found.all() else found


def _any_of_each(rows: Mask, lengths: Ints) -> Mask:
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(owner[rows], minlength=len(lengths)) > 0
