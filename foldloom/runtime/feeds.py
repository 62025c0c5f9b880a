"""From what was recorded to the inputs of the file: arenas with what was given in them, and the rows of every call.

Every extent is at least two, so that the file meets no extent it was not made for. Where a round has fewer calls of an op than another, its last
call stands again in their place and what it makes goes to a row that nobody reads: numbers that are real, and so is what
follows from them, where numbers made up could be outside of what a cell takes.
"""

from __future__ import annotations

import numpy as np

from foldloom.runtime.description import Array, Description, OpOf
from foldloom.runtime.recorder import NOTHING, SINK, Calls, Recorder

LEAST = 2
"""The smallest extent. Of one row or none, compilers make graphs of their own."""


def feeds_of(recorder: Recorder) -> dict[str, Array]:
    """The inputs of the file by name, in the order of its description."""
    description = recorder.description
    feeds = {f"arena_{number}": _arena(recorder, number) for number in range(len(description.types))}
    for number, stage in enumerate(description.stages):
        rounds = 0
        if stage.loop:
            rounds = max([max(recorder.calls[op].rounds, default=-1) + 1 for op in stage.ops])
            feeds[f"rounds_{number}"] = np.array(rounds)
        for op in stage.ops:
            _add_calls(feeds, description, op, recorder.calls[op], max(rounds, LEAST) if stage.loop else 1, stage.loop)
    for number, rows in enumerate(recorder.outputs):
        feeds[f"output_{number}"] = np.array(rows + [NOTHING] * (LEAST - len(rows)), np.int64)
    return feeds


def _arena(recorder: Recorder, number: int) -> Array:
    type = recorder.description.types[number]
    rows, values = recorder.given[number]
    arena = np.zeros((recorder.filled[number], *type.shape), type.dtype)
    if rows:
        arena[rows] = values
    return arena


def _add_calls(
    feeds: dict[str, Array], description: Description, number: int, calls: Calls, rounds: int, loop: bool
) -> None:
    op = description.ops[number]
    # The rows of a ragged operand that stand for nothing belong to a call that nobody asked for.
    spare = 1 if op.ragged_inputs else 0
    places = _Places(np.array(calls.rounds, np.int64), rounds, spare)
    if op.dense_inputs or op.dense_outputs:
        index = _dense_rows(op, calls, places)
        feeds[f"index_{number}"] = index if loop else index[0]
    if op.ragged_inputs:
        _add_ragged(feeds, op, number, calls, places, loop)


def _dense_rows(op: OpOf, calls: Calls, places: _Places) -> Array:
    """For each round, slot and place, the row."""
    slots = len(op.dense_inputs) + len(op.dense_outputs)
    table = np.full((len(calls.rounds) + 1, slots), NOTHING)
    table[:-1] = np.array(calls.rows, np.int64).reshape(-1, slots)
    index = table[places.calls]
    index[~places.real, len(op.dense_inputs) :] = SINK
    return np.ascontiguousarray(index.transpose(0, 2, 1))


class _Places:
    """Which call stands in each place of each round, and whether it is there for its own sake."""

    def __init__(self, round_of_call: Array, rounds: int, spare: int) -> None:
        self.order = np.argsort(round_of_call, kind="stable")
        self.counts = np.bincount(round_of_call, minlength=rounds)
        ends = np.cumsum(self.counts)[:, None]
        width = max(int(self.counts.max()) + spare, LEAST)
        place = ends - self.counts[:, None] + np.arange(width)
        self.real = place < ends
        # Before the first call there is none to stand again: -1 is the row of nothing at the end of the table.
        order = np.append(self.order, len(round_of_call))
        self.calls = order[np.minimum(place, ends - 1)]
        self.width = width


def _add_ragged(feeds: dict[str, Array], op: OpOf, number: int, calls: Calls, places: _Places, loop: bool) -> None:
    rows_of_calls = [np.array(lengths, np.int64) for lengths in calls.lengths]
    for position, slot in enumerate(op.ragged_inputs):
        rows, lengths = _ragged_rows(calls.ragged[position], rows_of_calls[position], places, NOTHING)
        feeds[f"rows_{number}_{slot}"] = rows if loop else rows[0]
        feeds[f"lengths_{number}_{slot}"] = lengths if loop else lengths[0]
    for position, slot in enumerate(op.ragged_outputs):
        # A ragged output has a row for each row of the last ragged operand.
        rows, _ = _ragged_rows(calls.made[position], rows_of_calls[-1], places, SINK)
        feeds[f"made_{number}_{slot}"] = rows if loop else rows[0]


def _ragged_rows(rows: list[int], lengths: Array, places: _Places, spare: int) -> tuple[Array, Array]:
    """The rows of each round, call after call; those left over are the last call's, which is none of anybody's."""
    real_lengths = np.where(places.real, np.append(lengths, 0)[places.calls], 0)
    totals = real_lengths.sum(1)
    width = max(int(totals.max()), LEAST)
    result = np.full((len(totals), width), spare)
    starts = np.cumsum(lengths) - lengths
    of_call = [rows[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
    first = 0
    for round, count in enumerate(places.counts.tolist()):
        own = [row for call in places.order[first : first + count].tolist() for row in of_call[call]]
        result[round, : len(own)] = own
        first += count
    real_lengths[:, -1] += width - totals
    return result, real_lengths
