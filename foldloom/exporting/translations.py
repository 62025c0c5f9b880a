"""Operations that the rules of `lazy` use and that torch's conversion to ONNX does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset20

onnx: Any = opset20
"""Its annotations are of values; what a translation passes on are parts of a graph."""


def repeat_interleave(repeats: Any, output_size: Any = None) -> Any:
    """Which run each of ``output_size`` numbers falls into: the number of runs that have ended before it."""
    ends = onnx.CumSum(repeats, onnx.Constant(value_int=0))
    places = onnx.Range(onnx.Constant(value_int=0), output_size, onnx.Constant(value_int=1))
    is_past = onnx.GreaterOrEqual(
        onnx.Unsqueeze(places, onnx.Constant(value_ints=[1])), onnx.Unsqueeze(ends, onnx.Constant(value_ints=[0]))
    )
    return onnx.ReduceSum(onnx.Cast(is_past, to=7), onnx.Constant(value_ints=[1]), keepdims=0)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.repeat_interleave.Tensor: repeat_interleave
}
