"""Which values of a batch require grad, as they would one by one.

A value requires grad if it was computed with gradients enabled from a weight or another value that does. All values of one type share an
arena, in which autograd cannot tell them apart, so this is found from the graph: for each op there is a rule
(`functions/histories.py`), and the values follow in recording order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foldloom.graph import Ints, Op
from foldloom.planning.native import planning
from foldloom.tracing.functions.histories import ALWAYS, IF_ANY


class Histories:
    """A flag for each value, found when it is asked for."""

    __slots__ = ("_flags", "_ops", "_rules", "_rules_in_c")

    def __init__(self) -> None:
        self._flags = bytearray()
        self._rules: list[tuple[int, ...]] = []
        self._ops: tuple[Op, ...] = ()
        self._rules_in_c: Ints = np.empty(0, np.int64)
        """The rules of these ops, one after the other."""

    @property
    def known_values(self) -> int:
        """So many values have a flag."""
        return len(self._flags)

    def add_op(self, rules: tuple[int, ...]) -> None:
        """The rules of one more op."""
        self._rules.append(rules)

    def rules_of(self, op: int) -> tuple[int, ...]:
        """The rules of an op, by its number."""
        return self._rules[op]

    def keep(self, values: int) -> None:
        """Only so many values are left, of which none requires grad."""
        self._flags = bytearray(values)

    def rewind(self, values: int) -> None:
        """Forget the flags of later values."""
        del self._flags[values:]

    def add_nodes(self, ops: Sequence[Op], op_of_node: Ints, operands: Ints, lengths: Ints, value_count: int) -> None:
        """Find the flags of the values of these nodes, which come after those that are known."""
        first = len(self._flags)
        self._flags.extend(bytes(value_count - first))
        if planning is not None:
            if len(self._ops) < len(ops):
                self._ops = tuple(ops)
                self._rules_in_c = np.array([rule for of_op in self._rules for rule in of_op], np.int64)
            planning.histories(self._ops, self._rules_in_c, op_of_node, operands, lengths, self._flags, first)
        else:
            self._find(ops, op_of_node.tolist(), operands.tolist(), lengths.tolist(), first)

    def _find(
        self, ops: Sequence[Op], op_of_node: list[int], operands: list[int], lengths: list[int], value: int
    ) -> None:
        operand = length = 0
        for op in op_of_node:
            found = is_any = 0
            for slot, type in enumerate(ops[op].inputs):
                rows = 1
                if type.ragged:
                    rows, length = lengths[length], length + 1
                if any(self._flags[number] for number in operands[operand : operand + rows]):
                    is_any, found = 1, found | 1 << slot
                operand += rows
            for type, rule in zip(ops[op].outputs, self._rules[op], strict=True):
                rows = 1
                if type.ragged:
                    rows, length = lengths[length], length + 1
                flag = 1 if rule == ALWAYS else is_any if rule == IF_ANY else int(found & rule != 0)
                self._flags[value : value + rows] = bytes([flag]) * rows
                value += rows

    def of(self, values: Sequence[int]) -> list[bool]:
        flags = self._flags
        return [bool(flags[value]) for value in values]
