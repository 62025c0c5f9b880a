"""Trying a cell on made-up members: what it returns, and whether it keeps its members apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import torch

from foldloom.errors import CellError, CellOutputError, NestedCellError
from foldloom.execution.backward.weight_grads import swapping
from foldloom.execution.kernels import describe, dtype_of, random_state
from foldloom.graph import Op, Type
from foldloom.pytrees import Nesting, flatten, unflatten
from foldloom.torch_private import BatchNorm

PROBE_SIZE = 3
"""How many members a cell is tried on."""


class Probed(Protocol):
    """What is asked of a cell here."""

    label: str

    @property
    def module(self) -> torch.nn.Module | None: ...
    @property
    def device(self) -> torch.device | None: ...
    def call_batched(self, *args: Any, **settings: Any) -> Any: ...


# ---- What it returns.


def check_leading(label: str, outputs: Sequence[Any], count: int, given: Sequence[object]) -> None:
    called = f"cell {label}, called with {count} members of ({', '.join(map(str, given))}),"
    if not outputs:
        raise CellOutputError(f"{called} returned no tensor")
    for output in outputs:
        if not isinstance(output, torch.Tensor):
            raise CellOutputError(
                f"{called} returned {output!r:.60} ({type(output).__name__}). A cell returns tensors with the batch first, "
                "or tuples, lists and dicts of them"
            )
        if output.ndim == 0 or output.shape[0] != count:
            raise CellOutputError(
                f"{called} returned {describe(output)}: the first dimension must be the batch, of size {count}. "
                "Reduce over dimensions 1 and up (`x.sum(-1)`), never over dimension 0"
            )


@contextmanager
def _leaving_no_trace(cell: Probed) -> Iterator[None]:
    """Buffers and random state are put back."""
    module = cell.module
    buffers = [] if module is None else [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for buffer, value in buffers:
            # Writing what is there already would still count as a change to autograd.
            if not torch.equal(buffer, value):
                with torch.no_grad():
                    buffer.copy_(value)


def probe(
    cell: Probed, types: Sequence[Type], nesting: Nesting, settings: dict[str, Any]
) -> tuple[Any, bool, list[torch.Tensor]]:
    """What a cell returns for made-up members, and whether it draws random numbers, now or when it is trained; and the leaves that what it
    returns depends on.

    Zeros suit most functions (they are valid rows of any table); some need positive numbers.
    """
    failure: Exception | None = None
    for fill in (0, 1):
        leaves = [
            torch.full((PROBE_SIZE, *type.shape), fill, dtype=dtype_of(type), device=cell.device) for type in types
        ]
        for leaf, type in zip(leaves, types, strict=True):
            leaf.requires_grad_(type.differentiable and torch.is_grad_enabled())
        arguments = [leaf.clone() for leaf in leaves]  # leaves that require grad may not be changed in place
        try:
            given = arguments if nesting is None else unflatten(nesting, iter(arguments))
            with _leaving_no_trace(cell):
                before = random_state(cell.device)
                returned = cell.call_batched(*given, **settings)
                _call_in_training(cell, given, settings)
                return returned, not torch.equal(random_state(cell.device), before), leaves
        except NestedCellError:
            raise
        except Exception as error:
            failure = failure or error
    raise CellError(f"cell {cell.label} cannot take ({', '.join(map(repr, types))}): {failure}") from failure


def call_alone(
    cell: Probed, call: Any, op: Op, tracked: Sequence[int], weights_too: bool
) -> tuple[Sequence[torch.Tensor], Any]:
    """Made-up operands for one example, of which these require grad, and what a call of the cell returns for them."""
    nesting, settings = cast(tuple[Nesting, Any], op.settings)
    shapes = [(2, *type.row.shape) if type.ragged else type.shape for type in op.inputs]
    leaves = [
        torch.zeros(shape, dtype=dtype_of(type), device=cell.device, requires_grad=number in tracked)
        for number, (shape, type) in enumerate(zip(shapes, op.inputs, strict=True))
    ]
    given = leaves if nesting is None else unflatten(nesting, iter(leaves))
    frozen = [] if weights_too or cell.module is None else [w for w in cell.module.parameters() if w.requires_grad]
    with swapping, _leaving_no_trace(cell):  # other threads must not see the flags
        try:
            for weight in frozen:
                weight.requires_grad_(False)
            return leaves, call(*given, **{name: value for name, value, _ in settings})
        finally:
            for weight in frozen:
                weight.requires_grad_()


def _call_in_training(cell: Probed, given: Sequence[Any], settings: dict[str, Any]) -> None:
    """Once more, as when it is trained, if it is not: recordings are kept, and run in both modes."""
    with swapping:  # other threads must not see the mode
        resting = [] if cell.module is None else [part for part in cell.module.modules() if not part.training]
        for part in resting:
            part.training = True
        try:
            if resting:
                cell.call_batched(*given, **settings)
        except Exception:
            torch.rand(1)  # what cannot be tried may draw
        finally:
            for part in resting:
                part.training = False


# ---- Whether it keeps its members apart.


def refuse_mixing(cell: Probed, types: Sequence[Type], nesting: Nesting, settings: dict[str, Any]) -> None:
    """Raise if the first or the last of several members gets another result alone. The first does where the last has a say, and the last
    where those before it have."""
    if cell.device is not None and cell.device.type == "meta":
        return  # there are no numbers to compare
    for fill in (_any_numbers, _positive_numbers):
        members = [fill(type, cell.device) for type in types]
        together = _tried(cell, members, nesting, settings)
        if together is not None:
            break
    else:
        return  # it draws, or it takes only numbers that cannot be made up
    for place in (0, PROBE_SIZE - 1):
        alone = _tried(cell, [member[place : place + 1] for member in members], nesting, settings)
        if alone is None or not _all_alike([result[place] for result in together], [result[0] for result in alone]):
            again = _tried(cell, members, nesting, settings)
            # What gives another result each time cannot be told from what mixes.
            if again is not None and _all_alike(together, again):
                raise _mixes(cell)


def _any_numbers(type: Type, device: torch.device | None) -> torch.Tensor:
    """Distinct members, in no order, made without the generator that the user draws from."""
    generator = torch.Generator().manual_seed(6)
    dtype = dtype_of(type)
    numbers = torch.randn((PROBE_SIZE, *type.shape), generator=generator, dtype=torch.float64)
    if dtype.is_floating_point or dtype.is_complex:
        return numbers.to(device, dtype)
    # 0 and 1 are valid rows of any table that is worth having.
    return (numbers > 0).to(device, dtype)


def _positive_numbers(type: Type, device: torch.device | None) -> torch.Tensor:
    numbers = _any_numbers(type, device)
    return numbers.abs() + 0.1 if numbers.dtype.is_floating_point else torch.zeros_like(numbers)


def _tried(
    cell: Probed, members: Sequence[torch.Tensor], nesting: Nesting, settings: dict[str, Any]
) -> list[torch.Tensor] | None:
    """The results for some members; None if the cell cannot take them, or draws."""
    given = [member.clone() for member in members]
    arguments = given if nesting is None else unflatten(nesting, iter(given))
    outputs: list[Any] = []
    try:
        with _leaving_no_trace(cell), torch.no_grad():
            before = random_state(cell.device)
            flatten(cell.call_batched(*arguments, **settings), outputs)
            if not torch.equal(random_state(cell.device), before):
                return None
    except NestedCellError:
        raise
    except Exception:
        return None
    is_whole = all(isinstance(o, torch.Tensor) and o.ndim and len(o) == len(members[0]) for o in outputs)
    return outputs if is_whole else None


def _all_alike(results: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Up to rounding, which depends on the number of members; what mixes them makes a great difference."""
    return len(results) == len(others) and all(map(_alike, results, others))


