"""A block with everything around it that one example needs: its metrics, and tensors where a user expects them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foldloom.blocks.block import Block, all_blocks
from foldloom.blocks.inference import known
from foldloom.blocks.lowering.lowering import Collected, Lowering, Run, collecting
from foldloom.blocks.types import BlockType, SequenceType, TensorType, TupleType, VoidType
from foldloom.graph.ragged import Ragged
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.lazy_tensor import LazyTensor


@dataclass(frozen=True, eq=False)
class MetricRows:
    """What one metric collected over a batch: a row for each evaluation, examples in order, and within an example in the order
    of evaluation (the nodes of a tree: children before parents).

    ``values`` is ``[total, ...]`` and gradients flow through it; ``example_of_row`` says which example each row came from, and
    ``labels`` what the metric was given beside the value: numbers as one tensor, anything else as a list.
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
    """The labels of one metric in one example: kept whole, whatever they are."""

    __slots__ = ("values",)

    def __init__(self, values: list[Any]) -> None:
        kinds = {type(value) for value in values}
        array = np.array(values) if len(kinds) == 1 and kinds <= {int, float, bool} else None
        # Whole numbers that no tensor could hold stay as they are.
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
        users = Counter([part for block in all_blocks(root) for _, part in block.parts])
        self._run = lowering.function(root, {block for block, count in users.items() if count > 1})
        self.metrics = metrics_of(root)
        self._finish = _finished(known(root.gives), lowering.given)

    def __call__(self, example: Any) -> Any:
        """The output; with metrics, the output, their rows and their labels."""
        if not self.metrics:
            return self._finish(self._run(example))
        output, collected = self.computed(example)
        labels = {name: Labels(labels) for name, labels in collected.labels.items()}
        return self._finish(output), collected.rows, labels

    def computed(self, example: Any) -> tuple[Any, Collected]:
        """The output as blocks leave it, in which what was only given is no tensor yet, and the metrics."""
        collected = Collected(self.metrics)
        outer = collecting.set(collected)
        try:
            return self._run(example), collected
        finally:
            collecting.reset(outer)


def metrics_of(root: Block) -> dict[str, TensorType]:
    """The type of each metric's rows, by its name."""
    found: dict[str, TensorType] = {}
    for block in all_blocks(root):
        for name, takes in block.metrics().items():
            found[name] = terminals(takes)[0]
    return dict(sorted(found.items()))


def _finished(type: BlockType, given: Cell) -> Run:
    """Numbers and constants that reach the end without having met a cell become tensors like any other."""
    if isinstance(type, TensorType):
        return lambda value: value if value.__class__ is LazyTensor else given(value)
    if isinstance(type, TupleType):
        finishes = [_finished(item, given) for item in type.items]
        return lambda values: tuple([finish(value) for finish, value in zip(finishes, values, strict=True)])
    if isinstance(type, SequenceType):
        finish_element = _finished(type.element, given)
        return lambda values: [finish_element(value) for value in values]
    return lambda value: value


def terminals(type: BlockType) -> list[TensorType]:
    """All tensors in a type, in tuples and sequences alike."""
    return [type] if isinstance(type, TensorType) else [inner for part in type.parts for inner in terminals(part)]


def tidied(stacked: Any, type: BlockType, dtypes: Any) -> Any:
    """What stacking cannot know without types: that nothing is None, and what no row at all would look like."""
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
