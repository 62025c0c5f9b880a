"""The table of batch rules, and what rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch.nn import functional

from foldloom.pytrees import flatten, unflatten
from foldloom.torch_private import functions_of_nn
from foldloom.tracing.functions.calls import Call, Operand

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
        for owner in (torch, torch.Tensor, functional, functions_of_nn, torch.special, torch.linalg):
            found = getattr(owner, name, None)
            if callable(found) and not isinstance(found, type):
                yield found


DRAWS = frozenset(
    forms(
        "dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d bernoulli multinomial normal poisson rrelu "
        "rand_like randn_like randint_like gumbel_softmax fractional_max_pool2d fractional_max_pool3d"
    )
)
"""Functions that draw random numbers: two calls of them never return the same."""


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


def changed(call: Call, position: int, name: str, value: Any) -> Call:
    """The call with another value for one of its arguments, by position if it was given so."""
    if len(call.args) > position:
        return call._replace(args=(*call.args[:position], value, *call.args[position + 1 :]))
    return call._replace(kwargs={**call.kwargs, name: value})


def without(call: Call, *names: str) -> Call:
    return call._replace(kwargs={name: value for name, value in call.kwargs.items() if name not in names})


_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


def canonical(call: Call) -> Call:
    """The call as rules read it: numpy's names for arguments as torch's, and no wish for a layout of memory, which a row of a
    block cannot have."""
    kwargs = {_ALIASES.get(name, name): value for name, value in call.kwargs.items() if name != "memory_format"}
    return call._replace(kwargs=kwargs) if kwargs != call.kwargs else call


def applied(call: Call) -> Batched:
    """The call itself on blocks."""
    function, (first, *rest), kwargs = call.function, call.args or (None,), call.kwargs
    if not isinstance(first, Operand) or len(call.operands) > 1:
        return call.apply
    if not rest and not kwargs:
        return function
    return lambda block: function(block, *rest, **kwargs)


def with_members_flattened(call: Call, count: int) -> Batched:
    """The call itself, where examples have a batch of their own, of this size, as their first dimension."""

    def run(*blocks: torch.Tensor) -> Any:
        members = len(blocks[0])
        leaves: list[Any] = []
        nesting = flatten(call.apply(*[block.flatten(0, 1) for block in blocks]), leaves)
        return unflatten(nesting, iter([leaf.unflatten(0, (members, count)) for leaf in leaves]))

    return run


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether an argument is several. An operand is one, although it is a tuple too."""
    return type(value) in (tuple, list, torch.Size)


def shifted(dim: int) -> int:
    """A dimension of one example, counted in the block of all."""
    return dim + 1 if dim >= 0 else dim


def aligned(block: torch.Tensor, ndim: int) -> torch.Tensor:
    """A block whose members are given dimensions of size one in front, as broadcasting would."""
    missing = ndim - (block.ndim - 1)
    return block if missing <= 0 else block.reshape(block.shape[0], *(1,) * missing, *block.shape[1:])


def dtype_name(tensor: Operand | torch.Tensor) -> str:
    return tensor.type.dtype if isinstance(tensor, Operand) else str(tensor.dtype).removeprefix("torch.")
