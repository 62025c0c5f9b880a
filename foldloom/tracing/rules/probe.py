"""What a rule for ragged values returns, found by trying it on a few made-up rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foldloom.execution.kernels import dtype_of, type_of
from foldloom.graph import ANY, Type
from foldloom.graph.ragged import Ragged
from foldloom.pytrees import flatten, with_constants
from foldloom.tracing.functions.derivatives import missing_derivative
from foldloom.tracing.functions.histories import rules_of
from foldloom.tracing.functions.shape_inference import Returned

_LENGTHS = (2, 3)


def returned_for_ragged(form: Callable[..., Any], types: tuple[Type, ...]) -> Returned:
    """Zeros are valid rows of any table and valid classes."""
    blocks = [_block(type) for type in types]
    leaves: list[Any] = []
    nesting = flatten(form(*blocks), leaves)
    if not all(isinstance(leaf, (torch.Tensor, Ragged)) for leaf in leaves):
        nesting = with_constants(nesting, iter(leaves), lambda leaf: not isinstance(leaf, (torch.Tensor, Ragged)))
        leaves = [leaf for leaf in leaves if isinstance(leaf, (torch.Tensor, Ragged))]
    outputs, operands = ([v.values if isinstance(v, Ragged) else v for v in side] for side in (leaves, blocks))
    return Returned(
        nesting,
        tuple([_type(leaf) for leaf in leaves]),
        histories=rules_of(outputs, operands),
        no_derivative=missing_derivative(outputs, operands),
    )


def _block(type: Type) -> torch.Tensor | Ragged:
    rows = sum(_LENGTHS) if type.ragged else len(_LENGTHS)
    has_history = type.differentiable and torch.is_grad_enabled()
    zeros = torch.zeros((rows, *type.row.shape), dtype=dtype_of(type), requires_grad=has_history)
    return Ragged(zeros, torch.tensor(_LENGTHS)) if type.ragged else zeros


def _type(leaf: torch.Tensor | Ragged) -> Type:
    if isinstance(leaf, torch.Tensor):
        return type_of(leaf[0])
    row = type_of(leaf.values[0])
    return Type((ANY, *row.shape), row.dtype)
