"""The strides of computed values, as they would be one by one.

Values lie in rows, one like the other. One by one, what is computed from a transposed tensor often lies transposed, too; then `reshape` copies
it, and `contiguous` does. Strides are worked out when somebody asks, by calling on tensors without data what computed the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

import torch

from foldloom.execution.kernels import dtype_of
from foldloom.graph import Op
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.cells.bodies import Body, body_of, is_automatic, single_ops
from foldloom.tracing.flushing.kernels import is_function
from foldloom.tracing.flushing.overwritten import Columns
from foldloom.tracing.functions.calls import call_of_template, function_named
from foldloom.tracing.rules.base import forms
from foldloom.tracing.scope import recording_paused
from foldloom.tracing.weights import Weights

Strides = tuple[int, ...]

_TRANSPOSING = frozenset(
    (
        *forms("t transpose permute swapaxes swapdims movedim moveaxis adjoint einsum tensordot"),
        *[getattr(torch.Tensor, name).__get__ for name in ("T", "mT", "H", "mH")],
    )
)
"""Functions whose results do not lie as those of others do."""

_FARTHEST = 100
"""How far back it is looked for a transposed tensor."""


class Layouts:
    """Works out strides of the values of one graph."""

    def __init__(self, graph: GraphBuilder, inputs: Inputs, weights: WeakMethod[Callable[[], Weights]]) -> None:
        self._graph = graph
        self._inputs = inputs
        self._weights = weights
        self._is_transposing: list[bool] = []
        """For each op of the graph."""
        self._known: dict[int, Strides | None] = {}
        self._columns: list[Columns] = []
        self._count = -1

    def forget(self) -> None:
        """Values have other numbers now, or are others."""
        self._count = -1

    def strides_of(self, value: int) -> Strides | None:
        """None: like everything that is computed of tensors that lie in order."""
        ops = self._graph.ops[len(self._is_transposing) :]
        self._is_transposing += [_transposes(op) for op in ops]
        if not any(self._is_transposing):
            return None
        if self._count != self._graph.value_count:
            self._count = self._graph.value_count
            self._known.clear()
            self._columns = [Columns.of(tuple(self._graph.ops), nodes) for nodes in self._graph.all_nodes()]
        with recording_paused(), torch.no_grad():
            return self._found(value, _FARTHEST)

    def _found(self, value: int, steps: int) -> Strides | None:
        if value not in self._known:
            given = self._inputs.tensor_of(value)
            if given is not None:
                self._known[value] = given.stride()
            else:
                self._known[value] = self._computed(value, steps) if steps else None
        return self._known[value]

    def _computed(self, value: int, steps: int) -> Strides | None:
        place = next((found for part in self._columns if (found := part.node_of(value)) is not None), None)
        if place is None:
            return None
        part, node = place
        op = self._graph.ops[int(part.op_of_node[node])]
        if op.is_input or any(type.ragged for type in (*op.inputs, *op.outputs)):
            return None
        strides = [self._found(operand, steps - 1) for operand in part.operands_of(node)]
        return self._of_result(op, strides, value - int(part.first_value[node]))

    def _of_result(self, op: Op, strides: Sequence[Strides | None], place: int) -> Strides | None:
        if not any(strides) and not _transposes(op):
            return None
        if is_automatic(op):
            return self._of_body(body_of(op), strides, place)
        return self._of_function(op, strides, place) if is_function(op) else None

    def _of_body(self, body: Body, strides: Sequence[Strides | None], place: int) -> Strides | None:
        found: list[Strides | None] = [*strides, *[None] * len(body.constants)]
        for node in body.nodes:
            of_operands = [found[number] for number in node.operands]
            found += [self._of_result(node.op, of_operands, number) for number in range(len(node.op.outputs))]
        return found[body.outputs[place]]

    def _of_function(self, op: Op, strides: Sequence[Strides | None], place: int) -> Strides | None:
        weights_of_run = self._weights()
        assert weights_of_run is not None, "who asks for strides keeps the flushes"
        weights = weights_of_run()
        shared = [_without_data(w.shape, w.dtype, w.stride()) for w in [weights[name] for name in op.shared]]
        operands = [
            _without_data(type.shape, dtype_of(type), found) for type, found in zip(op.inputs, strides, strict=True)
        ]
        try:
            result: Any = call_of_template(function_named(op.key), op.settings, op.inputs, shared, op.outputs).apply(
                *operands
            )
        except Exception:  # it needs numbers
            return None
        results = result if isinstance(result, (tuple, list)) else (result,)
        found = results[place] if len(results) == len(op.outputs) else None
        return found.stride() if isinstance(found, torch.Tensor) else None


def _transposes(op: Op) -> bool:
    return any(is_function(each) and function_named(each.key) in _TRANSPOSING for each in single_ops((op,)))


def _without_data(shape: Sequence[int], dtype: torch.dtype, strides: Strides | None) -> torch.Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
