"""A model as a static graph, with the conversion from examples to its inputs and from its outputs to results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from foldloom.blocks.compiler.model import Model
from foldloom.errors import ExportError, ValueNotReadyError
from foldloom.exporting.describing import described_program
from foldloom.exporting.op_table import OpTable, add_blocks
from foldloom.exporting.static import StaticGraph
from foldloom.exporting.tracing import named_weights, traced
from foldloom.graph.recording import Recording
from foldloom.runtime.description import Array, Description
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.portable import NotPortableError
from foldloom.runtime.recorder import Recorder
from foldloom.runtime.recordings import replayed
from foldloom.runtime.results import Requested, requested
from foldloom.tracing import record_each
from foldloom.tracing.cells.lookup import find_cell
from foldloom.tracing.flushing.kernels import is_function

_CODE = (
    "the model was Python code. Give `Model(path, program=function)` a function of the model and one example that needs no torch, such as its "
    "forward if that calls cells alone"
)


def dynamic_dims(feeds: Mapping[str, Array]) -> list[Sequence[int]]:
    """The dynamic dimensions of each input of a static graph."""
    return [_dynamic_dims(name, feed) for name, feed in feeds.items()]


def _dynamic_dims(name: str, feed: Array) -> Sequence[int]:
    kind = name.partition("_")[0]
    if kind in ("arena", "output"):
        return (0,)
    if kind == "index":  # [round,] slot, member
        return (0, 2) if feed.ndim == 3 else (1,)
    return range(feed.ndim)


class StaticBatch(NamedTuple):
    """A batch of examples as inputs of a static graph, and the places of its results in the outputs."""

    tensors: tuple[torch.Tensor, ...]
    places: list[Requested]

    def results(self, outputs: Sequence[torch.Tensor]) -> list[Any]:
        """The result of each example from the outputs of the graph, differentiable."""
        return [place.filled(outputs) for place in self.places]


class StaticModel:
    """A model whose ``graph`` is an ordinary module that can be compiled once for all shapes.

    ``torch.compile(static.graph, fullgraph=True, dynamic=True)`` takes the tensors of any ``static.batch(examples)``. Made by
    `static_model`.

    >>> import foldloom as fl
    >>> from foldloom import blocks as fb
    >>> static = fl.static_model(fb.compile(fb.Map(fb.Scalar()) >> fb.Sum()))
    >>> batch = static.batch([[1.0, 2.0], [3.0, 4.0, 5.0]])
    >>> len(batch.results(static.graph(*batch.tensors)))
    2
    """

    def __init__(self, graph: StaticGraph, recorded: Callable[[Sequence[Any]], list[Recording]]) -> None:
        self.graph = graph
        self.description: Description = graph.description
        self._recorded = recorded

    def batch(self, examples: Sequence[Any]) -> StaticBatch:
        """Record and plan a batch of examples."""
        from foldloom.torch_private.compilers import mark_dynamic  # here, because it loads torch's compilers

        recorder = Recorder(self.description)
        results = [result for recording in self._recorded(examples) for result in replayed(recording, recorder)]
        places = [requested(recorder, result) for result in results]
        feeds = feeds_of(recorder)
        tensors = tuple([torch.from_numpy(feed) for feed in feeds.values()])
        for tensor, dims in zip(tensors, dynamic_dims(feeds), strict=True):
            # Otherwise the compiler would specialise on the first size and compile again for the next.
            mark_dynamic(tensor, list(dims))
            # If the initial state of a while_loop needs no gradient, none flows between its iterations.
            tensor.requires_grad_(tensor.is_floating_point() and torch.is_grad_enabled())
        return StaticBatch(tensors, places)


def static_model(model: Callable[..., Any], examples: Sequence[Any] = (), *, parts: int = 1) -> StaticModel:
    """One graph with dynamic shapes for all examples.

    ``model`` is a compiled block, or a module or function of one example that never needs a computed value. For code,
    ``examples`` must show what it calls. Blocks need examples only if their cells take dynamic shapes.

    Loops in several ``parts`` need less padding and take longer to compile.

    >>> import foldloom as fl
    >>> from foldloom import blocks as fb
    >>> static = fl.static_model(fb.compile(fb.Map(fb.Scalar()) >> fb.Sum()))
    >>> batch = static.batch([[1.0, 2.0], [3.0, 4.0, 5.0]])
    >>> [result.item() for result in batch.results(static.graph(*batch.tensors))]
    [3.0, 12.0]
    """
    recorded = partial(_recorded, model)
    table = OpTable(model)
    program, why = None, _CODE
    if isinstance(model, Model):
        program, why = _program(model)
        add_blocks(table, model, program, why, bool(len(examples)))
    elif not len(examples):
        raise ExportError(
            "what a model of code calls is learned from examples: `fl.export(model, path, examples)`, with a few that call all there is"
        )
    for recording in recorded(examples):
        table.add_recording(recording)
    if not table.ops:
        raise ExportError("the model calls no cell: there is nothing to export")
    description = table.description(program, why, version("foldloom"), parts)
    modules = [find_cell(op.key, model).module for op in table.ops if not is_function(op)]
    named = named_weights(model, [module for module in modules if module is not None])
    graph = StaticGraph(description, [traced(op, model) for op in table.ops], named)
    return StaticModel(graph, recorded)


def _recorded(model: Callable[..., Any], examples: Sequence[Any]) -> list[Recording]:
    if isinstance(model, Model):
        return model.record_each(examples)
    try:
        return record_each(model, examples) if len(examples) else []
    except ValueNotReadyError as error:
        raise ExportError(
            f"a file runs what is asked for all at once, so nothing in it can depend on a computed value: {error}"
        ) from error


def _program(model: Model) -> tuple[dict[str, Any] | None, str]:
    try:
        return described_program(model), ""
    except NotPortableError as error:
        return None, str(error)
