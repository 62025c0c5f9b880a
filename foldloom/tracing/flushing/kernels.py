"""From recorded ops to the kernels that run them: cells, and functions with their batch rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foldloom.errors import CellMismatchError
from foldloom.execution import Kernel
from foldloom.graph import Op
from foldloom.tracing.cells.bodies import is_automatic, kernel_of_body
from foldloom.tracing.cells.lookup import find_cell
from foldloom.tracing.functions.calls import call_of_template, function_named
from foldloom.tracing.functions.derivatives import NO_DERIVATIVE, cut_off
from foldloom.tracing.rules import batched_form, ragged_form
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.rules.fallback import Fallback
from foldloom.tracing.rules.indexing import table_size
from foldloom.tracing.rules.losses import without_gradients
from foldloom.tracing.rules.modules import flat_results
from foldloom.tracing.scope import in_mode
from foldloom.tracing.weights import Weights

DIRECT_RULE, CELL, AUTOMATIC_CELL = "direct rule", "cell", "automatic cell"


def kernels_of(ops: Sequence[Op], owner: object, weights: Weights) -> list[Kernel | None]:
    return [None if op.is_input else _kernel_of(op, owner, weights) for op in ops]


def _kernel_of(op: Op, owner: object, weights: Weights) -> Kernel:
    if is_automatic(op):
        return kernel_of_body(op, lambda inner: _kernel_of(inner, owner, weights))
    if is_function(op):
        kernel = _function_kernel(op, weights)
    else:
        with in_mode(op.mode):
            kernel = find_cell(op.key, owner).kernel(op)
        if isinstance(kernel.module, torch.nn.Embedding):
            kernel.table = kernel.module.num_embeddings
    if op.mode is not None:
        kernel.call = _in_mode(kernel.call, op.mode)
        kernel.alone = None if kernel.alone is None else _in_mode(kernel.alone, op.mode)
    return kernel


def is_function(op: Op) -> bool:
    """Functions are known by where they are defined, cells and modules by names without a colon."""
    return ":" in op.key


def _function_kernel(op: Op, weights: Weights) -> Kernel:
    shared = [weights[name] for name in op.shared]
    call = call_of_template(function_named(op.key), op.settings, op.inputs, shared, op.outputs)
    is_ragged = any(type.ragged for type in op.inputs)
    run = ragged_form(call) if is_ragged else batched_form(call)
    if run is None:
        raise CellMismatchError(
            f"{op} is a call on rows of any number, for which there is no rule: it was recorded elsewhere, or forged"
        )

    count = len(op.outputs)
    run_blocks = without_gradients(call, run)
    missing = NO_DERIVATIVE.get((op.key, op.settings, op.inputs))
    if missing is not None:
        run_blocks = cut_off(run_blocks, missing)

    def kernel(*blocks: Any) -> Sequence[Any]:
        leaves = flat_results(run_blocks(*blocks))
        return leaves if len(leaves) == count else [leaf for leaf in leaves if leaf is not None]

    made = Kernel(op, kernel, weights=shared, only_once=call.function in DRAWS)
    made.form = run
    made.alone = call.apply
    made.table = table_size(call)
    return made


def how(kernel: Kernel) -> str:
    """Which way the members of a step go: by a rule, by `torch.vmap`, one by one, or as the user's own cell."""
    if isinstance(kernel.form, Fallback):
        return kernel.form.how
    if is_automatic(kernel.op):
        return AUTOMATIC_CELL
    return DIRECT_RULE if is_function(kernel.op) else CELL


def _in_mode(call: Callable[..., Any], mode: Any) -> Callable[..., Any]:
    def run(*blocks: Any) -> Any:
        with in_mode(mode):
            return call(*blocks)

    return run
