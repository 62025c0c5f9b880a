"""Steps that are differentiated again, for those of their members that backward has reached.

The gradient of a weight is a sum over all members of a step. A member that was not reached sends a gradient of zero, which adds
nothing, unless it meets an infinite number on its way: zero times infinity is NaN. Where that may happen the step is run once more,
for the members that were reached, and differentiated in the place of the first run.

It happens seldom: only in steps with weights, of which some members were reached and others not, and only if these hold numbers that are
not finite. What goes on inside a cell is not seen from outside, so cells are always run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from foldloom.errors import CellError
from foldloom.execution.backward.reach import Mask, Members
from foldloom.execution.kernels import Kernel, without_hooks
from foldloom.graph.ragged import Ragged
from foldloom.planning.plans import Write


class Made(NamedTuple):
    """How the outputs that an exchange writes were made: by this kernel, for these members."""

    kernel: Kernel
    members: Members

    @property
    def can_run_again(self) -> bool:
        return bool(self.kernel.weights) and not self.kernel.only_once

    def places(self, is_ragged: bool, reached: Mask) -> torch.Tensor:
        """Where in a block the rows of these members are."""
        if is_ragged:
            assert self.members.lengths is not None
            reached = np.repeat(reached, self.members.lengths)
        return torch.from_numpy(np.flatnonzero(reached))


def must_run_again(
    made: Made, operands: Sequence[torch.Tensor], outputs: Sequence[tuple[Write, torch.Tensor]], reached: Mask
) -> bool:
    """Whether members that were not reached could spoil the gradients of weights. ``outputs`` are those that require grad."""
    if made.kernel.is_cell:
        return True
    is_ragged_at = dict(zip(made.members.all_writes, made.kernel.ragged_outputs, strict=True))
    blocks = [
        *zip(operands, made.kernel.ragged_inputs, strict=True),
        *[(output, is_ragged_at[write]) for write, output in outputs],
    ]
    return any(
        block.is_floating_point() and not block.index_select(0, made.places(is_ragged, ~reached)).isfinite().all()
        for block, is_ragged in blocks
    )


def gradients_again(
    made: Made,
    operands: Sequence[torch.Tensor],
    grads: Sequence[tuple[Write, torch.Tensor]],
    reached: Mask,
) -> list[torch.Tensor | None]:
    """The gradients of the operands, and then of the weights, from the members that were reached alone.

    ``grads`` has the gradient of each output that has one, by the write that placed it.
    """
    is_recorded = torch.is_grad_enabled()
    weights: Sequence[torch.Tensor] = made.kernel.weights
    with torch.enable_grad():
        some = [
            _some(operand, made.places(is_ragged, reached), is_recorded)
            for operand, is_ragged in zip(operands, made.kernel.ragged_inputs, strict=True)
        ]
        rows = _with_lengths(made, some, reached)
        outputs, weights = _called(
            made.kernel, rows, apart=is_recorded or any(not weight.is_leaf for weight in weights)
        )
    flat = [_values(output) for output in outputs]
    grad_of_write = dict(grads)
    roots, seeds = [], []
    for write, is_ragged, output in zip(made.members.all_writes, made.kernel.ragged_outputs, flat, strict=True):
        grad = grad_of_write.get(write)
        if grad is not None and output.requires_grad:
            roots.append(output)
            seeds.append(grad.index_select(0, made.places(is_ragged, reached)))
    wanted = [tensor for tensor in (*some, *weights) if tensor.requires_grad]
    found: Sequence[torch.Tensor | None] = [None] * len(wanted)
    if roots:
        with without_hooks(weights):  # they are called with the whole gradient, by the pass that is under way
            found = torch.autograd.grad(roots, wanted, seeds, allow_unused=True, create_graph=is_recorded)
    remaining = iter(found)
    of_some = [next(remaining) if tensor.requires_grad else None for tensor in some]
    of_weights = [next(remaining) if weight.requires_grad else None for weight in made.kernel.weights]
    return [
        *[
            None if grad is None else _spread(grad, operand, made.places(is_ragged, reached))
            for grad, operand, is_ragged in zip(of_some, operands, made.kernel.ragged_inputs, strict=True)
        ],
        *of_weights,
    ]


def _called(
    kernel: Kernel, blocks: Sequence[torch.Tensor | Ragged], *, apart: bool
) -> tuple[Sequence[Any], Sequence[torch.Tensor]]:
    """The outputs of a kernel, and what it used as its weights.

    A weight may be computed from another one, and so may an operand in a pass that is recorded. The gradient of that other one would then
    have what comes through the first, which the pass under way adds by itself. So weights are told ``apart``: the kernel gets an alias of each.
    """
    if not apart:
        return kernel.call(*blocks), kernel.weights
    aliases = [weight.view_as(weight) for weight in kernel.weights]
    with _Instead({id(weight): alias for weight, alias in zip(kernel.weights, aliases, strict=True)}):
        outputs = kernel.call(*blocks)
    if not _use_any(outputs, kernel.weights, until=(*blocks, *aliases)):
        return outputs, aliases
    if all(weight.is_leaf for weight in kernel.weights):
        return outputs, kernel.weights  # hidden in a function of the user's
    raise CellError(
        f"the gradients of {kernel.op.label} cannot be told apart: it uses a weight and what is computed from this weight, by a "
        "custom autograd function. Compute one of them in a cell (`fl.cell`)"
    )


class _Instead(TorchFunctionMode):
    """Within it, torch's functions are called with other tensors."""

    def __init__(self, other: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._other = other

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*self._swapped(args), **{name: self._swapped(value) for name, value in (kwargs or {}).items()})

    def _swapped(self, value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)([self._swapped(item) for item in value])
        return self._other.get(id(value), value)


def _use_any(outputs: Sequence[Any], weights: Sequence[torch.Tensor], until: Sequence[torch.Tensor | Ragged]) -> bool:
    """Whether autograd comes from outputs to weights, other than by way of certain tensors."""
    sought = {_node_of(weight) for weight in weights}
    seen: set[Any] = {_node_of(_values(tensor)) for tensor in until}
    left = [_node_of(_values(output)) for output in outputs]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node in sought:
            return True
        seen.add(node)
        left += [following for following, _ in node.next_functions]
    return False


def _values(tensor: torch.Tensor | Ragged) -> torch.Tensor:
    return tensor.values if isinstance(tensor, Ragged) else tensor


def _node_of(tensor: torch.Tensor) -> Any:
    """Where autograd adds up the gradient of a tensor."""
    if not tensor.requires_grad:
        return None
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _some(operand: torch.Tensor, places: torch.Tensor, is_recorded: bool) -> torch.Tensor:
    rows = (operand if is_recorded else operand.detach()).index_select(0, places.to(operand.device))
    return rows.requires_grad_() if operand.requires_grad and not rows.requires_grad else rows


def _with_lengths(made: Made, blocks: Sequence[torch.Tensor], reached: Mask) -> list[torch.Tensor | Ragged]:
    if made.members.lengths is None:
        return list(blocks)
    lengths = torch.from_numpy(made.members.lengths[reached])
    return [Ragged(b, lengths) if r else b for b, r in zip(blocks, made.kernel.ragged_inputs, strict=True)]


def _spread(grad: torch.Tensor, operand: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Zeros for the members that were left out."""
    return torch.zeros_like(operand).index_copy(0, places.to(grad.device), grad)
