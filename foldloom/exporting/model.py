"""A model as a static graph, and the way from examples to its inputs and from its outputs to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from foldloom.blocks.model import Model
from foldloom.errors import ExportError, ValueNotReadyError
from foldloom.exporting.describing import described_program
from foldloom.exporting.learning import Learned, replay
from foldloom.exporting.static import StaticGraph
from foldloom.exporting.tracing import named_weights, traced
from foldloom.graph import Op
from foldloom.lazy import record
from foldloom.lazy.cell import find_cell
from foldloom.lazy.operations import is_function
from foldloom.recording import Recording
from foldloom.runtime.description import Array, Description
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.portable import NotPortableError
from foldloom.runtime.recorder import Recorder

_CODE = (
    "the model was Python code. Give `Model(path, program=function)` a function of the model and one example that needs no torch, such as its "
    "forward if that calls cells alone"
)


class StaticModel:
    """``graph`` is an ordinary module, which can be compiled: ``graph(*static.tensors(examples))``."""

    def __init__(
        self,
        graph: StaticGraph,
        ops: dict[Op, int],
        recorded: Callable[[Any], Recording],
        examples: Sequence[Any],
    ) -> None:
        self.graph = graph
        self.description: Description = graph.description
        self.examples = examples
        self._ops = ops
        self._recorded = recorded

    def feeds(self, examples: Sequence[Any]) -> dict[str, Array]:
        """The inputs of the graph for a batch of examples, by name."""
        recorder = Recorder(self.description)
        for example in examples:
            for value in replay(self._recorded(example), self._ops, recorder):
                recorder.add_output(value)
        return feeds_of(recorder)

    def tensors(self, examples: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The same as tensors, in order."""
        return tuple([torch.from_numpy(np.ascontiguousarray(feed)) for feed in self.feeds(examples).values()])


def static_model(model: Callable[..., Any], examples: Sequence[Any]) -> StaticModel:
    """One graph, without a shape of its own, for all examples that call what these call.

    ``model`` is a compiled block, or a module or function of one example that never asks for a computed value.
    """
    from foldloom import __version__

    if not len(examples):
        raise ExportError("fl.export learns from examples which cells there are: give it a few")
    recorded = partial(_recorded, model)
    learned = Learned(model)
    for example in examples:
        learned.add_recording(recorded(example))
    if not learned.ops:
        raise ExportError("the examples call no cell: there is nothing to export")
    program, why = _program(model)
    description = learned.description(program, why, __version__)
    modules = [find_cell(op.key, model).module for op in learned.ops if not is_function(op)]
    named = named_weights(model, [module for module in modules if module is not None])
    graph = StaticGraph(description, [traced(op, model) for op in learned.ops], named)
    return StaticModel(graph, learned.ops, recorded, examples)


def _recorded(model: Callable[..., Any], example: Any) -> Recording:
    if isinstance(model, Model):
        return model.record(example)
    try:
        return record(model, example)
    except ValueNotReadyError as error:
        raise ExportError(
            f"a file runs what is asked for all at once, so nothing in it can depend on a computed value: {error}"
        ) from error


def _program(model: object) -> tuple[dict[str, Any] | None, str]:
    if not isinstance(model, Model):
        return None, _CODE
    try:
        return described_program(model), ""
    except NotPortableError as error:
        return None, str(error)
