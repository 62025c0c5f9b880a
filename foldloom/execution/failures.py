"""Members of a step that fail, kept apart from those that do not.

An error belongs to one example: one by one, the others would never have known of it. Where a step raises, it is run again in halves, and those that raise in halves
of these, until those members are alone that fail. They are marked with what they raised, the others have their values and
gradients. A node that reads a failed value fails with it, without being run. The rows of failed values hold zeros, which nothing reads, so
backward never reaches them either.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from foldloom.errors import CellError, CellOutputError
from foldloom.execution.kernels import Kernel, dtype_of, member_of
from foldloom.graph import Ints, Op
from foldloom.graph.ragged import Ragged
from foldloom.planning.plans import Plan, Step, Write

Operands = Sequence[torch.Tensor | Ragged]


class Failure:
    """Why values could not be computed: the error of one member of a step, as one by one it would be."""

    __slots__ = ("error", "op", "order", "place", "text")

    def __init__(self, error: Exception, op: Op, text: str, order: tuple[int, int]) -> None:
        self.order = order
        """The example, and which of its nodes it is: of two failures the lesser would be raised one by one."""
        self.error = error
        self.op = op
        self.text = text
        """What to say to somebody who does not know which member it was."""
        self.place: tuple[int, int] | None = None
        """The arena and row of the first value that failed."""

    def as_cell_error(self) -> CellError:
        error = cell_error(self.text, self.error, self.op)
        error.example = self.order[0]
        return error


class Failures:
    """The failed values of a batch, by their places in the arenas."""

    def __init__(self) -> None:
        self._rows_of_arena: dict[int, dict[int, Failure]] = {}
        self._new: list[Failure] = []

    def __bool__(self) -> bool:
        return bool(self._rows_of_arena)

    @property
    def has_new(self) -> bool:
        """Whether something has failed of itself since `take_new`."""
        return bool(self._new)

    def of(self, arena: int, row: int) -> Failure | None:
        return self._rows_of_arena.get(arena, {}).get(row)

    def first_new(self) -> Failure:
        """Of these, what one by one would be raised."""
        return min(self._new, key=lambda failure: failure.order)

    def take_new(self) -> list[Failure]:
        """What has failed of itself since this was last asked."""
        new, self._new = self._new, []
        return new

    def keep(self, rows_of_arena: Sequence[Ints]) -> None:
        """Only these rows are left, in this order."""
        before, self._rows_of_arena = self._rows_of_arena, {}
        for arena, failed in before.items():
            found = {new: failed[old] for new, old in enumerate(rows_of_arena[arena].tolist()) if old in failed}
            if found:
                self._rows_of_arena[arena] = found

    def among(self, plan: Plan, step: Step) -> dict[int, Failure]:
        """The members of a step that read failed values."""
        found: dict[int, Failure] = {}
        for read in step.reads:
            failed = self._rows_of_arena.get(read.arena)
            if not failed:
                continue
            rows = plan.rows_of(read)
            for position in np.flatnonzero(np.isin(rows, list(failed))).tolist():
                member = position % read.size
                if read.lengths >= 0:
                    ends = np.cumsum(plan.lengths_of(read, step.size))
                    member = int(np.searchsorted(ends, member, side="right"))
                found.setdefault(member, failed[int(rows[position])])
        return found

    def mark(self, failure: Failure, writes: Sequence[Write], spans: Sequence[tuple[int, int]]) -> None:
        """The rows of one member, given by their spans within the writes of its step, have failed."""
        for write, (start, end) in zip(writes, spans, strict=True):
            rows = range(write.start + start, write.start + end)
            self._rows_of_arena.setdefault(write.arena, {}).update(dict.fromkeys(rows, failure))
            if failure.place is None and len(rows):
                failure.place = write.arena, rows.start

    def note_new(self, failure: Failure) -> None:
        self._new.append(failure)


class Separated:
    """A step that is run in parts, because some of its members fail or read what has failed."""

    def __init__(self, kernel: Kernel, operands: Operands, step: Step, lengths: Ints | None) -> None:
        self._kernel = kernel
        self._operands = operands
        self._step = step
        self._starts = None if lengths is None else np.concatenate([[0], np.cumsum(lengths)])
        self.errors: dict[int, Exception] = {}
        """What members raised, as it would be one by one."""
        self._found: dict[tuple[int, int], Sequence[torch.Tensor]] = {}
        """What members from the first to before the second have returned."""

    def run(self, lost: Collection[int] = ()) -> None:
        """Run all members but those that are lost."""
        first = 0
        for end in (*sorted(lost), self._step.size):
            if first < end:
                self._run(first, end)
            first = end + 1

    def _run(self, first: int, end: int) -> None:
        try:
            self._found[first, end] = self._part(first, end)
            return
        except CellOutputError:
            raise
        except Exception as error:
            if end - first == 1:
                self.errors[first] = self._own_error(first, error)
                return
        middle = (first + end) // 2
        self._run(first, middle)
        self._run(middle, end)

    def take_errors(self) -> list[tuple[int, Exception]]:
        """What members have raised. From now on only who asks holds it: the frames of an error hold this object."""
        errors, self.errors = self.errors, {}
        return [*errors.items()]

    def spans(self, member: int) -> list[tuple[int, int]]:
        """The rows of a member in each block of outputs."""
        return self._spans(member, member + 1)

    def _spans(self, first: int, end: int) -> list[tuple[int, int]]:
        return [self._span(first, end, is_ragged) for is_ragged in self._kernel.ragged_outputs]

    def outputs(self) -> list[torch.Tensor]:
        """The blocks of all members, zeros for those that have no values."""
        device = next((o.values if isinstance(o, Ragged) else o).device for o in self._operands)
        blocks = []
        for number, type in enumerate(self._kernel.op.outputs):
            rows = []
            before = 0
            for first, last in (*sorted(self._found), (self._step.size, self._step.size)):
                start, end = self._spans(before, first)[number]  # of those that have failed
                if start < end:
                    rows.append(torch.zeros((end - start, *type.row.shape), dtype=dtype_of(type), device=device))
                if first < last:
                    rows.append(self._found[first, last][number])
                before = last
            blocks.append(torch.cat(rows))
        return blocks

    def _span(self, first: int, end: int, is_ragged: bool) -> tuple[int, int]:
        if not is_ragged or self._starts is None:
            return first, end
        return int(self._starts[first]), int(self._starts[end])

    def _part(self, first: int, end: int) -> Sequence[torch.Tensor]:
        outputs = self._kernel.call(*[self._operands_of(operand, first, end) for operand in self._operands])
        flat = [output.values if isinstance(output, Ragged) else output for output in outputs]
        self._kernel.check(flat, [end - start for start, end in self._spans(first, end)])
        return flat

    def _operands_of(self, operand: torch.Tensor | Ragged, first: int, end: int) -> torch.Tensor | Ragged:
        if isinstance(operand, Ragged):
            assert self._starts is not None, "who has ragged operands has their lengths"
            return Ragged(operand.values[int(self._starts[first]) : int(self._starts[end])], operand.lengths[first:end])
        return operand[first:end]

    def _own_error(self, member: int, error: Exception) -> Exception:
        """What the function raises for one example: rules call other functions, which raise other errors."""
        if self._kernel.alone is None:
            return error
        try:
            with torch.no_grad():
                self._kernel.alone(*[_without_batch(member_of(operand, member)) for operand in self._operands])
        except Exception as own:
            return own
        return error


def _without_batch(operand: torch.Tensor | Ragged) -> torch.Tensor:
    return operand.values if isinstance(operand, Ragged) else operand[0]


def out_of_range(kernel: Kernel, operands: Operands, member: int | None) -> str:
    """Which index of a member names no place, for messages: torch does not always say."""
    if kernel.table is None or member is None:
        return ""
    for operand in operands:
        block = member_of(operand, member)
        numbers = (block.values if isinstance(block, Ragged) else block).detach()
        if numbers.dtype not in (torch.int64, torch.int32):
            continue
        wrong = numbers[(numbers >= kernel.table) | (numbers < 0)]
        if wrong.numel():
            return f" (index {wrong.flatten()[0].item()} into {kernel.table} rows)"
    return ""


def cell_error(text: str, error: Exception, op: Op) -> CellError:
    """A CellError that can be caught as what torch raised, too."""
    try:
        found = _kind_of_error(type(error))(text)  # type: ignore[arg-type]
    except TypeError:  # it takes other arguments
        found = CellError(text)
    found.__cause__ = error
    found.op = op
    return found


@functools.cache
def _kind_of_error(kind: type[Exception]) -> type[CellError]:
    members: dict[str, Any] = {
        "__module__": CellError.__module__,
        "__str__": lambda self: str(self.args[0]),  # a KeyError would print it quoted
        "__reduce__": lambda self: (CellError, self.args),
    }
    try:
        return type("CellError", (CellError, kind), members)
    except TypeError:  # two kinds of objects that cannot be one
        return CellError
