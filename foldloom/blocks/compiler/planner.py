"""Recording and planning: all of a model but its weights, which therefore travels to other processes."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.program import Program, terminals
from foldloom.blocks.copying import Portable
from foldloom.blocks.inference import known
from foldloom.blocks.lowering.cells import NamedCell
from foldloom.blocks.lowering.lowering import Lowering
from foldloom.errors import ArgumentError, BlockError, BlockInputError, CellError
from foldloom.execution.engine import Planned
from foldloom.graph import Type
from foldloom.graph.recording import Recording, split_recording
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing import Cell, plan, record
from foldloom.tracing.batched import record_together

_RECURSION_LIMIT = 200_000
"""Blocks recurse as deep as the data, several calls a level; Python's own limit would be met at trees of a few hundred levels."""


class OneExample(torch.nn.Module):
    """A program as a module, with the modules that it calls as they are."""

    def __init__(self, program: Program, modules_on_the_fly: torch.nn.ModuleDict) -> None:
        super().__init__()
        self._program = program
        self.modules_on_the_fly = modules_on_the_fly

    def forward(self, example: Any) -> Any:
        return self._program(example)


class Planner:
    """``planner(examples)`` is a plan that the model runs. Serves as a ``collate_fn``.

    Pickles without the model's weights: workers that are started afresh get what they need to record, and no more.
    """

    def __init__(
        self,
        root: Block,
        cells: Mapping[Block, NamedCell],
        given: NamedCell,
        dtypes: Mapping[str, str],
        scheduler: Scheduler,
        modules_on_the_fly: torch.nn.ModuleDict,
    ) -> None:
        self._parts = (root, dict(cells), given, dict(dtypes), scheduler, modules_on_the_fly)
        self._scheduler = scheduler
        self._program = Program(root, Lowering(cells, given, dtypes, torch.device("cpu")))
        # Cells that blocks do not know of get their names from the module they are in.
        self._function = OneExample(self._program, modules_on_the_fly) if len(modules_on_the_fly) else self._program

    def __call__(self, batch: Sequence[Any]) -> Planned:
        """A plan for a batch of examples, of kept recordings of examples, or of both."""
        if not len(batch):
            raise ArgumentError("there is nothing to plan: give model.plan at least one example")
        recordings: list[Recording] = []
        first = 0
        for is_kept, group in groupby(batch, key=lambda item: isinstance(item, Recording)):
            items = list(group)
            recordings += items if is_kept else [self._record_together(items, first)]
            first += len(items)
        return plan(recordings, self._scheduler)

    def record(self, example: Any) -> Recording:
        """What one example asks for; keep it, and planning it again costs nothing per node."""
        return self._record_together([example])

    def record_each(self, examples: Sequence[Any]) -> list[Recording]:
        """The same for each of several, which costs less than for one at a time."""
        return split_recording(self._record_together(examples, 0)) if len(examples) else []

    def _record_together(self, examples: Sequence[Any], first: int | None = None) -> Recording:
        with deep_recursion():
            return record_together(self._function, [(example,) for example in examples], first)

    def depth(self, example: Any) -> int:
        """How many computations on this example wait for each other."""
        with deep_recursion():
            recording = record(lambda value: self._program.computed(value)[0], example)
        return int(recording.graph.depth_of_node.max(initial=0))

    def _announce(self) -> None:
        """Ask all cells now what they will be asked where there are no weights."""
        root, cells, given, dtypes, *_ = self._parts
        for block, cell in cells.items():
            try:
                block.announce(cell, dtypes)
            except CellError:
                # A function that fixes its own dtype may refuse the one that all others got with the weights; what it is
                # really called with is then known from recordings, if there were any.
                continue
        for type in (*terminals(known(root.gives)), *self._program.metrics.values()):
            dtype = dtypes.get(type.dtype, type.dtype)
            given.signature((Type(type.fixed(), dtype),), None, ())

    def __reduce__(self) -> tuple[Callable[[bytes], Planner], tuple[bytes]]:
        self._announce()
        stream = io.BytesIO()
        try:
            _WithoutWeights(stream).dump(self._parts)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise BlockError(
                f"the blocks cannot be sent to another process: {error}. Functions given to fb.InputTransform, fb.OneOf and their like "
                "must then be importable: write them with `def` at the top of a module, not as lambda"
            ) from error
        return _restored, (stream.getvalue(),)


def _restored(data: bytes) -> Planner:
    return Planner(*pickle.loads(data))


def _unwritten(shape: torch.Size, dtype: torch.dtype, requires_grad: bool) -> torch.nn.Parameter:
    """A weight by its type alone: memory that nobody writes to costs nothing."""
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad)


class _WithoutWeights(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.nn.Parameter):
            return _unwritten, (obj.shape, obj.dtype, obj.requires_grad)
        if isinstance(obj, NamedCell):
            return NamedCell.unpacked, obj.packed(_packed(obj.__dict__["cell"]))
        if isinstance(obj, Portable):
            return object.__new__, (type(obj),), obj.state_without_weights()
        return NotImplemented


def _packed(cell: Cell | None) -> bytes | None:
    """A cell without its weights; None if its function cannot travel."""
    stream = io.BytesIO()
    try:
        _WithoutWeights(stream).dump(cell)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return stream.getvalue()


class deep_recursion:  # noqa: N801 (used like a function)
    """A class, because entering a generator takes several times as long, and this is done for every example."""

    __slots__ = ("_limit",)

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(self._limit, _RECURSION_LIMIT))

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        sys.setrecursionlimit(self._limit)
        if isinstance(error, RecursionError):
            raise BlockInputError(
                "the example is nested more deeply than Python can follow, or contains itself: a tree whose child is one of its own "
                "parents, say"
            ) from error
