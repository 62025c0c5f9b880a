"""Linear maps and matrix products, with weights that all members share or with matrices of their own."""

from __future__ import annotations

import operator

import torch
from torch.nn import functional

from foldloom.lazy.calls import Call, Operand
from foldloom.lazy.rules.base import DENSE, Batched, argument, forms, register


@register(DENSE, forms("linear"))
def linear(call: Call) -> Batched | None:
    input = argument(call, 0, "input")
    if not isinstance(input, Operand) or input.ndim == 0 or len(call.operands) > 1:
        return None
    return call.apply


@register(DENSE, [*forms("matmul mm mv dot"), operator.matmul])
def matmul(call: Call) -> Batched | None:
    if len(call.args) != 2 or call.kwargs:
        return None
    left, right = call.args
    if isinstance(left, Operand) and isinstance(right, torch.Tensor) and 1 <= right.ndim <= 2:
        return lambda block: torch.matmul(block, right)
    if isinstance(left, torch.Tensor) and isinstance(right, Operand):
        if left.ndim == 2 and right.ndim == 1:
            return lambda block: functional.linear(block, left)
        return (lambda block: torch.matmul(left, block)) if left.ndim == right.ndim == 2 else None
    if isinstance(left, Operand) and isinstance(right, Operand) and 1 <= left.ndim <= 2 and 1 <= right.ndim <= 2:
        return _own_matrices(left.ndim == 1, right.ndim == 1)
    return None


def _own_matrices(left_is_vector: bool, right_is_vector: bool) -> Batched:
    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = torch.bmm(
            left.unsqueeze(1) if left_is_vector else left, right.unsqueeze(2) if right_is_vector else right
        )
        if right_is_vector:
            result = result.squeeze(2)
        return result.squeeze(1) if left_is_vector else result

    return product


@register(DENSE, forms("bilinear"))
def bilinear(call: Call) -> Batched | None:
    return call.apply if all(isinstance(arg, Operand) and arg.ndim for arg in call.args[:2]) else None


@register(DENSE, forms("embedding"))
def embedding(call: Call) -> Batched | None:
    input, weight = argument(call, 0, "input"), argument(call, 1, "weight")
    if not isinstance(input, Operand) or not isinstance(weight, torch.Tensor):
        return None
    return call.apply


@register(DENSE, forms("layer_norm rms_norm"))
def layer_norm(call: Call) -> Batched | None:
    return call.apply if isinstance(argument(call, 0, "input"), Operand) and len(call.operands) == 1 else None


@register(DENSE, [torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell])
def recurrent_cell(call: Call) -> Batched | None:
    """Torch's cells take one batch dimension, and a module adds one of size one for a single example."""

    def run(*blocks: torch.Tensor) -> object:
        members = len(blocks[0])
        result = call.apply(*[block.flatten(0, 1) for block in blocks])
        if isinstance(result, torch.Tensor):
            return result.unflatten(0, (members, -1))
        return tuple([item.unflatten(0, (members, -1)) for item in result])

    return run if all(len(type.shape) == 2 for type in call.operands) else None
