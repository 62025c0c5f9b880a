"""A root block as a function of one example, with its metrics and with tensors as outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foldloom.blocks.block import Block
from foldloom.blocks.compiler.traversal import all_blocks, shared_blocks
from foldloom.blocks.inference import known
from foldloom.blocks.lowering.lowering import Collected, Lowering, Run, collecting
from foldloom.blocks.types import BlockType, SequenceType, TensorType, TupleType, VoidType
from foldloom.graph.ragged import Ragged
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.values.lazy_tensor import LazyTensor


@dataclass(frozen=True, eq=False)
class MetricRows:
    """The rows that one metric collected over a batch: by example, and within an example in the order of evaluation (in
    a tree, children before parents).

    ``values`` is ``[total, ...]`` and differentiable. ``example_of_row`` has the example of each row. ``labels`` are a
    tensor if they are numbers, and otherwise a list.

    >>> from foldloom import blocks as fb
    >>> model = fb.compile(fb.Map(fb.Scalar() >> fb.AllOf(fb.Identity(), fb.Metric("seen"))) >> fb.Void())
    >>> _, metrics = model([[1, 2], [3]])
    >>> metrics["seen"].values, metrics["seen"].example_of_row
    (tensor([1., 2., 3.]), tensor([0, 0, 1]))
    """

    values: torch.Tensor
    lengths: torch.Tensor
    labels: torch.Tensor | list[Any] | None = None

    @property
    def example_of_row(self) -> torch.Tensor:
        return torch.repeat_interleave(self.lengths.to(self.values.device))

    def __len__(self) -> int:
        return len(self.values)


class Labels:
    """The labels of one metric in one example. Kept opaque to the engine, which would look for tensors in a list."""

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        kinds = {type(value) for value in values}
        array = np.array(values) if len(kinds) == 1 and kinds <= {int, float, bool} else None
        # Integers too large for a tensor stay a list.
        self.values: Any = values if array is None or array.dtype.kind == "O" else array

    @staticmethod
    def joined(all_labels: Sequence[Labels]) -> torch.Tensor | list[Any]:
        filled = [labels.values for labels in all_labels if len(labels.values)]
        arrays = [values for values in filled if isinstance(values, np.ndarray)]
        if arrays and len(arrays) == len(filled) and len({array.dtype for array in arrays}) == 1:
            return torch.from_numpy(np.concatenate(arrays))
        return [value for values in filled for value in (values.tolist() if isinstance(values, np.ndarray) else values)]


class Program:
    """A block as a function of one example."""

    def __init__(self, root: Block, lowering: Lowering) -> None:
        self._run = lowering.function(root, shared_blocks(root))
        self.metrics = metrics_of(root)
        self._finish = _finished(known(root.gives), lowering.given)

    def __call__(self, example: Any) -> Any:
        """The output; with metrics, a tuple of the output, their rows and their labels."""
        if not self.metrics:
            return self._finish(self._run(example))
        output, collected = self.computed(example)
        labels = {name: Labels(labels) for name, labels in collected.labels.items()}
        return self._finish(output), collected.rows, labels

    def computed(self, example: Any) -> tuple[Any, Collected]:
        """The metrics, and the output before numbers and constants in it are turned into tensors."""
        collected = Collected(self.metrics)
        outer = collecting.set(collected)
        try:
            return self._run(example), collected
        finally:
            collecting.reset(outer)


def metrics_of(root: Block) -> dict[str, TensorType]:
    """The row type of each metric, by name."""
    found: dict[str, TensorType] = {}
    for block in all_blocks(root):
        for name, takes in block.metrics().items():
            found[name] = terminals(takes)[0]
    return dict(sorted(found.items()))


def _finished(type: BlockType, given: Cell) -> Run:
    """Turns numbers and constants in the output that no cell computed into tensors."""
    if isinstance(type, TensorType):
        return lambda value: value if isinstance(value, LazyTensor) else given(value)
    if isinstance(type, TupleType):
        finishes = [_finished(item, given) for item in type.items]
        return lambda values: tuple([finish(value) for finish, value in zip(finishes, values, strict=True)])
    if isinstance(type, SequenceType):
        finish_element = _finished(type.element, given)
        return lambda values: [finish_element(value) for value in values]
    return lambda value: value


def terminals(type: BlockType) -> list[TensorType]:
    """All tensor types inside a type."""
    return [type] if isinstance(type, TensorType) else [inner for part in type.parts for inner in terminals(part)]


def tidied(stacked: Any, type: BlockType, dtypes: Any) -> Any:
    """Restores what stacking cannot know without types: outputs that are None, and the shape of tensors without
    rows."""
    if isinstance(type, VoidType):
        return None
    if isinstance(type, TupleType):
        return tuple([tidied(item, part, dtypes) for item, part in zip(stacked, type.items, strict=True)])
    if isinstance(stacked, Ragged) and isinstance(type, SequenceType) and not len(stacked.values):
        return _empty(stacked, type.element, dtypes)
    return stacked


def _empty(stacked: Ragged, type: BlockType, dtypes: Any) -> Any:
    if isinstance(type, TupleType):
        return tuple([_empty(stacked, item, dtypes) for item in type.items])
    return Ragged(no_rows(type, dtypes, stacked.values), stacked.lengths) if isinstance(type, TensorType) else stacked


def no_rows(type: TensorType, dtypes: Any, like: torch.Tensor) -> torch.Tensor:
    dtype = getattr(torch, dtypes.get(type.dtype, type.dtype))
    return torch.empty((0, *type.fixed()), dtype=dtype, device=like.device)
