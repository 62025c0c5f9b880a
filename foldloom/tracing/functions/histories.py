"""Which results of a call require grad, as a rule over its operands.

The rule of a result is ALWAYS (it depends on a weight that requires grad), IF_ANY (if any operand does), or a number whose bits tell which
operands it depends on: 0 for a result without a history, such as an index or what `detach` returns. It is read off the autograd graph
of one trial call, so that nothing has to be known of any function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

ALWAYS, IF_ANY = -2, -1

_MOST_OPERANDS = 62
"""Operands that have a bit of their own; `_planning.c` has the same number."""


def rules_of(outputs: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The rule of each output of a call, whose operands were leaves that require grad."""
    place = {id(operand): number for number, operand in enumerate(operands)}
    return tuple([_rule_of(output, place) for output in outputs])


def _rule_of(output: torch.Tensor, place: dict[int, int]) -> int:
    if not output.requires_grad:
        return 0
    if output.grad_fn is None:
        return _bit(place.get(id(output)))
    rule = 0
    seen = {output.grad_fn}
    left = [output.grad_fn]
    while left:
        node = left.pop()
        leaf = getattr(node, "variable", None)  # only nodes that accumulate gradients have one
        if leaf is not None:
            bit = _bit(place.get(id(leaf)))
            if bit < 0:
                return bit
            rule |= bit
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                left.append(before)
    return rule


def _bit(operand: int | None) -> int:
    if operand is None:
        return ALWAYS
    return 1 << operand if operand < _MOST_OPERANDS else IF_ANY


def joined(rule: int, other: int) -> int:
    """The rule of a result that requires grad if either rule says so."""
    if ALWAYS in (rule, other):
        return ALWAYS
    return IF_ANY if IF_ANY in (rule, other) else rule | other
