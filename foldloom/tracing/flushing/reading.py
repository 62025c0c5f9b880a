"""Reads of what was given: answered at once, without a flush.

`x[0].item()` and `if x[0] == 3` of a given tensor are recorded as any call; but when Python demands the value, what it follows from is there.
It is computed for this one example, if that is a matter of picking and comparing numbers: everything else is worth a batch.
"""

from __future__ import annotations

import operator
from array import array
from typing import Any, NamedTuple

import torch

from foldloom.graph import Op
from foldloom.tracing import fast_path
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
        *forms("eq ne lt le gt ge select narrow unbind split chunk view reshape flatten squeeze unsqueeze flip detach cpu clone any all where"),
        *forms("bitwise_and bitwise_or bitwise_xor bitwise_not logical_and logical_or logical_xor logical_not"),
        *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
        *(operator.and_, operator.or_, operator.xor, operator.invert),
        *(torch.Tensor.__getitem__, torch.Tensor.data.__get__, take),  # type: ignore[attr-defined]
    )
)  # fmt: skip
"""Functions that pick and compare."""

_FARTHEST = 64
"""How many nodes back the call is looked for that computes a value. It is one of the last: it was recorded just before."""


class _Node(NamedTuple):
    form: _Form
    operands: list[int]
    first_value: int


class _Form(NamedTuple):
    """What nodes of one op have in common."""

    operands: int
    values: int
    ragged: tuple[bool, ...]
    """Which of the operands and values are ragged; empty if none is."""
    op: Op | None
    """The op, if its nodes pick and compare."""
    is_input: bool

    def packed(self) -> tuple[int, int, int, int, int]:
        """The operands and the values of fixed shapes, the ragged ones, and whether the node computes, picks and compares, or is an input."""
        ragged_operands, ragged = sum(self.ragged[: self.operands]), sum(self.ragged)
        kind = 2 if self.is_input else 0 if self.op is None else 1
        return (
            self.operands - ragged_operands,
            self.values - ragged + ragged_operands,
            ragged_operands,
            ragged - ragged_operands,
            kind,
        )


class GivenReader:
    """Computes values that follow from given tensors."""

    def __init__(self, graph: GraphBuilder, inputs: Inputs) -> None:
        self._graph = graph
        self._inputs = inputs
        self._known: dict[int, torch.Tensor] = {}
        self._forms: list[_Form] = []
        self._packed = array("q")
        """The same for C."""

    def forget(self) -> None:
        """Values have other numbers now."""
        self._known.clear()

    def read_handle(self, handle: LazyTensor) -> torch.Tensor | None:
        """What a handle stands for."""
        if isinstance(handle._recorder, Given):
            return handle._recorder.tensor_given_as(handle)
        return None if handle._type.ragged else self.read(handle._value)

    def read(self, value: int) -> torch.Tensor | None:
        """A value, without its gradient; None if it must be waited for."""
        found = self._known.get(value)
        if found is None and self._follows(value):
            with recording_paused(), torch.no_grad():
                found = self._read(value)
            if found is not None:
                self._known[value] = found
        return found

    def may_follow(self, value: int) -> bool:
        """Whether a value may be there without a flush: computed before, or following from what was given. Every number that is demanded comes
        by, and nearly always the last nodes tell that it is not."""
        if len(self._forms) < len(self._graph.ops):
            self._look_at_new_ops()
        return fast_path.may_follow(self._graph, self._packed, value)

    def _look_at_new_ops(self) -> None:
        new = [_form_of(op) for op in self._graph.ops[len(self._forms) :]]
        self._forms += new
        self._packed.extend([number for form in new for number in form.packed()])

    def _follows(self, value: int) -> bool:
        """Whether a value follows from given ones."""
        if value in self._graph.number_of_value or self._inputs.is_given(value):
            return True
        node = self._node_of(value)
        return node is not None and all(map(self._follows, node.operands))

    def _read(self, value: int) -> torch.Tensor | None:
        number = self._graph.number_of_value.get(value)
        given = torch.tensor(number) if number is not None else self._inputs.given_at(value)
        if given is not None:
            return given.detach()
        node = self._node_of(value)
        assert node is not None, "what follows from given values was computed by a node"
        op = node.form.op
        assert op is not None
        operands = [self._read(operand) for operand in node.operands]
        if any(operand is None for operand in operands):
            return None
        call = call_of_template(function_named(op.key), op.settings, op.inputs, (), op.outputs)
        result: Any = call.apply(*operands)
        results = result if isinstance(result, (tuple, list)) else (result,)
        found = results[value - node.first_value] if len(results) == len(op.outputs) else None
        return found if isinstance(found, torch.Tensor) else None

    def _node_of(self, value: int) -> _Node | None:
        """The node that computes a value, if it picks or compares and all its operands and results have fixed shapes."""
        graph, forms = self._graph, self._forms
        if len(forms) < len(graph.ops):
            self._look_at_new_ops()
        values, operands, lengths = graph.value_count, len(graph.operands), len(graph.lengths)
        op_of_node, last = graph.op_of_node, len(graph.op_of_node) - 1
        for place in range(last, max(last - _FARTHEST, -1), -1):
            form = forms[op_of_node[place]]
            if form.ragged:
                rows = iter(graph.lengths[lengths - sum(form.ragged) : lengths])
                sizes = [next(rows) if is_ragged else 1 for is_ragged in form.ragged]
                lengths -= sum(form.ragged)
                operands -= sum(sizes[: form.operands])
                values -= sum(sizes[form.operands :])
            else:
                operands -= form.operands
                values -= form.values
            if values <= value:
                return None if form.op is None else _Node(form, graph.operands[operands:][: form.operands], values)
        return None


def _form_of(op: Op) -> _Form:
    ragged = tuple([type.ragged for type in (*op.inputs, *op.outputs)])
    reads = not any(ragged) and is_function(op) and not op.shared and function_named(op.key) in _READS
    return _Form(len(op.inputs), len(op.outputs), ragged if any(ragged) else (), op if reads else None, op.is_input)
