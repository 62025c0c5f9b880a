"""What a step calls, and what is checked of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from foldloom.errors import CellOutputError
from foldloom.graph import Op, Type


class Kernel:
    """The batched function of one op: blocks of operands in, blocks of outputs out, the batch dimension first.

    ``module`` is where its weights live, if it has any.
    """

    def __init__(
        self, op: Op, call: Callable[..., Sequence[torch.Tensor]], module: torch.nn.Module | None = None
    ) -> None:
        self.op = op
        self.call = call
        self.module = module
        self._expected = [(type.shape, dtype_of(type)) for type in op.outputs]

    def check(self, outputs: Sequence[torch.Tensor], count: int) -> None:
        """An arena would take a wrong dtype or a broadcastable shape without a word; so ask before writing."""
        if len(outputs) != len(self._expected):
            raise CellOutputError(
                f"cell {self.op.label} returned {len(outputs)} tensors for {count} members, but {len(self._expected)} when "
                "its types were inferred; it must return the same number for every batch"
            )
        for output, (shape, dtype) in zip(outputs, self._expected, strict=True):
            if output.shape != (count, *shape) or output.dtype is not dtype:
                expected = Type((count, *shape), _name(dtype))
                raise CellOutputError(
                    f"cell {self.op.label} returned {describe(output)} for {count} members; expected {expected}. Each output must "
                    "have the batch as its first dimension, and shape and dtype that do not depend on the values or on "
                    "how many members there are"
                )


def dtype_of(type: Type) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, type.dtype)
    return dtype


def type_of(tensor: torch.Tensor) -> Type:
    """The type of one unbatched tensor."""
    return Type(tensor.shape, _name(tensor.dtype))


def describe(tensor: torch.Tensor) -> str:
    return repr(type_of(tensor))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
