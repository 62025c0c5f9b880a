"""Recording: the calls of cells for a batch of examples, as the rows that every call reads and writes.

A value gets its row in the arena of its type when it is recorded, so there is no separate placement. A call in a loop
runs in the round after the last of its operands that the same loop computes.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foldloom.errors import ArgumentError, ExportedFileError
from foldloom.pytrees.messages import shown
from foldloom.runtime.description import Array, Description, OpOf, rebuilt
from foldloom.runtime.limits import Limits, Meter, metered, too_much

NOTHING, SINK = 0, 1
"""The first two rows of every arena: padding reads the one and writes to the other."""

FIRST_ROW = 2

GIVEN = -1
"""The stage of given values."""


class Value:
    """A value that was given or will be computed."""

    __slots__ = ("round", "row", "stage", "type")

    def __init__(self, type: int, row: int, stage: int, round: int) -> None:
        self.type, self.row, self.stage, self.round = type, row, stage, round

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a value that is not computed yet was asked whether it is true: a file runs what its program asks for all at once, so "
            "nothing in it can depend on a computed value"
        )


class Calls:
    """All calls of one op: the round of each, and the rows that it reads and writes, call after call."""

    __slots__ = ("lengths", "made", "ragged", "rounds", "rows")

    def __init__(self, op: OpOf) -> None:
        self.rounds: list[int] = []
        self.rows: list[int] = []
        self.ragged: list[list[int]] = [[] for _ in op.ragged_inputs]
        self.lengths: list[list[int]] = [[] for _ in op.ragged_inputs]
        self.made: list[list[int]] = [[] for _ in op.ragged_outputs]


_MOST_FRAMES = 500
"""How many calls of Python may be under way in one thread before the next level goes to another. Python allows 1,000 by default."""

_MOST_THREADS = 500


class Recorder:
    """Records one batch. ``limits`` are those of a file; what this process itself exports has none."""

    def __init__(self, description: Description, limits: Limits | None = None) -> None:
        self.description = description
        self.limits = limits
        self.meter = Meter(limits or Limits())
        """What is left for the example that is being recorded."""
        self.taken = 0
        """Bytes of the inputs that were made so far."""
        self.frames_of_a_level = 40
        self._level = self._threads = 0
        self._largest = max([int(np.prod(type.shape)) for type in description.types], default=0)
        self.calls = [Calls(op) for op in description.ops]
        stages = [description.stage_of_op[number] for number in range(len(description.ops))]
        self._known = [
            (calls.rounds, calls.rows, op.outputs, stage)
            for calls, op, stage in zip(self.calls, description.ops, stages, strict=True)
        ]
        self.filled = [FIRST_ROW] * len(description.types)
        self.given: list[tuple[list[int], list[Any]]] = [([], []) for _ in description.types]
        self.outputs: list[list[int]] = [[] for _ in description.types]
        self._number_of_type = {(type.shape, type.dtype): number for number, type in enumerate(description.types)}
        self._type_of_number = {
            kind: self._number_of_type.get(((), dtype))
            for kind, dtype in ((int, "int64"), (np.float32, "float32"), (np.float64, "float64"), (bool, "bool"))
        }
        self._shared: dict[int, Value] = {}
        self.metrics: dict[str, list[Any]] = {}
        """The metrics of the example that is being recorded."""

    def call(self, number: int, operands: Sequence[Value]) -> list[Value]:
        """Record a call of an op without ragged operands; returns its outputs. Optimised, because it runs once per
        node."""
        rounds, rows, outputs, stage = self._known[number]
        round = 0
        for operand in operands:
            rows.append(operand.row)
            if operand.stage >= stage:
                if operand.stage > stage:
                    raise self._out_of_order(self.description.ops[number], operand)
                if operand.round >= round:
                    round = operand.round + 1
        if round and not self.description.stages[stage].loop:
            raise self._fed_itself(self.description.ops[number])
        rounds.append(round)
        filled = self.filled
        made = []
        for type in outputs:
            row = filled[type]
            filled[type] = row + 1
            rows.append(row)
            made.append(Value(type, row, stage, round))
        return made

    def call_ragged(
        self, number: int, operands: Sequence[Sequence[Value]], rows_made: Sequence[int]
    ) -> list[list[Value]]:
        """Record a call of any op. Each operand is a list of rows, of length one if it is dense. ``rows_made`` has
        the number of rows of each output."""
        op, calls = self.description.ops[number], self.calls[number]
        stage = self.description.stage_of_op[number]
        calls.rounds.append(round := self._round(op, stage, [row for operand in operands for row in operand]))
        calls.rows += [operands[slot][0].row for slot in op.dense_inputs]
        for position, slot in enumerate(op.ragged_inputs):
            calls.ragged[position] += [row.row for row in operands[slot]]
            calls.lengths[position].append(len(operands[slot]))
        made = []
        for type, count in zip(op.outputs, rows_made, strict=True):
            first = self.filled[type]
            self.filled[type] = first + count
            made.append([Value(type, row, stage, round) for row in range(first, first + count)])
        calls.rows += [made[slot][0].row for slot in op.dense_outputs]
        for position, slot in enumerate(op.ragged_outputs):
            calls.made[position] += [row.row for row in made[slot]]
        return made

    def _round(self, op: OpOf, stage: int, operands: Sequence[Value]) -> int:
        round = 0
        for operand in operands:
            if operand.stage == stage:
                if operand.round >= round:
                    round = operand.round + 1
            elif operand.stage > stage:
                raise self._out_of_order(op, operand)
        if round and not self.description.stages[stage].loop:
            raise self._fed_itself(op)
        return round

    def _fed_itself(self, op: OpOf) -> ExportedFileError:
        return ExportedFileError(
            f"this example gives cell {op.label} what it made itself, which none of the examples did with which the model was "
            "exported, so that the file runs it once. Export it with such an example among them: `fl.export(model, path, examples)`"
        )

    def _out_of_order(self, op: OpOf, operand: Value) -> ExportedFileError:
        later = " or ".join(self.description.ops[number].label for number in self.description.stages[operand.stage].ops)
        return ExportedFileError(
            f"this example gives cell {op.label} what {later} made, which none of the examples did with which the model was exported, so "
            f"that the file runs {op.label} before it. Export it with such an example among them: `fl.export(model, path, examples)`"
        )

    def deeper(self, run: Callable[[Recorder, Any], Any], value: Any) -> Any:
        """``run(self, value)``, one level of recursion further down.

        A stack of Python calls is as deep as the data, and Python's limit is the same for all that this process does. It stays as it is: where
        many calls are under way, the next level runs in a thread of its own, which has a stack of its own.
        """
        depth = (self.limits or Limits()).depth
        self._level += 1
        if self._level > depth:
            raise too_much(
                "depth",
                depth,
                "the example is nested more than {:,} levels deep, or the program calls itself without end",
            )
        stride = max(1, 300 // self.frames_of_a_level)
        try:
            if self._level % stride == 0 and _has_frames(_MOST_FRAMES):
                return self._in_a_thread(run, value)
            return run(self, value)
        finally:
            self._level -= 1

    def _in_a_thread(self, run: Callable[[Recorder, Any], Any], value: Any) -> Any:
        results: list[Any] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with metered(self.meter):
                    results.append(run(self, value))
            except BaseException as error:
                errors.append(error)

        if self._threads >= _MOST_THREADS:
            raise too_much(
                "depth",
                _MOST_THREADS * _MOST_FRAMES,
                "the example is nested too deeply: more than {:,} calls are under way",
            )
        self._threads += 1
        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise ExportedFileError(f"the example is nested too deeply for this machine: {error}") from error
        thread.join()
        self._threads -= 1
        if errors:
            raise errors[0]
        return results[0]

    def value_of(self, given: Any, taker: str) -> Value:
        """A value, or a number or array converted to one."""
        if given.__class__ is Value:
            return given
        type = self._type_of_number.get(given.__class__)
        if type is None:
            array = self._array(given, taker) if given.__class__ is not float else np.float32(given)
            type = self._number_of_type.get((array.shape, array.dtype.name))
            if type is None:
                raise ArgumentError(
                    f"{taker} was given {shown(given)} ({array.dtype.name}{list(array.shape)}), but the file has values of "
                    f"{', '.join(map(str, self.description.types))} only"
                )
            given = array
        return self._give(type, given)

    def _array(self, given: Any, taker: str) -> Array:
        """Lists are counted first: those whose parts stand in many places may be larger than memory."""
        waiting, count = [given], 0
        while waiting and isinstance(waiting[-1], (list, tuple)):
            parts = waiting.pop()
            count += sum([not isinstance(part, (list, tuple)) for part in parts])
            waiting += [part for part in parts if isinstance(part, (list, tuple))]
            if count > self._largest or len(waiting) > self._largest + 64:
                raise ArgumentError(f"{taker} was given {shown(given)}, which is larger than any value of the file")
        return np.asarray(given)

    def shared_value(self, array: Array, taker: str) -> Value:
        """A constant of the program as a value, which all examples of a batch share."""
        known = self._shared.get(id(array))
        if known is None:
            known = self._shared[id(array)] = self.value_of(array, taker)
        return known

    def _give(self, type: int, given: Any) -> Value:
        row = self.filled[type]
        self.filled[type] = row + 1
        rows, values = self.given[type]
        rows.append(row)
        values.append(given)
        return Value(type, row, GIVEN, 0)

    def add_output(self, value: Value) -> int:
        """Request a value as output; returns its position among the outputs of its type."""
        outputs = self.outputs[value.type]
        outputs.append(value.row)
        return len(outputs) - 1


class Cell:
    """A cell of the file, called with the arguments of one example."""

    def __init__(self, name: str, description: Description) -> None:
        self.name = name
        self._ops: dict[Any, int] = {}
        self._returns: dict[int, Any] = {}
        for number, op in enumerate(description.ops):
            if op.cell == name and not op.ragged_inputs:
                self._ops[(op.inputs, op.nesting, op.settings)] = number
                self._returns[number] = op.returns
        self._description = description
        self._flat = {
            inputs: number
            for (inputs, nesting, settings), number in self._ops.items()
            if (nesting, settings) == (None, ())
        }

    def called(self, recorder: Recorder, args: Sequence[Any]) -> Any:
        """A call with flat arguments and no settings."""
        operands = [arg if arg.__class__ is Value else recorder.value_of(arg, self.name) for arg in args]
        number = self._flat.get(tuple([operand.type for operand in operands]))
        if number is None:
            raise self.unknown(operands)
        made = recorder.call(number, operands)
        returns = self._returns[number]
        return made[0] if returns is None else rebuilt(returns, made)

    def called_with(self, recorder: Recorder, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        leaves: list[Any] = []
        nesting = described_nesting(args, leaves)
        if nesting is not None and all(part is None for part in nesting[2]):
            nesting = None
        operands = [recorder.value_of(leaf, self.name) for leaf in leaves]
        frozen = tuple(sorted((name, repr(value)) for name, value in settings.items()))
        number = self._ops.get((tuple([operand.type for operand in operands]), nesting, frozen))
        if number is None:
            raise self.unknown(operands)
        return rebuilt(self._returns[number], recorder.call(number, operands))

    def unknown(self, operands: Sequence[Value]) -> ExportedFileError:
        types = self._description.types
        known = [op for op in self._description.ops if op.cell == self.name]
        asked = ", ".join(str(types[operand.type]) for operand in operands)
        takes = " or ".join(sorted({"(" + ", ".join(str(types[type]) for type in op.inputs) + ")" for op in known}))
        return ExportedFileError(
            f"cell {self.name} is called with ({asked}), but in this file it takes {takes or 'nothing: there is no such cell'}. Export the "
            "model with an example that calls it so: `fl.export(model, path, examples)`"
        )


def _has_frames(count: int) -> bool:
    """Whether so many calls are under way in this thread."""
    try:
        sys._getframe(count)
    except ValueError:
        return False
    return True


def described_nesting(value: Any, leaves: list[Any]) -> Any:
    """Append the leaves of nested arguments, and return the nesting as a description has it."""
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        return (kind, len(value), tuple([described_nesting(item, leaves) for item in value]))
    if isinstance(value, dict):
        return ("dict", tuple(value), tuple([described_nesting(item, leaves) for item in value.values()]))
    leaves.append(value)
    return None
