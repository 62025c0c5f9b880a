"""Nodes of known signatures, and the values that they are given: tensors of the user's that become inputs, lists of rows that
become one value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foldloom.graph import ANY, Type
from foldloom.tracing.functions.calls import leaves_of, rebuilt
from foldloom.tracing.lazy_tensor import LazyTensor
from foldloom.tracing.mutation.views import is_strided
from foldloom.tracing.signatures import KnownCall, Signatures


class Nodes(Signatures):
    """A recording to which nodes are added, whoever asks for them."""

    def _add_node(self, known: KnownCall, operands: list[int], depth: int) -> Any:
        self.op_of_node.append(known.op_number)
        self.operands += operands
        self.depth_of_node.append(depth)
        types = known.output_types
        value = self.value_count
        self.value_count = value + len(types)
        if known.returns_one:
            return LazyTensor(self, value, types[0], depth)
        handles = [LazyTensor(self, number, type, depth) for number, type in enumerate(types, value)]
        return tuple(handles) if known.returns_tuple else rebuilt(known.returns, iter(handles))

    def _add_node_of(self, known: KnownCall, handles: Sequence[LazyTensor]) -> Any:
        """Any node: operands and outputs may be ragged."""
        operands: list[int] = []
        depth = rows = 0
        for handle in handles:
            if handle._type.ragged:
                operands += handle._value
                rows = len(handle._value)
                self.lengths.append(rows)
            else:
                operands.append(handle._value)
            if handle._depth > depth:
                depth = handle._depth
        types = known.output_types
        if not any(type.ragged for type in types):
            return self._add_node(known, operands, depth + 1)
        self.op_of_node.append(known.op_number)
        self.operands += operands
        self.depth_of_node.append(depth + 1)
        outputs: list[LazyTensor] = []
        for type in types:
            value = self.value_count
            if type.ragged:
                self.lengths.append(rows)
                self.value_count = value + rows
                outputs.append(LazyTensor(self, range(value, value + rows), type, depth + 1))
            else:
                self.value_count = value + 1
                outputs.append(LazyTensor(self, value, type, depth + 1))
        return rebuilt(known.returns, iter(outputs))

    # ---- Tensors that are given, and values that are given back.

    def _with_tensors_lifted(self, function: Any, leaves: list[Any]) -> list[Any]:
        """Tensors that are the same for everybody stay; others become values of this example."""
        lengths = {len(leaf._value) for leaf in leaves if type(leaf) is LazyTensor and leaf._type.ragged}
        result: list[Any] = []
        for leaf in leaves:
            if type(leaf) is LazyTensor:
                rows = leaf._recorder is self.given and self._has_rows(leaf._value, function, lengths)
                result.append(self._own(leaf, None, ragged=rows))
            elif is_strided(leaf):
                shared = self._is_shared(leaf)
                result.append(leaf if shared else self.lift(leaf, ragged=self._has_rows(leaf, function, lengths)))
            elif isinstance(leaf, np.ndarray):
                # A copy, because the array may change before it is read.
                result.append(self.lift(torch.from_numpy(leaf.copy()), ragged=False))
            else:
                result.append(leaf)
        return result

    @staticmethod
    def _has_rows(tensor: torch.Tensor, function: Any, lengths: set[int]) -> bool:
        """Whether a given tensor is best taken as ragged: beside others that are, or for a function that goes row by row."""
        if not tensor.ndim:
            return False
        return len(tensor) in lengths or (function in LOOKUPS and tensor.ndim == 1)

    def as_outputs(self, handles: Sequence[LazyTensor]) -> list[LazyTensor]:
        """Values that are returned from an example."""
        return [
            handle
            if handle._recorder is self and not handle._type.ragged
            else self.dense(self._own(handle, None, ragged=False))
            for handle in handles
        ]

    # ---- Rows.

    def ragged(self, rows: Sequence[LazyTensor], type: Type) -> LazyTensor:
        depth = max([row._depth for row in rows], default=0)
        stacked = TYPE_OF_STACK.setdefault(type, Type((ANY, *type.shape), type.dtype))
        return LazyTensor(self, [row._value for row in rows], stacked, depth)

    def dense(self, handle: LazyTensor) -> LazyTensor:
        """A ragged value as one of a fixed shape."""
        if not handle._type.ragged:
            return handle
        if not handle._value:
            return self.constant(torch.zeros, ((0, *handle._type.row.shape),), {"dtype": handle.dtype})
        rows = [LazyTensor(self, value, handle._type.row, handle._depth) for value in handle._value]
        leaves: list[Any] = []
        nesting = leaves_of(((rows,), {}), leaves)
        known = self._known(torch.stack, nesting, leaves, rows)
        return self._add_node_of(known, rows)  # type: ignore[arg-type, no-any-return]


TYPE_OF_STACK: dict[Type, Type] = {}
"""By the type of a row: that of several."""

LOOKUPS = frozenset((torch.nn.functional.embedding, torch.embedding))
"""Functions that look up every place of a vector."""
