"""From recorded calls to the inputs of the file: arenas with the given values, and the rows of every call.

The rounds of a loop are padded to the widest. Trees are wide at the leaves and narrow at the root, so a loop is split
into a few parts, each padded to its own widest round. The split is chosen for every batch.

Every dimension is at least 2, because compilers specialise on 0 and 1. A round is padded by repeating its last call,
whose output goes to a row that is never read. Repeated calls compute on real values, which are always in the domain of
a cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from foldloom.runtime.description import Array, Description, OpOf, Stage
from foldloom.runtime.limits import too_much
from foldloom.runtime.recorder import NOTHING, SINK, Calls, Recorder

LEAST = 2
"""The smallest dimension: compilers specialise on 0 and 1."""


def feeds_of(recorder: Recorder) -> dict[str, Array]:
    """The inputs of the file by name, in the order of its description."""
    description = recorder.description
    feeds = {f"arena_{number}": _arena(recorder, number) for number in range(len(description.types))}
    for number, stage in enumerate(description.stages):
        calls = {op: _Sorted(description.ops[op], recorder.calls[op]) for op in stage.ops}
        for part, (first, last) in enumerate(_parts(stage, list(calls.values()))):
            suffix = f"_{part}" if stage.loop else ""
            if stage.loop:
                feeds[f"rounds_{number}{suffix}"] = np.array(last - first)
            for op in stage.ops:
                _check_room(recorder, _padded_bytes(calls[op], first, last))
                for name, feed in _indices(description, op, calls[op], first, last, stage.loop):
                    feeds[name + suffix] = feed if stage.loop else feed[0]
    for number, rows in enumerate(recorder.outputs):
        feeds[f"output_{number}"] = np.array(rows + [NOTHING] * (LEAST - len(rows)), np.int64)
    return feeds


def _check_room(recorder: Recorder, size: int) -> None:
    """Refuse what would take more memory than a file may, before it is taken."""
    recorder.taken += size
    if recorder.limits is not None and recorder.taken > recorder.limits.memory:
        raise too_much(
            "memory",
            recorder.limits.memory,
            "a batch of its inputs would take more than {:,} bytes. Take fewer examples at once",
        )


def _padded_bytes(calls: _Sorted, first: int, last: int) -> int:
    """What the rows of some rounds take when each round is padded to the widest."""
    round = calls.round[(calls.round >= first) & (calls.round < last)]
    widest = int(np.bincount(round - first).max()) if len(round) else 0
    longest = max([int(lengths.max()) for lengths in calls.lengths if len(lengths)], default=0)
    return 8 * (last - first + 1) * (widest + 1) * max(int(calls.rows.shape[1]), longest)


def _arena(recorder: Recorder, number: int) -> Array:
    type = recorder.description.types[number]
    rows, values = recorder.given[number]
    _check_room(recorder, recorder.filled[number] * math.prod(type.shape) * np.dtype(type.dtype).itemsize)
    arena = np.zeros((recorder.filled[number], *type.shape), type.dtype)
    if rows:
        arena[rows] = values
    return arena


class _Sorted:
    """All calls of an op, sorted by round."""

    def __init__(self, op: OpOf, calls: Calls) -> None:
        round = np.array(calls.rounds, np.int64)
        order = np.argsort(round, kind="stable")
        self.round = round[order]
        slots = len(op.dense_inputs) + len(op.dense_outputs)
        self.rows = np.array(calls.rows, np.int64).reshape(len(order), slots)[order]
        self.lengths = [np.array(lengths, np.int64)[order] for lengths in calls.lengths]
        self.ragged = [
            _in_order(rows, lengths, order) for rows, lengths in zip(calls.ragged, calls.lengths, strict=True)
        ]
        # A ragged output has as many rows as the last ragged operand.
        self.made = [_in_order(rows, calls.lengths[-1], order) for rows in calls.made]


def _in_order(rows: list[int], lengths: list[int], order: Array) -> Array:
    """The rows of each call, with the calls reordered."""
    ends = np.cumsum(lengths, dtype=np.int64)
    parts = [rows[ends[call] - lengths[call] : ends[call]] for call in order.tolist()]
    return np.array([row for part in parts for row in part], np.int64)


def _parts(stage: Stage, calls: list[_Sorted]) -> list[tuple[int, int]]:
    """The first and last round of each part of a loop. A new part begins where all later rounds are at most half as
    wide."""
    if not stage.loop:
        return [(0, 1)]
    members = np.bincount(np.concatenate([sorted_calls.round for sorted_calls in calls]))
    rounds = len(members)
    left = np.maximum.accumulate(members[::-1])[::-1].tolist()
    starts = [0]
    for round, width in enumerate(left):
        if len(starts) < stage.parts and 2 * width <= left[starts[-1]]:
            starts.append(round)
    starts += [rounds] * (stage.parts - len(starts))
    return list(zip(starts, [*starts[1:], rounds], strict=True))


def _indices(
    description: Description, number: int, calls: _Sorted, first: int, last: int, loop: bool
) -> Iterator[tuple[str, Array]]:
    """The rows of the calls in some rounds: for each input its name and an array with a row for each round."""
    op = description.ops[number]
    begin, end = np.searchsorted(calls.round, (first, last)).tolist()
    if begin == end and not op.ragged_inputs:
        nothing = np.full((max(last - first, LEAST), calls.rows.shape[1], LEAST), NOTHING)
        nothing[:, len(op.dense_inputs) :] = SINK
        yield f"index_{number}", nothing
        return
    if not loop and not op.ragged_inputs:
        index = np.repeat(calls.rows, LEAST, 0).T.copy() if end == 1 else np.ascontiguousarray(calls.rows.T)
        index[len(op.dense_inputs) :, end:] = SINK
        yield f"index_{number}", index[None]
        return
    # The padding rows of a ragged operand need a padding call to belong to.
    places = _Places(calls.round[begin:end] - first, max(last - first, LEAST), spare=1 if op.ragged_inputs else 0)
    if op.dense_inputs or op.dense_outputs:
        rows = np.full((end - begin + 1, calls.rows.shape[1]), NOTHING)
        rows[:-1] = calls.rows[begin:end]
        index = rows[places.calls]
        index[~places.real, len(op.dense_inputs) :] = SINK
        yield f"index_{number}", np.ascontiguousarray(index.transpose(0, 2, 1))
    for slot, rows, lengths in zip(op.ragged_inputs, calls.ragged, calls.lengths, strict=True):
        flat, of_call = places.ragged(_of_calls(rows, lengths, begin, end), lengths[begin:end], NOTHING)
        yield f"rows_{number}_{slot}", flat
        yield f"lengths_{number}_{slot}", of_call
    for slot, rows in zip(op.ragged_outputs, calls.made, strict=True):
        lengths = calls.lengths[-1]
        yield f"made_{number}_{slot}", places.ragged(_of_calls(rows, lengths, begin, end), lengths[begin:end], SINK)[0]


def _of_calls(rows: Array, lengths: Array, begin: int, end: int) -> Array:
    first = int(lengths[:begin].sum())
    return rows[first : first + int(lengths[begin:end].sum())]


class _Places:
    """The call at each place of each round, and whether the place is real or padding."""

    def __init__(self, round_of_call: Array, rounds: int, spare: int) -> None:
        counts = np.bincount(round_of_call, minlength=rounds)
        ends = np.cumsum(counts)[:, None]
        width = max(int(counts.max()) + spare, LEAST)
        place = ends - counts[:, None] + np.arange(width)
        self.real = place < ends
        # Before the first call there is none to repeat: -1 is the last entry of the table, which reads row NOTHING.
        self.calls = np.minimum(place, ends - 1)

    def ragged(self, rows: Array, lengths: Array, spare: int) -> tuple[Array, Array]:
        """The rows of each round, call after call, and the number of rows of each call. Padding rows belong to the
        last call, which is padding too."""
        of_call = np.where(self.real, np.append(lengths, 0)[self.calls], 0)
        totals = of_call.sum(1)
        width = max(int(totals.max()), LEAST)
        ends = np.cumsum(totals)[:, None]
        place = ends - totals[:, None] + np.arange(width)
        is_real = place < ends
        flat = np.full((len(totals), width), spare)
        flat[is_real] = rows[place[is_real]]
        of_call[:, -1] += width - totals
        return flat, of_call
