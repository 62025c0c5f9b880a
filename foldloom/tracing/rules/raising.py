"""Which functions may raise for some values and not for others of the same types.

All others that raise do so where they are called, because shapes and dtypes are known there.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch

from foldloom.graph import Type
from foldloom.tracing.rules.base import forms
from foldloom.tracing.rules.indexing import take
from foldloom.tracing.scope import is_machinery

_MATRICES = """
    cholesky cholesky_inverse cond eig eigh eigvals eigvalsh inv inverse ldl_factor ldl_solve lobpcg lstsq lu lu_factor lu_solve
    matrix_power matrix_rank pinv pinverse qr solve solve_triangular svd svd_lowrank svdvals tensorinv tensorsolve
    triangular_solve pca_lowrank
"""
_PLACES = """
    embedding embedding_bag gather index_add index_copy index_fill index_put index_reduce index_select max_unpool1d max_unpool2d
    max_unpool3d one_hot scatter scatter_add scatter_reduce take take_along_dim __getitem__ put
"""
_CLASSES = """
    binary_cross_entropy cross_entropy ctc_loss linear_cross_entropy multi_margin_loss multilabel_margin_loss nll_loss
    nll_loss_nd
"""
_COUNTS_AND_DRAWS = "bernoulli bincount histc histogram multinomial normal poisson repeat_interleave"

BY_VALUE: set[Any] = {*forms(f"{_MATRICES} {_PLACES} {_CLASSES} {_COUNTS_AND_DRAWS}"), take}
"""Functions of torch that do, and those that stand for them."""

_OF_WHOLE_NUMBERS = frozenset(
    [
        *forms("div divide floor_divide fmod remainder pow float_power bitwise_left_shift bitwise_right_shift"),
        operator.floordiv, operator.mod, operator.pow,
        *[getattr(torch.Tensor, f"__{name}__") for name in ("floordiv", "rfloordiv", "mod", "rmod", "pow", "rpow")],
    ]
)  # fmt: skip
"""Division by zero raises for whole numbers alone, and so do negative powers."""


def may_raise(function: Any, operands: int, outputs: Sequence[Type]) -> bool:
    """Of so many operands and weights."""
    if function in BY_VALUE:
        return function is not torch.Tensor.__getitem__ or operands > 1
    if function in _OF_WHOLE_NUMBERS:
        return "int" in outputs[0].dtype
    return _is_users_own(function)


def _is_users_own(function: Any) -> bool:
    """The forward of a function with a backward of its own, say."""
    module = getattr(function, "__module__", None) or "torch"
    if module.partition(".")[0] == "torch":
        return False
    code = getattr(function, "__code__", None)
    return module.partition(".")[0] != "foldloom" or (code is not None and not is_machinery(code.co_filename))
