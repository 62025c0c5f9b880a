"""Attempts: what is recorded on trial, and forgotten again if it turns out that it cannot be kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from foldloom.tracing import fast_path
from foldloom.tracing.automatic.body_builder import BodyBuilder
from foldloom.tracing.automatic.interpreter import Interpreter
from foldloom.tracing.automatic.natives import Natives
from foldloom.tracing.automatic.tracked import NotRepeatable, Tracker
from foldloom.tracing.mutation.views import leave_base
from foldloom.tracing.recording.recorder import Recorder

T = TypeVar("T")


class Attempt:
    """Instructions of a function that are followed."""

    def __init__(self, recorder: Recorder, function: Any, arguments: tuple[Any, ...] = ()) -> None:
        self.recorder = recorder
        self._function = function
        self._arguments = arguments
        self.natives = Natives()
        self.tracker: Tracker

    def follow(self, steps: Callable[[Interpreter], T]) -> T:
        """What the steps record stays in the graph, unless they fail."""
        graph, flushes = self.recorder.graph, self.recorder.flushes
        numbers_vary = graph.numbers_vary
        graph.is_captured = True
        self.recorder.signatures.change_mode()
        self._first = graph.mark()
        flushes.refuses = NotRepeatable
        graph.numbers_vary = False  # those of a body are its constants
        try:
            self.tracker = Tracker(self.recorder, self._function, self._arguments)
            return steps(Interpreter(self.tracker, self.natives))
        except BaseException:
            self.forget()
            raise
        finally:
            flushes.refuses = None
            graph.numbers_vary = numbers_vary
            graph.is_captured = False
            self.recorder.signatures.change_mode()

    def forget(self) -> None:
        """As if nothing had been recorded: Python runs the instructions. Other values get the same numbers, so nothing may be left that is
        known of these, and nobody who stands for them."""
        values = self._first.values
        for handle in fast_path.handles_since(self.recorder, values):
            leave_base(handle)
            fast_path.forget_handle(handle)
        self.recorder.graph.rewind(self._first)
        self.recorder.inputs.rewind(values)
        self.recorder.flushes.renumbered()

    def builder(self) -> BodyBuilder:
        """The body that the recorded operations make."""
        graph, first = self.recorder.graph, self._first
        builder = BodyBuilder(self.tracker, self.natives)
        operands, lengths = iter(graph.operands[first.operands :]), iter(graph.lengths[first.lengths :])
        value = first.values
        for count, number in enumerate(graph.op_of_node[first.nodes :]):
            op = graph.ops[number]
            if op.is_input:
                if op.outputs[0].ragged:
                    raise TooFar("it makes a value of any number of rows of a given tensor", count)
                value += 1
                continue
            read = [_rows(operands, next(lengths)) if type.ragged else next(operands) for type in op.inputs]
            made: list[Any] = []
            for type in op.outputs:
                made.append(tuple(range(value, value + next(lengths))) if type.ragged else value)
                value += len(made[-1]) if type.ragged else 1
            try:
                builder.add(op, read, made, graph.histories.rules_of(number))
            except NotRepeatable as error:
                raise TooFar(str(error), count) from None
        return builder


class TooFar(NotRepeatable):
    """So many nodes could be kept."""

    def __init__(self, reason: str, nodes: int) -> None:
        super().__init__(reason)
        self.nodes = nodes


def _rows(operands: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(operands, count))
