"""Attempts: what is recorded on trial, and forgotten again if it turns out that it cannot be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from foldloom.tracing.automatic.body_builder import BodyBuilder
from foldloom.tracing.automatic.interpreter import Interpreter
from foldloom.tracing.automatic.natives import Natives
from foldloom.tracing.automatic.tracked import NotRepeatable, Tracker
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
        self.recorder.signatures.change_mode()
        self._first = graph.mark()
        flushes.refuses = NotRepeatable("it needs the value of a tensor")
        graph.numbers_vary = False  # those of a body are its constants
        try:
            self.tracker = Tracker(self.recorder, self._function, self._arguments)
            return steps(Interpreter(self.tracker, self.natives))
        except BaseException:
            self.forget()
            raise
        finally:
            flushes.refuses = None
            graph.numbers_vary = True

    def forget(self) -> None:
        """As if nothing had been recorded: Python runs the instructions."""
        self.recorder.graph.rewind(self._first)
        self.recorder.inputs.rewind(self.recorder.graph.value_count)

    def builder(self) -> BodyBuilder:
        """The body that the recorded operations make."""
        graph, first = self.recorder.graph, self._first
        if len(graph.lengths) != first.lengths:
            raise NotRepeatable("it computes values with any number of rows")
        operands = graph.operands[first.operands :]
        builder = BodyBuilder(self.tracker, self.natives)
        position, value = 0, first.values
        for number in graph.op_of_node[first.nodes :]:
            op = graph.ops[number]
            if op.is_input:
                value += 1
                continue
            size = len(op.inputs)
            builder.add(op, operands[position : position + size], value, graph.histories.rules_of(number))
            position, value = position + size, value + len(op.outputs)
        return builder