def _alike(result: torch.Tensor, other: torch.Tensor) -> bool:
    if result.shape != other.shape or result.dtype != other.dtype or result.layout != other.layout:
        return False
    if result.layout is not torch.strided:
        return True
    exact: Callable[..., bool] = torch.equal
    if not result.dtype.is_floating_point and not result.dtype.is_complex:
        return exact(result, other)
    wide = torch.complex128 if result.dtype.is_complex else torch.float64
    size = result.detach().to(wide).nan_to_num(0.0, 0.0, 0.0).abs().amax().item() if result.numel() else 0.0
    tolerance = 0.05 if result.dtype.itemsize < 4 else 1e-3
    return torch.allclose(
        result.to(wide), other.to(wide), rtol=tolerance, atol=tolerance * max(size, 1e-9), equal_nan=True
    )


def _mixes(cell: Probed) -> CellError:
    kinds = (BatchNorm,)
    norms = [] if cell.module is None else [m for m in cell.module.modules() if isinstance(m, kinds)]
    if any(norm.training for norm in norms):
        return CellError(
            f"cell {cell.label} has a batch norm in training, which mixes the members of a batch: what an example gets would depend on "
            "which others are with it. Use nn.LayerNorm or nn.GroupNorm, or call `eval()` on the batch norm"
        )
    return CellError(
        f"cell {cell.label} mixes its members: one of them gets another result alone than beside others. The first dimension is the "
        "batch, and each member is to be computed by itself: reduce, sort and normalise over dimensions 1 and up (`x.mean(-1)`, never "
        "`x.mean(0)` or `x.sum()`), and do not use the number of members or their order"
    )
