"""Recording and planning of batches. Contains no weights, so it can be pickled to other processes."""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
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
from foldloom.tracing.recording_ahead import record_together

_RECURSION_LIMIT = 10_000
"""Blocks recurse as deep as the data, with several calls per level. Python's default would limit trees to a few hundred levels. With a higher
one, what recurses in C, the `repr` of a deep list say, would overflow the stack of eight megabytes before Python notices."""


class OneExample(torch.nn.Module):
    """A program as a module, which has the modules that it calls directly as submodules."""

    def __init__(self, program: Program, modules_on_the_fly: torch.nn.ModuleDict) -> None:
        super().__init__()
        self._program = program
        self.modules_on_the_fly = modules_on_the_fly

    def forward(self, example: Any) -> Any:
        return self._program(example)


class Planner:
    """``planner(examples)`` is a plan that the model runs. Can be used as a ``collate_fn``.

    It is pickled without the model's weights: worker processes get only what recording needs.
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
        # Cells inside `OnTheFly` blocks are named by their path in this module.
        self._function = OneExample(self._program, modules_on_the_fly) if len(modules_on_the_fly) else self._program

    def __call__(self, batch: Sequence[Any]) -> Planned:
        """A plan for a batch of examples, of recordings, or of both."""
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
        """The recording of one example. Planning it takes no Python per node."""
        return self._record_together([example])

    def record_each(self, examples: Sequence[Any]) -> list[Recording]:
        """The recordings of several examples, faster than one at a time."""
        return split_recording(self._record_together(examples, 0)) if len(examples) else []

    def _record_together(self, examples: Sequence[Any], first: int | None = None) -> Recording:
        with deep_recursion():
            return record_together(self._function, [(example,) for example in examples], first)

    def depth(self, example: Any) -> int:
        """The length of the longest chain of dependent computations for this example."""
        with deep_recursion():
            recording = record(lambda value: self._program.computed(value)[0], example)
        return int(recording.graph.depth_of_node.max(initial=0))

    def _infer_signatures(self) -> None:
        """Infer the signatures of all cells now, for processes without weights."""
        root, cells, given, dtypes, *_ = self._parts
        for block, cell in cells.items():
            try:
                block.infer_signatures(cell, dtypes)
            except CellError:
                # A function with a fixed dtype may reject the dtype of the weights. Its signatures are then those of
                # examples recorded so far.
                continue
        for type in (*terminals(known(root.gives)), *self._program.metrics.values()):
            dtype = dtypes.get(type.dtype, type.dtype)
            given.signature((Type(type.fixed(), dtype),), None, ())

    def __reduce__(self) -> tuple[Callable[[bytes], Planner], tuple[bytes]]:
        self._infer_signatures()
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
    """A parameter of this shape in uninitialized memory, which takes no physical memory."""
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
    """A cell pickled without its weights; None if its function cannot be pickled."""
    stream = io.BytesIO()
    try:
        _WithoutWeights(stream).dump(cell)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return stream.getvalue()


class deep_recursion:  # noqa: N801 (used like a function)
    """Raises Python's recursion limit, which is one for all threads: the first raises it, the last puts it back. A class, because entering a
    generator-based one for every example is several times slower."""

    __slots__ = ()
    _lock = threading.Lock()
    _inside = 0
    _limit = 0

    def __enter__(self) -> None:
        cls = deep_recursion
        with cls._lock:
            if cls._inside == 0:
                cls._limit = sys.getrecursionlimit()
                sys.setrecursionlimit(max(cls._limit, _RECURSION_LIMIT))
            cls._inside += 1

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        cls = deep_recursion
        with cls._lock:
            cls._inside -= 1
            if cls._inside == 0:
                sys.setrecursionlimit(cls._limit)
        if isinstance(error, RecursionError):
            raise BlockInputError(
                "the example is nested more deeply than Python can follow, or contains itself: a tree whose child is one of its own "
                "parents, say"
            ) from error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=deep_recursion._lock._at_fork_reinit)  # type: ignore[attr-defined]
