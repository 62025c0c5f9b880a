"""Functions of each number by itself: the block is treated like one large example."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch

from foldloom.execution.kernels import dtype_of
from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.rules.base import (
    DENSE,
    Batched,
    aligned,
    applied,
    argument,
    dtype_name,
    forms,
    only_operand,
    register,
)

NAMES = """
    abs absolute acos arccos acosh arccosh add addcdiv addcmul angle asin arcsin asinh arcsinh atan arctan atan2 arctan2 atanh
    arctanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bool ceil celu clamp
    clamp_max clamp_min clip clone conj_physical copysign cos cosh deg2rad detach digamma div divide double elu entr eq erf
    erfc erfcx erfinv exp exp2 expit expm1 fix float float_power floor floor_divide fmax fmin fmod frac gcd ge gelu greater
    greater_equal gt half hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 i0e i1 i1e int isclose isfinite isinf
    isnan isneginf isposinf isreal lcm le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_ndtr
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logsigmoid long lt maximum
    minimum mish mul multiply mvlgamma nan_to_num ndtr ndtri ne neg negative nextafter not_equal polygamma positive pow
    psi rad2deg reciprocal relu relu6 remainder round rrelu rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh
    softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold true_divide trunc where xlog1py
    xlogy zeta dropout bfloat16 short
"""

OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.neg, operator.pos, operator.abs, operator.invert, operator.and_, operator.or_, operator.xor,
    operator.lshift, operator.rshift, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip

_METHODS = """
    add radd sub rsub mul rmul truediv rtruediv div rdiv floordiv rfloordiv mod rmod pow rpow and rand or ror xor rxor lshift
    rlshift rshift rrshift eq ne lt le gt ge neg pos abs invert
"""
"""What `weight + x` calls, where the first is no value."""

FUNCTIONS = frozenset(
    [*forms(NAMES), *OPERATORS, *[getattr(torch.Tensor, f"__{name}__") for name in _METHODS.split()]],
)

_COMPARISONS = frozenset(
    [
        *forms("eq ne lt le gt ge greater greater_equal less less_equal not_equal"),
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
        *[getattr(torch.Tensor, f"__{name}__") for name in ("eq", "ne", "lt", "le", "gt", "ge")],
    ]
)  # fmt: skip


@register(DENSE, FUNCTIONS)
def elementwise(call: Call) -> Batched | None:
    tensors = call.tensors()
    if len(tensors) == 1 and isinstance(tensors[0], Operand):
        return applied(call)
    if promote_alike(tensors):
        return broadcast(call)
    return _compared(call) if call.function in _COMPARISONS else None


def _compared(call: Call) -> Batched:
    """In the dtype that two values have in common, in which one without dimensions yields."""
    first, second = [
        torch.empty(
            tensor.type.shape if isinstance(tensor, Operand) else tensor.shape, dtype=_dtype(tensor), device="meta"
        )
        for tensor in call.tensors()
    ]
    common, compare = torch.result_type(first, second), broadcast(call)
    return lambda *blocks: compare(*[block.to(common) for block in blocks])


def _dtype(tensor: Operand | torch.Tensor) -> torch.dtype:
    return dtype_of(tensor.type) if isinstance(tensor, Operand) else tensor.dtype


def broadcast(call: Call) -> Batched:
    """The call itself on blocks whose members have the same number of dimensions."""
    tensors = call.tensors()
    ndim = max(tensor.ndim for tensor in tensors)
    if all(tensor.ndim == ndim or not isinstance(tensor, Operand) for tensor in tensors):
        return call.apply
    return lambda *blocks: call.apply(*[aligned(block, ndim) for block in blocks])


def promote_alike(tensors: Sequence[Operand | torch.Tensor]) -> bool:
    """Whether blocks have the dtype in common that their members have.

    A number without dimensions yields to others of its kind, a double to floats, where a block of such numbers would not.
    """
    dtypes = {dtype_name(tensor) for tensor in tensors}
    if len(dtypes) == 1:
        return True
    whole = {dtype for dtype in dtypes if "int" in dtype}
    if len(whole) < 2 and len(dtypes - whole - {"bool"}) < 2:
        return True
    have_dimensions = {tensor.ndim > 0 for tensor in tensors if isinstance(tensor, Operand)}
    all_operands = len([tensor for tensor in tensors if isinstance(tensor, Operand)]) == len(tensors)
    return have_dimensions == {True} or (have_dimensions == {False} and all_operands)


@register(DENSE, forms("masked_fill"))
def masked_fill(call: Call) -> Batched | None:
    if len(call.args) != 3 or call.kwargs:
        return None
    values, mask, fill = call.args
    if not isinstance(fill, (Operand, torch.Tensor)):
        return broadcast(call)
    if not isinstance(values, Operand):
        return None
    dtype = dtype_of(values.type)
    chosen = Call(_filled, (values, mask, fill), {"dtype": dtype}, call.operands, call.outputs)
    return broadcast(chosen)


def _filled(values: torch.Tensor, mask: torch.Tensor, fill: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    return torch.where(mask, fill.to(dtype), values)


@register(DENSE, forms("to type_as"))
def cast(call: Call) -> Batched | None:
    """To a dtype, or to that of another value."""
    if only_operand(call) is not None:
        return applied(call)
    if not isinstance(argument(call, 0, "self"), Operand) or len(call.args) != 2 or call.kwargs:
        return None
    dtype = dtype_of(call.outputs[0])
    return lambda block, *_: block.to(dtype)


@register(
    DENSE,
    forms("zeros_like ones_like full_like empty_like rand_like randn_like randint_like bernoulli one_hot"),
)
def alike(call: Call) -> Batched | None:
    """For each number of one value something new."""
    return applied(call) if only_operand(call) is not None else None
