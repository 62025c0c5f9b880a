"""Functions of each number by itself: the block is treated like one large example."""

from __future__ import annotations

import operator

import torch

from foldloom.lazy.calls import Call, Operand
from foldloom.lazy.rules.base import DENSE, Batched, aligned, forms, register

NAMES = """
    abs absolute acos arccos acosh arccosh add addcdiv addcmul asin arcsin asinh arcsinh atan arctan atan2 arctan2 atanh
    arctanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bool ceil celu clamp
    clamp_max clamp_min clip clone conj_physical copysign cos cosh deg2rad detach digamma div divide double elu entr eq erf
    erfc erfinv exp exp2 expit expm1 fix float float_power floor floor_divide fmax fmin fmod frac gcd ge gelu greater
    greater_equal gt half hardshrink hardsigmoid hardswish hardtanh heaviside hypot i0 i0e i1 i1e int isclose isfinite isinf
    isnan isneginf isposinf isreal lcm ldexp le leaky_relu lerp less less_equal lgamma log log10 log1p log2 log_ndtr
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logsigmoid long lt masked_fill maximum
    minimum mish mul multiply mvlgamma nan_to_num ndtr ndtri ne neg negative nextafter not_equal polygamma positive pow
    psi rad2deg reciprocal relu relu6 remainder round rrelu rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh
    softplus softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold true_divide trunc where xlog1py
    xlogy zeta dropout type_as bfloat16 short to
"""

OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.neg, operator.pos, operator.abs, operator.invert, operator.and_, operator.or_, operator.xor,
    operator.lshift, operator.rshift, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip

FUNCTIONS = frozenset([*forms(NAMES), *OPERATORS])


@register(DENSE, FUNCTIONS)
def elementwise(call: Call) -> Batched | None:
    tensors = call.tensors()
    if len(tensors) == 1 and isinstance(tensors[0], Operand):
        return _applied_to_one(call)
    if any(type(tensor) is not Operand and not isinstance(tensor, torch.Tensor) for tensor in tensors):
        return None
    # A number without dimensions yields to the dtype of the others, which a block of such numbers would not.
    if len({tensor.type.dtype if isinstance(tensor, Operand) else _dtype(tensor) for tensor in tensors}) > 1:
        return None
    ndim = max(tensor.ndim for tensor in tensors)
    if all(tensor.ndim == ndim or not isinstance(tensor, Operand) for tensor in tensors):
        return call.apply
    return lambda *blocks: call.apply(*[aligned(block, ndim) for block in blocks])


def _applied_to_one(call: Call) -> Batched:
    function = call.function
    if len(call.args) == 1 and not call.kwargs:
        return function
    return call.apply


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
