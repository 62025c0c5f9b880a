"""Plain Python code for one example, as a block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from foldloom.blocks.block import Block
from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.inference import head, known
from foldloom.blocks.lowering.lowering import Lowering, Run
from foldloom.blocks.types import BlockType, SequenceType, TensorType, TupleType
from foldloom.runtime.portable import NotPortableError
from foldloom.tracing.weights import module_of


class OnTheFly(Block):
    """Calls a Python function of the values of one example, which may call cells, loop and branch freely.

    The items of an input tuple become its arguments. Its types must be declared, because it is not called before there
    is data. The weights of a module become the model's.

    >>> import foldloom as fl
    >>> from foldloom import blocks as fb
    >>> double = fl.cell(lambda x: 2 * x)
    >>> def power(x):
    ...     for _ in range(3):
    ...         x = double(x)
    ...     return x
    >>> (fb.Scalar() >> fb.OnTheFly(power, "float32", "float32")).eval(1)
    tensor(8.)
    """

    def __init__(self, fn: Callable[..., Any], input_type: Any = None, output_type: Any = None) -> None:
        self._fn = fn
        if input_type is not None:
            self.set_input_type(input_type)
        if output_type is not None:
            self.set_output_type(output_type)

    @property
    def module(self) -> torch.nn.Module | None:
        return module_of(self._fn)

    def describe(self, to: Describing) -> Described:
        raise NotPortableError("it calls Python code that needs torch")

    def lowered(self, lower: Lowering) -> Run:
        fn, as_tensors = self._fn, _as_tensors(known(self.takes), lower)
        if isinstance(head(self.takes), TupleType):
            return lambda values: fn(*as_tensors(values))
        return lambda value: fn(as_tensors(value))


def _as_tensors(type: BlockType, lower: Lowering) -> Run:
    """Converts arrays and numbers to tensors, because user code may call tensor methods on them."""
    if isinstance(type, TensorType):
        dtype = getattr(torch, lower.dtype(type.dtype))
        return lambda value: torch.tensor(value, dtype=dtype) if isinstance(value, _GIVEN) else value
    if isinstance(type, TupleType):
        runs = [_as_tensors(item, lower) for item in type.items]
        return lambda values: tuple([run(value) for run, value in zip(runs, values, strict=True)])
    if isinstance(type, SequenceType):
        each = _as_tensors(type.element, lower)
        return lambda values: [each(value) for value in values]
    return lambda value: value


_GIVEN = (int, float, np.ndarray, np.generic)
