"""The table of batch rules, and what rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.nn import functional

from foldloom.lazy.calls import Call, Operand

Batched = Callable[..., Any]
"""Takes the blocks of the operands, the batch first, and returns what the function returns, the batch first."""

Rule = Callable[[Call], Batched | None]
"""The batched form of a call, or None where the rule does not know one."""

DENSE: dict[Any, Rule] = {}
"""Rules for calls whose operands all have one shape."""

RAGGED: dict[Any, Rule] = {}
"""Rules for calls with ragged operands, whose blocks are `Ragged`."""


def forms(names: str | Iterable[str]) -> Iterator[Any]:
    """Everything in torch that goes by one of these names: function, method, functional."""
    for name in names.split() if isinstance(names, str) else names:
        for owner in (torch, torch.Tensor, functional, torch._C._nn, torch.special, torch.linalg):
            found = getattr(owner, name, None)
            if callable(found) and not isinstance(found, type):
                yield found


def register(table: dict[Any, Rule], functions: Iterable[Any]) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for function in functions:
            table[function] = rule
        return rule

    return add


def only_operand(call: Call) -> Operand | None:
    """The operand of a call that has one, as its first argument, and no weights."""
    first = call.args[0] if call.args else call.kwargs.get("input")
    return first if isinstance(first, Operand) and len(call.tensors()) == 1 else None


def argument(call: Call, position: int, name: str, default: Any = None) -> Any:
    if len(call.args) > position:
        return call.args[position]
    return call.kwargs.get(name, default)


def shifted(dim: int) -> int:
    """A dimension of one example, counted in the block of all."""
    return dim + 1 if dim >= 0 else dim


def aligned(block: torch.Tensor, ndim: int) -> torch.Tensor:
    """A block whose members are given dimensions of size one in front, as broadcasting would."""
    missing = ndim - (block.ndim - 1)
    return block if missing <= 0 else block.reshape(block.shape[0], *(1,) * missing, *block.shape[1:])
