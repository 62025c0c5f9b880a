"""What runs where no rule does: `torch.vmap`, and one by one where that cannot or is known to be wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foldloom.execution.kernels import type_of
from foldloom.pytrees import flatten
from foldloom.tracing.functions.calls import Call
from foldloom.tracing.rules.base import DENSE, Batched, forms, register

VMAP, ONE_BY_ONE = "vmap", "one by one"

BY_MEMORY = frozenset(forms("as_strided as_strided_copy as_strided_scatter"))
"""Functions that read memory as it lies there; a row of a block lies elsewhere than a tensor of its own."""

NOT_BY_VMAP: dict[Any, str] = {
    **dict.fromkeys(BY_MEMORY, "it reads the memory of the block"),
    **dict.fromkeys(forms("_is_all_true _is_any_true"), "it looks at all members together"),
    **dict.fromkeys(forms("linspace logspace"), "it is computed in other steps, which round otherwise"),
}
"""Functions for which `torch.vmap` gives something else than one call for each member, and why."""


class Fallback:
    """The batched form of any call, which returns its tensors without their nesting. ``how`` says which way it went, once it
    has run."""

    def __init__(self, call: Call, how: str = VMAP) -> None:
        self._call = call
        self.how = ONE_BY_ONE if call.function in NOT_BY_VMAP else how

    def __call__(self, *blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.how == VMAP:
            try:
                found: tuple[torch.Tensor, ...] = torch.vmap(self._tensors_of_one, randomness="different")(*blocks)
            except Exception:  # vmap has many ways of saying that it cannot; if the call itself fails, so will the loop
                found = ()
            if self._is_of_expected_types(found):
                return found
            self.how = ONE_BY_ONE
        # Each operand in memory of its own: the call may change it, or look at what lies around it.
        outputs = [
            self._tensors_of_one(*[block[member].clone(memory_format=torch.contiguous_format) for block in blocks])
            for member in range(len(blocks[0]))
        ]
        return tuple([torch.stack(column) for column in zip(*outputs, strict=True)])

    def _is_of_expected_types(self, found: Sequence[torch.Tensor]) -> bool:
        """Some functions are computed in other steps by vmap, and give another dtype."""
        return [type_of(block[0]) for block in found] == list(self._call.outputs)

    def _tensors_of_one(self, *members: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves: list[Any] = []
        flatten(self._call.apply(*members), leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if self._call.function in BY_MEMORY:
            tensors = [with_gradient_of_its_own(tensor) for tensor in tensors]
        return tuple(tensors)


class _GradientOfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        (grad,) = grads
        return None if grad is None else grad.clone()


def with_gradient_of_its_own(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, whose gradient will not be a row of a block either: such functions read it as they read memory."""
    return _GradientOfItsOwn.apply(tensor)  # type: ignore[no-any-return]


@register(DENSE, forms("linear_cross_entropy"))
def linear_cross_entropy(call: Call) -> Batched | None:
    """In chunks, it computes gradients in advance for those inputs that say they need some; inside `torch.vmap` none does."""
    return Fallback(call, ONE_BY_ONE) if call.kwargs.get("options") is not None else None
