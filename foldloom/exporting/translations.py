"""ONNX translations of operations that batching rules use and torch's converter does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import opset20

onnx: Any = opset20
"""Typed as Any: it is annotated for eager values, but translations pass graph nodes."""


def repeat_interleave(repeats: Any, output_size: Any = None) -> Any:
    """For each of ``output_size`` positions the run that it is in: the number of runs that end before it."""
    ends = onnx.CumSum(repeats, onnx.Constant(value_int=0))
    places = onnx.Range(onnx.Constant(value_int=0), output_size, onnx.Constant(value_int=1))
    is_past = onnx.GreaterOrEqual(
        onnx.Unsqueeze(places, onnx.Constant(value_ints=[1])), onnx.Unsqueeze(ends, onnx.Constant(value_ints=[0]))
    )
    return onnx.ReduceSum(onnx.Cast(is_past, to=7), onnx.Constant(value_ints=[1]), keepdims=0)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.repeat_interleave.Tensor: repeat_interleave
}
