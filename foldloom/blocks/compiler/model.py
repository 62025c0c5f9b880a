"""The module that `fb.compile` makes of a block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.planner import Planner, deep_recursion
from foldloom.blocks.compiler.program import Labels, MetricRows, Program, no_rows, tidied
from foldloom.blocks.compiler.traversal import all_blocks
from foldloom.blocks.compiler.validation import check_root
from foldloom.blocks.inference import known
from foldloom.blocks.lowering.cells import ModuleNames, NamedCell
from foldloom.blocks.lowering.lowering import Lowering
from foldloom.blocks.types import dtype_name
from foldloom.errors import ArgumentError
from foldloom.execution.engine import Planned
from foldloom.graph.recording import Recording
from foldloom.planning.schedulers import ByAgenda, Scheduler
from foldloom.tracing import batch
from foldloom.tracing.cells.core import Cell, cell

_FLOATING = ("float16", "bfloat16", "float32", "float64")


def given(value: torch.Tensor) -> torch.Tensor:
    """Returns a copy of its input, for outputs that are constants or given values."""
    return value.clone()


class Model(torch.nn.Module):
    """``model(examples)`` applies a block to each example and stacks the outputs. Made by `fb.compile`.

    A tensor comes as ``[n, ...]``, a tuple as a tuple, a sequence as an `fl.Ragged`. If the block has metrics, the
    result is a pair of the output and a dict from metric names to `MetricRows`.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> model = fb.compile(fb.Map(fb.Scalar()) >> fb.Sum())
    >>> model([[1, 2], [3], []])
    tensor([3., 3., 0.])
    """

    def __init__(self, root: Block, *, scheduler: Scheduler | None = None, objects_at_root: bool = False) -> None:
        super().__init__()
        check_root(root, objects_at_root)
        self.root = root
        self.scheduler = scheduler or ByAgenda()
        self.cells, self.modules_on_the_fly = torch.nn.ModuleDict(), torch.nn.ModuleDict()
        self._name_of_block: dict[Block, str] = {}
        self._dtypes: dict[str, str] = {}
        cells = ModuleNames(self.cells)
        name_of_key: dict[Hashable, str] = {}
        modules = ModuleNames(self.modules_on_the_fly)
        for block in all_blocks(root):
            if block.module is not None and block.module not in self.modules_on_the_fly.values():
                modules.add(type(block.module).__name__, block.module)
            if block.function is not None:
                key = block.cell_key()
                if key not in name_of_key:
                    name_of_key[key] = self._add_cell(cells, block.make_cell())
                self._name_of_block[block] = name_of_key[key]
        self._given = self._add_cell(cells, cell(given))
        self._lower()

    @staticmethod
    def _add_cell(names: ModuleNames, made: Cell) -> str:
        return names.add(made.label, made)

    def _lower(self) -> None:
        cells = {block: self._cell(name) for block, name in self._name_of_block.items()}
        faces = {name: NamedCell(f"cells.{name}", face.label, face) for name, face in self._named_cells()}
        self._program = Program(self.root, Lowering(cells, self._cell(self._given), self._dtypes, self._device()))
        named = {block: faces[name] for block, name in self._name_of_block.items()}
        self._planner = Planner(
            self.root, named, faces[self._given], self._dtypes, self.scheduler, self.modules_on_the_fly
        )

    def _named_cells(self) -> list[tuple[str, Cell]]:
        return [(name, self._cell(name)) for name in self.cells]

    def _cell(self, name: str) -> Cell:
        found = self.cells[name]
        assert isinstance(found, Cell)
        return found

    def _device(self) -> torch.device:
        devices = [face.device for _, face in self._named_cells() if face.device is not None]
        return devices[0] if devices else torch.get_default_device()

    @property
    def cell_names(self) -> Mapping[Block, str]:
        """The path in this module of the cell of each block that computes."""
        return {block: f"cells.{name}" for block, name in self._name_of_block.items()}

    @property
    def given_name(self) -> str:
        """The path of the cell that returns what it is given, for outputs that no other cell computes."""
        return f"cells.{self._given}"

    @property
    def dtypes(self) -> Mapping[str, str]:
        """The dtype in use for each declared one, where it differs."""
        return self._dtypes

    def forward(self, examples: Planned | Sequence[Any]) -> Any:
        result = self._results(examples)
        output_type = known(self.root.gives)
        if not self._program.metrics:
            return tidied(result, output_type, self._dtypes)
        output, rows, labels = result
        return tidied(output, output_type, self._dtypes), {
            name: self._metric(name, rows[name], labels[name]) for name in self._program.metrics
        }

    def _results(self, examples: Planned | Sequence[Any]) -> Any:
        if isinstance(examples, Planned):
            return batch(self, stack=True).run(examples)
        if not len(examples):
            raise ArgumentError("there is nothing to compute: give the model at least one example")
        if any(isinstance(example, Recording) for example in examples):
            return batch(self, stack=True).run(self._planner(examples))
        with deep_recursion():
            return batch(self._program, scheduler=self.scheduler, stack=True)(examples)

    def _metric(self, name: str, rows: Any, labels: Sequence[Labels]) -> MetricRows:
        values = rows.values
        if not len(values):
            values = no_rows(self._program.metrics[name], self._dtypes, values)
        labelled = any(len(label.values) for label in labels)
        return MetricRows(values, rows.lengths, Labels.joined(labels) if labelled else None)

    @property
    def plan(self) -> Planner:
        """``model.plan(examples)`` plans a batch for ``model`` to run later, here or in another process. Takes
        examples, recordings, or both. Use it as ``collate_fn=model.plan``."""
        return self._planner

    def record(self, example: Any) -> Recording:
        """The recording of one example. Planning a batch of recordings takes no Python per node. A recording holds
        no weights and refers to cells by name, so it can be saved and run by another instance of the model."""
        return self._planner.record(example)

    def record_each(self, examples: Sequence[Any]) -> list[Recording]:
        """`record` for each of several examples, faster than one at a time."""
        return self._planner.record_each(examples)

    def one_example(self, example: Any) -> Any:
        """The output for one example, computed immediately; inside `fl.batch`, recorded like any other code.

        Metrics are a dict from names to lists of values, or of pairs of value and label.
        """
        with deep_recursion():
            result = self._program(example)
        if not self._program.metrics:
            return result
        output, rows, labels = result
        return output, {
            name: list(zip(values, labels[name].values, strict=True)) if len(labels[name].values) else values
            for name, values in rows.items()
        }

    def max_depth(self, example: Any) -> int:
        """The length of the longest chain of dependent computations for this example."""
        return self._planner.depth(example)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # Numbers in examples are converted to the dtype that the weights now have.
        for declared in _FLOATING:
            current = getattr(torch, self._dtypes.get(declared, declared))
            self._dtypes[declared] = dtype_name(fn(torch.empty(0, dtype=current)).dtype)
        self._lower()
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_program", "_planner")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._lower()

    def extra_repr(self) -> str:
        return f"{self.root!r:.200}"


Block.evaluator = partial(Model, objects_at_root=True)
