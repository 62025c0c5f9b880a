"""A list of tensors for each example, as one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of several examples, one after the other: ``values`` is ``[total, ...]``, ``lengths`` says how many each has.

    >>> import torch
    >>> ragged = Ragged(torch.arange(5.0), torch.tensor([2, 0, 3]))
    >>> list(ragged)
    [tensor([0., 1.]), tensor([]), tensor([2., 3., 4.])]
    """

    values: torch.Tensor
    lengths: torch.Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.values.split(self.lengths.tolist()))

    @property
    def example_of_row(self) -> torch.Tensor:
        """Which example each row belongs to: the index for ``index_add`` and its like."""
        # The number of rows, told, need not be counted: no wait on a GPU, no extent that depends on values in a traced graph.
        return torch.repeat_interleave(self.lengths.to(self.values.device), output_size=self.values.shape[0])

    def to_nested(self) -> torch.Tensor:
        """The same as a nested tensor of torch's jagged layout; gradients flow through."""
        lengths = self.lengths.to(self.values.device)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, offsets)
        return nested

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.values.shape[1:]))
        return f"Ragged({len(self)} examples, {len(self.values)} rows of {self.values.dtype}[{shape}])"
