"""Linear maps and matrix products, with weights that all members share or with matrices of their own."""

from __future__ import annotations

import operator
from string import ascii_letters

import torch
from torch.nn import functional

from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import DENSE, Batched, aligned, argument, forms, is_list, register
from foldloom.tracing.rules.elementwise import promote_alike
from foldloom.tracing.rules.fallback import ONE_BY_ONE, Fallback


@register(DENSE, forms("linear"))
def linear(call: Call) -> Batched | None:
    input = argument(call, 0, "input")
    if not isinstance(input, Operand) or input.ndim == 0 or len(call.operands) > 1:
        return None
    return call.apply


@register(DENSE, [*forms("matmul mm mv dot bmm"), operator.matmul])
def matmul(call: Call) -> Batched | None:
    if len(call.args) != 2 or call.kwargs:
        return None
    return product(*call.args)


def product(left: Operand | torch.Tensor, right: Operand | torch.Tensor) -> Batched | None:
    """``left @ right``, of blocks for those that are operands."""
    if not left.ndim or not right.ndim:
        return None
    if isinstance(left, torch.Tensor):
        return _with_shared_left(left, right.ndim)
    if isinstance(right, torch.Tensor):
        if right.ndim <= 2:
            return lambda block: torch.matmul(block, right)
        return (lambda block: torch.matmul(aligned(block, right.ndim), right)) if left.ndim > 1 else None
    if left.ndim <= 2 and right.ndim <= 2:
        return _own_matrices(left.ndim == 1, right.ndim == 1)
    if left.ndim == 1 or right.ndim == 1:
        return None
    ndim = max(left.ndim, right.ndim)
    return lambda one, other: torch.matmul(aligned(one, ndim), aligned(other, ndim))


def _with_shared_left(left: torch.Tensor, ndim: int) -> Batched | None:
    if ndim == 1:
        if left.ndim == 2:
            return lambda block: functional.linear(block, left)
        return (lambda block: torch.mv(block, left)) if left.ndim == 1 else None
    if left.ndim <= 2:
        return lambda block: torch.matmul(left, block)
    return lambda block: torch.matmul(left, aligned(block, left.ndim))


def _own_matrices(left_is_vector: bool, right_is_vector: bool) -> Batched:
    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        result = torch.bmm(
            left.unsqueeze(1) if left_is_vector else left, right.unsqueeze(2) if right_is_vector else right
        )
        if right_is_vector:
            result = result.squeeze(2)
        return result.squeeze(1) if left_is_vector else result

    return product


@register(DENSE, forms("addmm addmv baddbmm"))
def added_product(call: Call) -> Batched | None:
    """``beta * input + alpha * left @ right``."""
    if len(call.args) != 3 or set(call.kwargs) - {"beta", "alpha"}:
        return None
    input, left, right = call.args
    both = [one for one in (left, right) if isinstance(one, Operand)]
    of_product = product(left, right) if both else None
    if of_product is None or not call.outputs[0].differentiable:
        return None
    beta, alpha = call.kwargs.get("beta", 1), call.kwargs.get("alpha", 1)
    ndim = len(call.outputs[0].shape)

    def run(*blocks: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = of_product(*[blocks[one.number] for one in both])
        found = found if alpha == 1 else alpha * found
        if beta == 0:  # then what the input holds does not count, not even if it is no number
            return found
        added = aligned(blocks[input.number], ndim) if isinstance(input, Operand) else input
        return found + (added if beta == 1 else beta * added)

    return run


@register(DENSE, forms("outer ger"))
def outer(call: Call) -> Batched | None:
    if len(call.args) != 2 or call.kwargs or len(call.operands) != 2 or not promote_alike(call.tensors()):
        return None
    return lambda left, right: left.unsqueeze(2) * right.unsqueeze(1)


@register(DENSE, [torch.einsum])
def einsum(call: Call) -> Batched | None:
    """With one letter more for each operand that has members."""
    equation, *factors = call.args
    if len(factors) == 1 and is_list(factors[0]):
        factors = list(factors[0])
    if type(equation) is not str or "..." in equation or call.kwargs:
        return None
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        output = "".join(sorted(letter for letter in set(inputs) - {","} if inputs.count(letter) == 1))
    member = next((letter for letter in ascii_letters if letter not in equation), None)
    terms = inputs.split(",")
    if member is None or len(terms) != len(factors):
        return None
    marked = [
        member + term if isinstance(factor, Operand) else term for term, factor in zip(terms, factors, strict=True)
    ]
    return call._replace(args=(f"{','.join(marked)}->{member}{output}", *factors)).apply


@register(DENSE, forms("bilinear"))
def bilinear(call: Call) -> Batched | None:
    """The weights are the same for all members."""
    of_operands = [isinstance(arg, Operand) and arg.ndim for arg in call.args]
    return call.apply if len(call.operands) == 2 and all(of_operands[:2]) else None


@register(DENSE, forms("embedding embedding_bag"))
def embedding(call: Call) -> Batched | None:
    # Torch's own functions of these names take the table first.
    by_torch = call.function in (torch.embedding, torch.embedding_bag)
    words = argument(call, 1, "indices") if by_torch else argument(call, 0, "input")
    table = argument(call, 0 if by_torch else 1, "weight")
    if argument(call, 3 if by_torch else 5, "scale_grad_by_freq", False):
        return Fallback(call, ONE_BY_ONE)  # frequencies are counted in one example
    is_lookup = "bag" not in call.function.__name__
    return call.apply if is_lookup and isinstance(words, Operand) and isinstance(table, torch.Tensor) else None


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

    state = call.args[1] if len(call.args) > 1 else None
    own = [call.args[0], *(state if is_list(state) else (state,))]
    weights_are_shared = len(call.operands) == len(own)
    has_rows = all(isinstance(item, Operand) and item.ndim == 2 for item in own)
    return run if weights_are_shared and has_rows else None
