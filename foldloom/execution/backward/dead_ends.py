"""Tensors that require grad though no gradient gets anywhere from them.

Torch says of a view that it requires grad if the tensor does in whose memory it is, also where the view was made without gradients; and what is computed
from such a view requires grad, too. Values of a batch know that from their histories, and autograd is told here.
"""

from __future__ import annotations

from typing import Any

import torch


class _DeadEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        return None, None


def with_flag(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """What was computed, requiring grad as it does one by one."""
    if not requires_grad:
        return tensor.detach()
    if tensor.requires_grad or not torch.is_grad_enabled():
        return tensor
    start = torch.zeros((), dtype=tensor.dtype, device=tensor.device, requires_grad=True)
    return _DeadEnd.apply(tensor, start)  # type: ignore[no-any-return]


def view_without_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """These numbers as a view that was made without gradients of a tensor that requires grad."""
    base = tensor.detach().requires_grad_()
    with torch.no_grad():
        return base.view_as(base)
