"""What a function returns, found by calling it once on tensors that have shapes and no data."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from foldloom.execution.kernels import NotesDraws, dtype_of, type_of
from foldloom.graph import Type
from foldloom.pytrees import flatten, map_leaves, with_constants
from foldloom.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    fake_tensor,
)
from foldloom.tracing.functions.calls import Call, Operand
from foldloom.tracing.functions.derivatives import missing_derivative
from foldloom.tracing.functions.histories import joined, rules_of
from foldloom.tracing.scope import recording_paused


class Returned(NamedTuple):
    """What a function returns: the types of its tensors, and the nesting that they are in, with whatever else there is."""

    nesting: Any
    types: tuple[Type, ...]
    shares_with: int | None = None
    """The operand whose memory the first of them lies in."""
    is_operand: bool = False
    """Whether the function returns that operand itself."""
    histories: tuple[int, ...] = ()
    """For each tensor the rule that tells whether it requires grad: see `histories`."""
    no_derivative: Exception | None = None
    """What backward raises, if the function has no derivative."""
    draws: str | None = None
    """What the count of the random numbers that it draws follows from: `BY_SHAPE` or `BY_VALUE`. None if it draws none."""


BY_SHAPE, BY_VALUE = "by shape", "by value"
_DRAW_BY_VALUE = frozenset(
    [
        "poisson", "rrelu_with_noise", "rrelu_with_noise_", "rrelu_with_noise_functional", "rrelu", "rrelu_", "_standard_gamma",
        "_sample_dirichlet", "binomial",
    ]
)  # fmt: skip
"""Operations that draw for some numbers and not for others, or until one fits."""


_NO_ANSWER = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    NotImplementedError,  # what torch raises for operators that have no kernel for tensors without data
)


_PRODUCTS = frozenset(
    [
        "linear",
        "matmul",
        "__matmul__",
        "mm",
        "bmm",
        "mv",
        "dot",
        "addmm",
        "addmv",
        "baddbmm",
        "bilinear",
        "conv1d",
        "conv2d",
        "conv3d",
    ]
)


class NeedsValuesError(Exception):
    """What the function returns depends on the values it is given: it cannot be known before they are."""


def inferred(call: Call) -> Returned:
    notes = NotesDraws()
    try:
        blocks, result = _tried(call, notes)
    except _NO_ANSWER as error:
        raise NeedsValuesError from error
    except Exception as error:
        _on_ones(call)  # which raises as torch does, if it is the call that fails
        raise NeedsValuesError from error
    if has_mixed_factors(call) or (call.operands and all(0 in operand.shape for operand in call.operands)):
        _on_ones(
            call
        )  # tensors without data do not know that torch refuses such products, and some functions of nothing
    leaves: list[Any] = []
    nesting = flatten(result, leaves)
    types = tuple([_type_of(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)])
    if len(types) < len(leaves):
        nesting = with_constants(nesting, iter(leaves), lambda leaf: not isinstance(leaf, torch.Tensor))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    shares_with = _operand_in_memory_of(tensors[0], blocks) if tensors else None
    return Returned(
        nesting,
        types,
        shares_with,
        any(result is block for block in blocks),
        _histories(tensors, blocks, call),
        missing_derivative(tensors, blocks),
        (BY_VALUE if notes.names & _DRAW_BY_VALUE else BY_SHAPE) if notes.names else None,
    )


def has_mixed_factors(call: Call) -> bool:
    """Whether it is a product of tensors of several dtypes, which torch refuses."""
    return call.function.__name__ in _PRODUCTS and len({_dtype_of(tensor) for tensor in call.tensors()}) > 1


def _tried(call: Call, notes: NotesDraws) -> tuple[Sequence[torch.Tensor], Any]:
    """The operands and the result of a trial call. What it cannot do with operands that require grad, it may do without."""
    if not torch.is_grad_enabled():
        return without_data(call, notes=notes)
    try:
        return without_data(call, notes=notes)
    except _NO_ANSWER:
        raise
    except Exception:
        with torch.no_grad():
            return without_data(call, notes=notes)


def _histories(tensors: Sequence[torch.Tensor], blocks: Sequence[torch.Tensor], call: Call) -> tuple[int, ...]:
    is_tried = not torch.is_grad_enabled() or any(block.requires_grad for block in blocks)
    if is_tried or not any(type.differentiable for type in call.operands):
        return rules_of(tensors, blocks)
    # It does not take all operands with a history at once: a running mean, say, has none.
    found = [0] * len(tensors)
    for operand in (None, *[number for number, type in enumerate(call.operands) if type.differentiable]):
        rules = _rules_with_history_of(call, operand)
        found = [joined(before, rule) for before, rule in zip(found, rules or found, strict=True)]
    return tuple(found)


def _rules_with_history_of(call: Call, operand: int | None) -> tuple[int, ...] | None:
    """The rules where only this operand requires grad, or none; None if the call does not take that."""
    try:
        blocks, result = without_data(call, () if operand is None else (operand,))
    except Exception:
        return None
    leaves: list[Any] = []
    flatten(result, leaves)
    return rules_of([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], blocks)


def with_names(function: Any, returned: Returned) -> Returned:
    """Several results under the names that torch gives them (``max(0).values``), where they were found as a tuple."""
    if type(returned.nesting) is not tuple or returned.nesting[0] is not tuple:
        return returned
    name = getattr(function, "__name__", "").removeprefix("linalg_")
    for found in (getattr(torch.return_types, name, None), getattr(torch.return_types, f"linalg_{name}", None)):
        if found is not None and found.n_fields == returned.nesting[1]:
            return returned._replace(nesting=(found, *returned.nesting[1:]))
    return returned


def _operand_in_memory_of(tensor: torch.Tensor, blocks: Sequence[torch.Tensor]) -> int | None:
    memory = tensor.untyped_storage()._cdata
    return next((number for number, block in enumerate(blocks) if block.untyped_storage()._cdata == memory), None)


@contextmanager
def _nothing_logged() -> Iterator[None]:
    """Torch logs what fails here, beside raising it; the caller hears of it with the line that it comes from."""
    log = logging.getLogger(fake_tensor.__name__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


def without_data(
    call: Call,
    with_history: Sequence[int] | None = None,
    *,
    weights_too: bool = True,
    notes: NotesDraws | None = None,
) -> tuple[Sequence[torch.Tensor], Any]:
    """Operands without data, and the result of a call of them. ``with_history`` are those that require grad; None: all that can. Weights
    require grad if they do, or ``weights_too`` says that none does. ``notes`` are taken of random numbers."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    tracked = range(len(call.operands)) if with_history is None else with_history
    has_histories = torch.is_grad_enabled()
    with recording_paused(), _nothing_logged():
        with mode:
            blocks = [
                torch.empty(
                    type.shape,
                    dtype=dtype_of(type),
                    requires_grad=type.differentiable and has_histories and number in tracked,
                )
                for number, type in enumerate(call.operands)
            ]
        weights = {
            id(tensor): mode.from_tensor(tensor.detach()).requires_grad_(tensor.requires_grad and weights_too)
            for tensor in _weights(call)
        }
        args, kwargs = _with_weights_replaced(call.filled(blocks), weights)
        with mode, notes or nullcontext():
            return blocks, call.function(*args, **kwargs)


def _on_ones(call: Call) -> None:
    with recording_paused(), torch.no_grad(), torch.random.fork_rng(devices=()):
        blocks = [torch.ones(type.shape, dtype=dtype_of(type)) for type in call.operands]
        weights = {id(tensor): tensor.detach().clone() for tensor in _weights(call)}
        args, kwargs = _with_weights_replaced(call.filled(blocks), weights)
        call.function(*args, **kwargs)


def _dtype_of(tensor: Operand | torch.Tensor) -> torch.dtype:
    return dtype_of(tensor.type) if isinstance(tensor, Operand) else tensor.dtype


def _type_of(tensor: torch.Tensor) -> Type:
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        raise NeedsValuesError
    return type_of(tensor)


def _weights(call: Call) -> list[torch.Tensor]:
    return [tensor for tensor in call.tensors() if not isinstance(tensor, Operand)]


def _with_weights_replaced(value: Any, others: Mapping[int, torch.Tensor]) -> Any:
    return map_leaves(value, lambda leaf: others.get(id(leaf), leaf))
