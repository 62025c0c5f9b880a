"""The bodies of automatic cells: small graphs that run as one step.

A body is data: the ops of its nodes, what each of them reads, and which values it returns. Its kernel calls the kernels of its nodes one after
the other, each for all members, so that what is computed is what the nodes would have computed in steps of their own.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foldloom.caching import cached_property
from foldloom.execution import Kernel
from foldloom.graph import Op, Type
from foldloom.graph.ragged import Ragged
from foldloom.tracing.functions.calls import function_named
from foldloom.tracing.functions.histories import ALWAYS, IF_ANY
from foldloom.tracing.functions.saved import Saved, SavedBy

AUTOMATIC = "automatic"
"""The key of an op that is an automatic cell."""

_SMOOTH = frozenset(
    [
        "add",
        "sub",
        "rsub",
        "mul",
        "neg",
        "tanh",
        "sigmoid",
        "relu",
        "gelu",
        "silu",
        "softplus",
        "elu",
        "cat",
        "concat",
        "stack",
        "chunk",
        "split",
        "unbind",
        "select",
        "narrow",
        "getitem",
        "__getitem__",
        "view",
        "reshape",
        "flatten",
        "unsqueeze",
        "squeeze",
        "transpose",
        "permute",
        "t",
        "T",
        "mT",
        "expand",
        "expand_as",
        "linear",
        "matmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "addmm",
        "baddbmm",
        "softmax",
        "log_softmax",
        "layer_norm",
        "embedding",
        "mean",
        "sum",
        "cross_entropy",
        "nll_loss",
        "cos",
        "sin",
        "exp",
        "logsigmoid",
        "lstm_cell",
        "gru_cell",
        "masked_fill",
        "where",
        "zeros_like",
        "ones_like",
        "detach",
        "clone",
        "contiguous",
        "to",
        "float",
        "double",
        "index_select",
        "gather",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "argmax",
        "logical_not",
        "logical_and",
        "logical_or",
        "scaled_dot_product_attention",
        "layernorm",
        "lstmcell",
        "grucell",
    ]
)
"""Functions whose derivatives are finite wherever their operands and results are."""


@dataclass(frozen=True)
class Node:
    """One operation of a body: ``operands`` are numbers of values, ``rules`` tell which of its results require grad."""

    op: Op
    operands: tuple[int, ...]
    rules: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A value that is the same for all members: what a function returns for plain arguments."""

    function: str
    args: tuple[Hashable, ...]
    kwargs: tuple[tuple[str, Hashable], ...]


@dataclass(frozen=True)
class Body:
    """Values are numbered: first the operands of the cell, then constants, then the results of the nodes in order."""

    operands: int
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.operands, self.constants, self.nodes, self.outputs))

    def __hash__(self) -> int:
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}

    @property
    def is_smooth(self) -> bool:
        """Whether a gradient of zero stays zero on its way through the body, if all numbers are finite."""
        return all(_name(node.op) in _SMOOTH for node in self.nodes)

    @property
    def first_result(self) -> int:
        """The number of the first value that a node makes."""
        return self.operands + len(self.constants)

    def rules(self) -> tuple[int, ...]:
        """Which outputs require grad, over the operands of the cell: see `functions/histories.py`."""
        rules = self._rules_of_values()
        return tuple([rules[number] for number in self.outputs])

    def _rules_of_values(self) -> list[int]:
        rule_of: list[int] = [1 << number if number < 62 else IF_ANY for number in range(self.operands)]
        rule_of += [0] * len(self.constants)
        for node in self.nodes:
            of_operands = [rule_of[number] for number in node.operands]
            rule_of += [_composed(rule, of_operands) for rule in node.rules]
        return rule_of

    def is_of_one_piece(self, types: Sequence[Type], output_types: Sequence[Type]) -> bool:
        """Whether all outputs that may have gradients depend on the same of the operands that may have some, by operations that pass gradients
        on. Otherwise backward from one of them would reach operands of another."""
        differentiable = sum(1 << number for number, type in enumerate(types) if type.differentiable)
        read: list[int] = [1 << number for number in range(self.operands)] + [0] * len(self.constants)
        for node in self.nodes:
            for rule in node.rules:
                passing = [
                    read[number]
                    for slot, number in enumerate(node.operands)
                    if rule == ALWAYS or _depends_on(rule, slot)
                ]
                read.append(functools.reduce(operator.or_, passing, 0))
        rules = self._rules_of_values()
        outputs = [number for number, type in zip(self.outputs, output_types, strict=True) if type.differentiable]
        return len({(rules[number] != 0, read[number] & differentiable) for number in outputs}) <= 1

    def saved_by(self, saved_by_node: Sequence[SavedBy]) -> tuple[SavedBy, ...]:
        """What the cell saves for the gradient of each output, of its operands and results, from what its nodes save."""
        return tuple([self._saved_for(output, saved_by_node) for output in self.outputs])

    def _saved_for(self, output: int, saved_by_node: Sequence[SavedBy]) -> SavedBy:
        rules = self._rules_of_values()
        needed = self._needed_for(output)
        each = [
            self._saved(saved_by_node, needed, [_depends_on(rule, n) for rule in rules]) for n in range(self.operands)
        ]
        return SavedBy(tuple(each), self._saved(saved_by_node, needed, [rule == ALWAYS for rule in rules]))

    def _needed_for(self, output: int) -> list[bool]:
        """Which nodes an output is computed by."""
        firsts = list(itertools.accumulate([len(node.op.outputs) for node in self.nodes], initial=self.first_result))
        values, needed = {output}, [False] * len(self.nodes)
        for number in range(len(self.nodes) - 1, -1, -1):
            if not values.isdisjoint(range(firsts[number], firsts[number + 1])):
                needed[number] = True
                values.update(self.nodes[number].operands)
        return needed

    def _saved(self, saved_by_node: Sequence[SavedBy], needed: Sequence[bool], tracked: Sequence[bool]) -> Saved:
        """What these nodes save if these values require grad."""
        values: set[int] = set()
        first = self.first_result
        for node, saved_by, is_needed in zip(self.nodes, saved_by_node, needed, strict=True):
            saved = saved_by.by([tracked[number] for number in node.operands])
            if is_needed:
                values.update([node.operands[slot] for slot in saved.operands])
                values.update([first + result for result in saved.results])
            first += len(node.op.outputs)
        operands = frozenset([value for value in values if value < self.operands])
        return Saved(operands, frozenset([n for n, value in enumerate(self.outputs) if value in values]))


