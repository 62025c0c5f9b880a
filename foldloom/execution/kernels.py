"""What a step calls, and what is checked of its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from foldloom.errors import CellOutputError
from foldloom.graph import Op, Type


@dataclass(frozen=True)
class Kernel:
    """The batched function of one op: blocks of operands in, blocks of outputs out, the batch dimension first.

    ``module`` is where its weights live, if it has any.
    """

    op: Op
    call: Callable[..., Sequence[torch.Tensor]]
    module: torch.nn.Module | None = None

    def check(self, outputs: Sequence[torch.Tensor], count: int) -> None:
        """An arena would take a wrong dtype or a broadcastable shape without a word; so ask before writing."""
        types = self.op.outputs
        if len(outputs) != len(types):
            raise CellOutputError(
                f"cell {self.op.label} returned {len(outputs)} tensors for {count} members, "
                f"but {len(types)} when its types were inferred; it must return the same number for every batch"
            )
        for output, type in zip(outputs, types, strict=True):
            if output.shape != (count, *type.shape) or output.dtype is not dtype_of(type):
                raise CellOutputError(
                    f"cell {self.op.label} returned {describe(output)} for {count} members; expected "
                    f"{type.dtype}[{', '.join(map(str, (count, *type.shape)))}]. Each output must have the batch as its first "
                    "dimension, and shape and dtype that do not depend on the values or on how many members there are"
                )


def dtype_of(type: Type) -> torch.dtype:
    dtype = getattr(torch, type.dtype)
    assert isinstance(dtype, torch.dtype)
    return dtype


def type_of(tensor: torch.Tensor) -> Type:
    """The type of one unbatched tensor."""
    return Type(tensor.shape, str(tensor.dtype).removeprefix("torch."))


def describe(tensor: torch.Tensor) -> str:
    return repr(type_of(tensor))
