"""What the ops of a batch save for backward, asked only where values were changed in place."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from foldloom.execution.kernels import dtype_of, type_of
from foldloom.graph import Op, Type
from foldloom.tracing.cells.bodies import body_of, is_automatic
from foldloom.tracing.cells.lookup import find_cell
from foldloom.tracing.cells.probing import call_alone
from foldloom.tracing.flushing.kernels import is_function
from foldloom.tracing.functions.calls import Call, call_of_template, function_named
from foldloom.tracing.functions.saved import Saved, SavedBy, saved_by
from foldloom.tracing.functions.shape_inference import without_data
from foldloom.tracing.mutation.views import id_of_memory, is_strided
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.scope import in_mode, recording_paused
from foldloom.tracing.weights import Weights

_known: dict[Hashable, SavedBy] = {}
"""By function, settings, types and mode. The same for all batches."""


def saved_by_outputs(op: Op, owner: object, weights: Weights) -> tuple[SavedBy, ...]:
    """What an op saves for the gradient of each of its outputs; only one for all if it is one operation."""
    if is_automatic(op):
        body = body_of(op)
        return body.saved_by([saved_by_op(node.op, owner, weights) for node in body.nodes])
    return (saved_by_op(op, owner, weights),)


def saved_by_op(op: Op, owner: object, weights: Weights) -> SavedBy:
    mode: Any = op.mode
    if op.is_input or (mode is not None and not mode[0]):
        return SavedBy(tuple([Saved()] * len(op.inputs)))
    differentiable = [type.differentiable for type in op.inputs]
    with recording_paused(), in_mode(op.mode):
        if not is_function(op):
            cell = find_cell(op.key, owner)
            call = cell.function if type(cell.function) in MODULES else cell
            return saved_by(partial(call_alone, cell, call, op), differentiable)
        shared = [weights[name] for name in op.shared]
        key = (op.key, op.settings, op.inputs, op.mode, tuple([(type_of(w), w.requires_grad) for w in shared]))
        found = _known.get(key)
        if found is None:
            found = _known[key] = _saved_by_function(op, shared, differentiable)
        return found


def saves_weight(op: Op, names: Collection[Hashable], weights: Weights, tracked: Sequence[bool]) -> bool:
    """Whether a function saves one of the weights of these names for backward, if the operands that are ``tracked`` require grad."""
    chosen = [weights[name] for name in op.shared if name in names]
    mode: Any = op.mode
    if not chosen or (mode is not None and not mode[0]) or not is_function(op):
        return False
    shared = [weights[name] for name in op.shared]
    call = _call_of(op, shared)
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with recording_paused(), in_mode(op.mode), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        blocks = [
            torch.ones(type.shape, dtype=dtype_of(type), requires_grad=is_tracked and type.differentiable)
            for type, is_tracked in zip(call.operands, tracked, strict=True)
        ]
        try:
            call.apply(*blocks)
        except Exception:  # it does not take ones
            return False
    memory = {id_of_memory(tensor) for tensor in chosen}
    return any(is_strided(tensor) and id_of_memory(tensor) in memory for tensor in kept)


def _call_of(op: Op, shared: Sequence[torch.Tensor]) -> Call:
    types = tuple([Type((2, *type.row.shape), type.dtype) if type.ragged else type for type in op.inputs])
    return call_of_template(function_named(op.key), op.settings, types, shared, ())


def _saved_by_function(op: Op, shared: Sequence[torch.Tensor], differentiable: Sequence[bool]) -> SavedBy:
    call = _call_of(op, shared)

    def trial(tracked: Sequence[int], weights_too: bool) -> tuple[Sequence[torch.Tensor], Any]:
        return without_data(call, tracked, weights_too=weights_too)

    return saved_by(trial, differentiable)