def _depends_on(rule: int, operand: int) -> bool:
    return rule == IF_ANY or (rule > 0 and operand < 62 and bool(rule >> operand & 1))


def _name(op: Op) -> str:
    return op.label.lower() if op.label else op.key


def _composed(rule: int, of_operands: Sequence[int]) -> int:
    """The rule of a result, over what the operands depend on."""
    if rule == ALWAYS:
        return ALWAYS
    used = (
        of_operands
        if rule == IF_ANY
        else [r for number, r in enumerate(of_operands) if number < 62 and rule >> number & 1]
    )
    if ALWAYS in used:
        return ALWAYS
    if IF_ANY in used:
        return IF_ANY
    composed = 0
    for operand in used:
        composed |= operand
    return composed


def is_automatic(op: Op) -> bool:
    return op.key == AUTOMATIC


def single_ops(ops: Sequence[Op]) -> Iterator[Op]:
    """All ops, those inside of automatic cells in the place of these."""
    for op in ops:
        if is_automatic(op):
            yield from [node.op for node in body_of(op).nodes]
        else:
            yield op


def body_of(op: Op) -> Body:
    assert isinstance(op.settings, Body), "an automatic cell has its body in its settings"
    return op.settings


def kernel_of_body(op: Op, kernel_of: Callable[[Op], Kernel]) -> Kernel:
    """The kernel of an automatic cell, made of the kernels of its nodes."""
    body = body_of(op)
    kernels = [kernel_of(node.op) for node in body.nodes]
    calls = [(_as_ragged(kernel), node.operands) for kernel, node in zip(kernels, body.nodes, strict=True)]
    outputs = body.outputs
    constants = [_made(constant) for constant in body.constants]

    def call(*blocks: Any) -> Sequence[Any]:
        members = len(blocks[0])
        values: list[Any] = [*blocks]
        if constants:
            device = blocks[0].values.device if isinstance(blocks[0], Ragged) else blocks[0].device
            values += [constant.to(device).expand(members, *constant.shape) for constant in constants]
        for run, operands in calls:
            values += run(*[values[number] for number in operands])
        return [values[number] for number in outputs]

    weights = {id(weight): weight for kernel in kernels for weight in kernel.weights}
    made = Kernel(op, call, weights=list(weights.values()), is_cell=not body.is_smooth)
    made.modules = tuple(dict.fromkeys([module for kernel in kernels for module in kernel.modules]))
    return made


def _as_ragged(kernel: Kernel) -> Callable[..., Sequence[Any]]:
    """The call of a kernel, whose ragged results the next kernel can read as such."""
    if True not in kernel.ragged_outputs:
        return kernel.call

    def run(*blocks: Any) -> Sequence[Any]:
        lengths = next(block.lengths for block in blocks if isinstance(block, Ragged))
        return [
            Ragged(made, lengths) if is_ragged and not isinstance(made, Ragged) else made
            for made, is_ragged in zip(kernel.call(*blocks), kernel.ragged_outputs, strict=True)
        ]

    return run


def _made(constant: Constant) -> torch.Tensor:
    tensor: torch.Tensor = function_named(constant.function)(*constant.args, **dict(constant.kwargs))
    return tensor
