"""Batch rules: what one step of a function computes for all its members.

Common functions have rules of their own, by family; everything else goes through `fallback`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foldloom.tracing.functions.calls import Call
from foldloom.tracing.functions.shape_inference import Returned
from foldloom.tracing.rules import (
    attention,
    elementwise,
    indexing,
    losses,
    products,
    ragged,
    reductions,
    shapes,
    spatial,
)
from foldloom.tracing.rules.base import DENSE, RAGGED, canonical
from foldloom.tracing.rules.fallback import ONE_BY_ONE, Fallback
from foldloom.tracing.rules.probe import returned_for_ragged

__all__ = [
    "attention", "batched_form", "elementwise", "has_ragged_rule", "has_rule", "indexing", "losses", "products", "ragged",
    "ragged_form", "ragged_returned", "reductions", "shapes", "spatial",
]  # fmt: skip


def batched_form(call: Call) -> Callable[..., Any]:
    if _has_no_elements(call):
        return Fallback(call, ONE_BY_ONE)
    rule = DENSE.get(call.function)
    direct = rule(canonical(call)) if rule is not None else None
    return direct if direct is not None else Fallback(call)


def _has_no_elements(call: Call) -> bool:
    """Whether no operand has any. Means over nothing, checks of sizes and gradients depend on which dimension is empty, and with the
    batch in front it is another one; there is nothing to gain either."""
    return bool(call.operands) and all(0 in operand.shape for operand in call.operands)


def ragged_form(call: Call) -> Callable[..., Any] | None:
    rule = RAGGED.get(call.function)
    return rule(call) if rule is not None else None


def has_rule(function: Callable[..., Any]) -> bool:
    return function in DENSE


def has_ragged_rule(function: Callable[..., Any]) -> bool:
    return function in RAGGED


def ragged_returned(call: Call) -> Returned | None:
    """What a call returns for ragged operands; None if there is no rule for it."""
    form = ragged_form(call)
    return None if form is None else returned_for_ragged(form, call.operands)
