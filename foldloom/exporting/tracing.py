"""One op as a graph of torch operations, separate from its weights.

Ops are traced one by one. This keeps Foldloom's own code out of the graph, lets errors name the cell that cannot be
traced, and lets ops share weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.export import Dim, export

from foldloom.errors import ExportError
from foldloom.execution import Kernel
from foldloom.execution.kernels import dtype_of
from foldloom.exporting.recurrent import along_rows
from foldloom.graph import Op
from foldloom.graph.ragged import Ragged
from foldloom.tracing.cells.lookup import find_cell
from foldloom.tracing.flushing.kernels import is_function, kernels_of
from foldloom.tracing.weights import Weights, module_of

_MEMBERS, _ROWS = 5, 7
"""The batch size, and the rows of ragged operands, that an op is traced with. The graph is dynamic in both."""


@dataclass(frozen=True, eq=False)
class Traced:
    """``graph`` takes the weights, then for each operand its tensor and, if it is ragged, its lengths. It returns
    one tensor for each output."""

    graph: torch.fx.GraphModule
    weights: tuple[torch.Tensor, ...]


def traced(op: Op, owner: object) -> Traced:
    kernel = _kernel(op, owner)
    function = None if is_function(op) else find_cell(op.key, owner).function
    blocks: list[torch.Tensor] = []
    for type in op.inputs:
        count = _ROWS if type.ragged else _MEMBERS
        blocks.append(torch.zeros((count, *type.row.shape), dtype=dtype_of(type)))
        if type.ragged:
            blocks.append(torch.full((_MEMBERS,), 1))
    dynamic = (tuple([{0: Dim.DYNAMIC} for _ in blocks]),)
    try:
        with _lengths_as_symbols(kernel, function):
            program = export(_Function(op, owner, kernel), tuple(blocks), dynamic_shapes=dynamic, strict=False)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ExportError(
            f"{op.label or op.key} cannot be exported: what it computes on ({_types(op)}) cannot be traced: {reason}"
        ) from error
    constants = {**program.state_dict, **program.constants}
    weights = [constants[str(spec.target)] for spec in program.graph_signature.input_specs if spec.target is not None]
    return Traced(program.graph_module, tuple(weights))


def _kernel(op: Op, owner: object) -> Kernel:
    (kernel,) = kernels_of([op], owner, Weights(owner))
    assert kernel is not None, "inputs are not traced"
    module = kernel.module
    if isinstance(module, torch.nn.RNNBase) and op.inputs[0].ragged:
        return Kernel(op, partial(along_rows, module), module)
    return kernel


class _Function(torch.nn.Module):
    def __init__(self, op: Op, owner: object, kernel: Kernel) -> None:
        super().__init__()
        self.__dict__.update(op=op, owner=owner, kernel=kernel)

    def forward(self, *blocks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        op: Op = self.__dict__["op"]
        # Weights that are computed from others are computed inside the trace, so that gradients reach those.
        kernel = _kernel(op, self.__dict__["owner"]) if is_function(op) and op.shared else self.__dict__["kernel"]
        remaining = iter(blocks)
        operands = [_operand(remaining, type.ragged) for type in op.inputs]
        outputs = kernel.call(*operands)
        return tuple([output.values if isinstance(output, Ragged) else output for output in outputs])


def _operand(blocks: Iterator[torch.Tensor], ragged: bool) -> torch.Tensor | Ragged:
    values = next(blocks)
    return Ragged(values, next(blocks)) if ragged else values


def _types(op: Op) -> str:
    return ", ".join(map(repr, op.inputs))


@contextmanager
def _lengths_as_symbols(kernel: Kernel, function: object) -> Iterator[None]:
    """Inside, ``len(x)`` of a traced tensor is symbolic like ``x.shape[0]``, in the code of the cell and in ours.
    Python converts the result of ``__len__`` to an int, which would specialise the trace to one batch size."""
    changed = [names for names in _globals_of(kernel, function) if "len" not in names]
    for names in changed:
        names["len"] = _length
    try:
        yield
    finally:
        for names in changed:
            del names["len"]


def _length(value: Any) -> Any:
    if isinstance(value, Ragged):
        return value.lengths.shape[0]
    return value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else len(value)


def _globals_of(kernel: Kernel, function: object) -> list[dict[str, Any]]:
    """The globals of all modules that the code of a kernel is in, each once."""
    own = [vars(module) for name, module in list(sys.modules.items()) if name.startswith(_OURS)]
    functions = [function]
    functions += [type(module).forward for module in (kernel.module.modules() if kernel.module is not None else ())]
    theirs = [function.__globals__ for function in functions if isinstance(function, FunctionType)]
    names = {id(names): names for names in (*own, *theirs) if not names["__name__"].startswith("torch.")}
    names.pop(id(globals()), None)
    return list(names.values())


_OURS = ("foldloom.tracing.", "foldloom.blocks.", "foldloom.graph.ragged", "foldloom.models.")


def weight_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def named_weights(owner: object, modules: Sequence[torch.nn.Module]) -> dict[tuple[Any, ...], tuple[str, torch.Tensor]]:
    """The paths of the model's own weights, by the keys of `weight_key`."""
    whole = module_of(owner)
    found: dict[tuple[Any, ...], tuple[str, torch.Tensor]] = {}
    for module in (*(() if whole is None else (whole,)), *modules):
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            found.setdefault(weight_key(tensor), (path, tensor))
    return found
