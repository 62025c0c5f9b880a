"""Reads of what was given: answered at once, without a flush.

`x[0].item()` and `if x[0] == 3` of a given tensor are recorded as any call; but when Python demands the value, what it follows from is there.
It is computed for this one example, if that is a matter of picking and comparing numbers: everything else is worth a batch.
"""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch

from foldloom.graph import Op
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.flushing.kernels import is_function
from foldloom.tracing.functions.calls import call_of_template, function_named
from foldloom.tracing.rules.base import forms
from foldloom.tracing.rules.indexing import take
from foldloom.tracing.scope import recording_paused
from foldloom.tracing.values.lazy_tensor import Given, LazyTensor

_READS = frozenset(
    (
        *forms("eq ne lt le gt ge select narrow unbind split chunk view reshape flatten squeeze unsqueeze flip detach cpu clone any all"),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(torch.Tensor.__getitem__, torch.Tensor.data.__get__, take),  # type: ignore[attr-defined]
    )
)  # fmt: skip
"""Functions that pick and compare."""

_FARTHEST = 64
"""How many nodes back the call is looked for that computes a value. It is one of the last: it was recorded just before."""


class _Node(NamedTuple):
    op: Op
    operands: list[int]
    first_value: int


class GivenReader:
    """Computes values that follow from given tensors."""

    def __init__(self, graph: GraphBuilder, inputs: Inputs) -> None:
        self._graph = graph
        self._inputs = inputs
        self._known: dict[int, torch.Tensor] = {}

    def read_handle(self, handle: LazyTensor) -> torch.Tensor | None:
        """What a handle stands for."""
        if isinstance(handle._recorder, Given):
            return handle._recorder.tensor_given_as(handle)
        return None if handle._type.ragged else self.read(handle._value)

    def read(self, value: int) -> torch.Tensor | None:
        """A value, without its gradient; None if it must be waited for."""
        found = self._known.get(value)
        if found is None:
            with recording_paused(), torch.no_grad():
                found = self._read(value)
            if found is not None:
                self._known[value] = found
        return found

    def _read(self, value: int) -> torch.Tensor | None:
        given = self._given(value)
        if given is not None:
            return given.detach()
        node = self._node_of(value)
        if node is None or not is_function(node.op) or node.op.shared:
            return None
        function = function_named(node.op.key)
        if function not in _READS:
            return None
        operands: list[torch.Tensor] = []
        for operand in node.operands:
            found = self._read(operand)
            if found is None:
                return None
            operands.append(found)
        call = call_of_template(function, node.op.settings, node.op.inputs, (), node.op.outputs)
        result: Any = call.apply(*operands)
        results = result if isinstance(result, (tuple, list)) else (result,)
        found = results[value - node.first_value] if len(results) == len(node.op.outputs) else None
        return found if isinstance(found, torch.Tensor) else None

    def _given(self, value: int) -> torch.Tensor | None:
        number = self._graph.number_of_value.get(value)
        return torch.tensor(number) if number is not None else self._inputs.given_at(value)

    def _node_of(self, value: int) -> _Node | None:
        """The node that computes a value, if all its operands and results have fixed shapes."""
        graph = self._graph
        values, operands, lengths = graph.value_count, len(graph.operands), len(graph.lengths)
        for op_number in reversed(graph.op_of_node[-_FARTHEST:]):
            op = graph.ops[op_number]
            ragged = [type.ragged for type in (*op.inputs, *op.outputs)]
            rows = iter(graph.lengths[lengths - sum(ragged) : lengths])
            sizes = [next(rows) if is_ragged else 1 for is_ragged in ragged]
            lengths -= sum(ragged)
            operands -= sum(sizes[: len(op.inputs)])
            values -= sum(sizes[len(op.inputs) :])
            if values <= value:
                taken = graph.operands[operands : operands + len(op.inputs)]
                return None if any(ragged) or op.is_input else _Node(op, taken, values)
        return None
