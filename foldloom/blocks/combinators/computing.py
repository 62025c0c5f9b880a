"""Blocks that compute on tensors, and constants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from foldloom.blocks.block import Block, converts
from foldloom.blocks.combinators.items import element_of, refuse_endless
from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.inference import Unknown, head, known, wait, wait_for_head
from foldloom.blocks.lowering.cells import FlatCell, cell_key
from foldloom.blocks.lowering.codegen import CodeBuilder, Generated
from foldloom.blocks.printing import printed, shortened
from foldloom.blocks.types import (
    BlockType,
    BroadcastSequenceType,
    PyObjectType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
    convert_to_type,
    dtype_name,
    with_dtypes,
)
from foldloom.errors import CellError
from foldloom.graph import Type
from foldloom.pytrees import Nesting, flatten
from foldloom.tracing.cells.core import Cell, Signature, cell

_TRIED_LENGTHS = (4, 5)
"""A function is tried with two lengths for dynamic dimensions. Output dimensions that differ between them are dynamic too."""


def is_computable(type: BlockType) -> bool:
    """Whether values are tensors or tuples of tensors."""
    return isinstance(type, TensorType) or (isinstance(type, TupleType) and all(map(is_computable, type.items)))


@converts(lambda value: isinstance(value, torch.nn.Module) or (callable(value) and not isinstance(value, type)))
class Function(Generated, Block):
    """A function or module over batched tensors: the unit of batching.

    The items of an input tuple become its arguments; nested tuples stay tuples. The output type is inferred by calling
    it on zeros as soon as the input type is known. With ``infer_output_type=False`` it is declared by
    ``set_output_type``.

    >>> from foldloom import blocks as fb
    >>> (fb.Record((fb.Scalar(), fb.Scalar())) >> fb.Function(torch.add)).eval((1, 2))
    tensor(3.)
    """

    def __init__(self, fn: Callable[..., Any], infer_output_type: bool = True) -> None:
        self._function: Callable[..., Any] | None = fn
        self._infers = infer_output_type
        self._calls_nested = isinstance(fn, Cell)
        self.settle()

    @property
    def function(self) -> Callable[..., Any] | None:
        return self._function

    def _nesting(self) -> TupleType | None:
        """The input type if it contains nested tuples that must be flattened for the cell; otherwise None."""
        takes = known(self.takes)
        nested = isinstance(takes, TupleType) and not all(isinstance(item, TensorType) for item in takes.items)
        return takes if nested and isinstance(takes, TupleType) and not self._calls_nested else None

    def cell_key(self) -> Hashable:
        assert self._function is not None
        return cell_key(self._function, self._nesting())

    def make_cell(self) -> Cell:
        assert self._function is not None
        nesting = self._nesting()
        return cell(self._function) if nesting is None else FlatCell(self._function, nesting)

    def _infer(self) -> None:
        if wait(self.takes, self._infer):
            return
        takes = known(self.takes)
        if not is_computable(takes):
            raise self.type_error(f"{shortened(self)} takes tensors and tuples of tensors, not {takes}{_advice(takes)}")
        if not self._infers:
            return
        gives = self._tried(takes)
        self.give(gives)

    def _tried(self, takes: BlockType) -> BlockType:
        try:
            _initialize(self._function, takes)
            cell = self.make_cell()
            signatures = [self._signature(cell, takes, length) for length in _TRIED_LENGTHS]
        except (CellError, TypeError, ValueError, RuntimeError) as error:
            reason = error.__cause__ or error
            raise self.type_error(f"{shortened(self)} cannot take {takes}: {reason}") from error
        signature, other = signatures
        outputs = iter(
            [
                TensorType([a if a == b else None for a, b in zip(one.shape, two.shape, strict=True)], one.dtype)
                for one, two in zip(signature.op.outputs, other.op.outputs, strict=True)
            ]
        )
        return self._returned(signature.returns, outputs)

    def _signature(self, cell: Cell, takes: BlockType, length: int) -> Signature:
        types = tuple(
            [Type(item.fixed(length), item.dtype) for item in takes.terminal_types() if isinstance(item, TensorType)]
        )
        nesting = flatten(takes.unflatten(types), []) if self._calls_nested and isinstance(takes, TupleType) else None
        if nesting is not None and all(part is None for part in nesting[2]):
            nesting = None
        return cell.signature(types, nesting, ())

    def infer_signatures(self, cell: Cell, dtypes: Mapping[str, str]) -> None:
        for length in _TRIED_LENGTHS:
            self._signature(cell, with_dtypes(known(self.takes), dtypes), length)

    def describe(self, to: Describing) -> Described:
        takes = _nesting_of(known(self.takes))
        return {"kind": "function", "cell": to.cell(self), "takes": takes, "nested": self._calls_nested}

    def _returned(self, nesting: Nesting, outputs: Any) -> BlockType:
        if nesting is None:
            return next(outputs)  # type: ignore[no-any-return]
        kind, _, parts = nesting
        if kind is dict:
            raise self.type_error(f"{shortened(self)} gives a dict of tensors; let it return a tuple")
        return TupleType([self._returned(part, outputs) for part in parts])

    def emit(self, code: CodeBuilder, value: str) -> str:
        takes, cell = known(self.takes), code.lower.cells[self]
        if self._calls_nested and isinstance(takes, TupleType):
            return code.call(cell, code.items(value, len(takes.items)))
        return code.call(cell, code.flat(value, takes))

    def state_without_weights(self) -> dict[str, Any]:
        return {**super().state_without_weights(), "_function": None}

    def __repr__(self) -> str:
        plain = not self._printed and type(self) is Function and self._infers
        return printed(self._function) if plain and isinstance(self._function, torch.nn.Module) else super().__repr__()


def _nesting_of(type: BlockType) -> Any:
    """The nesting of tuples as lists, with None for each tensor."""
    return [_nesting_of(item) for item in type.items] if isinstance(type, TupleType) else None


def _advice(takes: BlockType) -> str:
    if any(isinstance(type, PyObjectType) for type in takes.terminal_types()):
        return ". Python objects become tensors through fb.Tensor, fb.Scalar or fb.Vector"
    if isinstance(takes, SequenceType):
        return ". To apply it to every element write fb.Map(...)"
    return ""


def _initialize(function: Callable[..., Any] | None, takes: BlockType) -> None:
    """Call a lazy module once, so that it creates its weights now and draws from the usual random state."""
    if isinstance(function, torch.nn.Module) and any(map(is_lazy, function.parameters())):
        zeros = [
            torch.zeros((2, *item.fixed(_TRIED_LENGTHS[0])), dtype=getattr(torch, item.dtype))
            for item in takes.terminal_types()
            if isinstance(item, TensorType)
        ]
        nested = takes.unflatten(zeros)
        with torch.no_grad():
            function(*nested) if isinstance(takes, TupleType) else function(nested)


class _Concatenate:
    def __init__(self, dim: int) -> None:
        self.dim = dim if dim < 0 else dim + 1
        self.__name__ = "concat"

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.unsqueeze(1) if tensor.ndim == 1 else tensor for tensor in tensors], self.dim)


class Concat(Function):
    """Concatenates a tuple of tensors along a dimension, not counting the batch dimension. Scalars count as vectors
    of size 1. With ``flatten=True`` nested tuples are flattened first.

    >>> from foldloom import blocks as fb
    >>> fb.Record((fb.Vector(2), fb.Scalar())).eval(([1, 2], 3))
    (tensor([1., 2.]), tensor(3.))
    >>> (fb.Record((fb.Vector(2), fb.Scalar())) >> fb.Concat()).eval(([1, 2], 3))
    tensor([1., 2., 3.])
    """

    def __init__(self, concat_dim: int = 0, flatten: bool = False) -> None:
        self._dim = concat_dim
        self._flatten = flatten
        super().__init__(_Concatenate(concat_dim))

    def cell_key(self) -> Hashable:
        return ("concat", self._dim)

    def make_cell(self) -> Cell:
        assert self._function is not None
        return cell(self._function)

    def _tried(self, takes: BlockType) -> BlockType:
        if not isinstance(takes, TupleType) or not takes.items:
            raise self.type_error(f"{shortened(self)} takes a tuple of at least one tensor, not {takes}")
        if self._nesting() is not None and not self._flatten:
            raise self.type_error(
                f"{shortened(self)} takes a tuple of tensors, not {takes}: write fb.Concat(flatten=True) to join the inner tuples as well"
            )
        dtypes = {item.dtype for item in takes.terminal_types() if isinstance(item, TensorType)}
        if len(dtypes) > 1:
            raise self.type_error(f"{shortened(self)} takes tensors of one dtype, not {' and '.join(sorted(dtypes))}")
        return super()._tried(takes)


class Zeros(Block):
    """Zeros of a type: a tensor of zeros, an empty sequence, or a tuple of such.

    >>> from foldloom import blocks as fb
    >>> fb.Zeros((2, "int64")).eval(None)
    (tensor([0., 0.]), tensor(0))
    """

    def __init__(self, type: Any) -> None:
        self.takes = VoidType()
        self.gives = convert_to_type(type)
        self.settle()

    def _infer(self) -> None:
        for item in self.gives.terminal_types():
            if isinstance(item, (PyObjectType, BroadcastSequenceType)):
                raise self.type_error(f"there is no zero of {item}: fb.Zeros is made of tensors, tuples and sequences")

    def describe(self, to: Describing) -> Described:
        return {"kind": "constant", "value": to.zeros(known(self.gives))}


def _stacked(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.stack(tensors, 1)


class Stack(Block):
    """Stacks a sequence of tensors along a new first dimension.

    Functions of the stacked tensor are batched with those of equal length only. To batch over all lengths, use `Reduce`
    and the like.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Vector(2)) >> fb.Stack()).eval([[1, 2], [3, 4], [5, 6]])
    tensor([[1., 2.],
            [3., 4.],
            [5., 6.]])
    """

    def __init__(self) -> None:
        self._element = Unknown()
        self.settle()

    @property
    def function(self) -> Callable[..., Any] | None:
        return _stacked

    def _infer(self) -> None:
        element = element_of(self, self.takes, self._infer)
        if element is None:
            return
        refuse_endless(self, self.takes)
        self.fit(element, self._element, lambda one, other: f"{shortened(self)} gets elements of {one} and {other}")
        if wait_for_head(self._element, self._infer):
            return
        tensor = head(self._element)
        if not isinstance(tensor, TensorType):
            raise self.type_error(f"{shortened(self)} takes a sequence of tensors, not of {known(tensor)}")
        self.give(TensorType([None, *tensor.shape], tensor.dtype))

    def describe(self, to: Describing) -> Described:
        return {"kind": "stack", "cell": to.cell(self), "none": to.zeros(known(self.gives))}


class _Constant(torch.nn.Module):
    """Returns a trainable tensor, repeated for each member of the batch."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, calls: torch.Tensor) -> torch.Tensor:
        return self.value.expand(len(calls), *self.value.shape)


@converts(lambda value: isinstance(value, (torch.Tensor, np.ndarray)))
class FromTensor(Block):
    """The same tensor for every example. Gradients reach it if it requires them; a parameter becomes one of the
    model's.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> start = fb.FromTensor(torch.tensor([1.0, 2.0]))
    >>> (fb.Map(fb.Vector(2)) >> fb.Fold(fb.Function(torch.add), start)).eval([[10, 20]])
    tensor([11., 22.])
    """

    def __init__(self, tensor: torch.Tensor | np.ndarray[Any, Any] | float) -> None:
        self._tensor: torch.Tensor | None = torch.as_tensor(tensor)
        self._trainable = self._tensor.requires_grad
        self._function = _Constant(tensor) if self._trainable and isinstance(tensor, torch.Tensor) else None
        self.takes = VoidType()
        self.gives = TensorType(self._tensor.shape, dtype_name(self._tensor.dtype))

    @property
    def function(self) -> Callable[..., Any] | None:
        return self._function

    def cell_key(self) -> Hashable:
        return ("constant", id(self._tensor))

    def describe(self, to: Describing) -> Described:
        if self._trainable:
            return {"kind": "learned", "cell": to.cell(self)}
        assert isinstance(self.gives, TensorType)
        return {"kind": "constant", "value": to.constant(self._tensor, self.gives)}

    def infer_signatures(self, cell: Cell, dtypes: Mapping[str, str]) -> None:
        if self._trainable:
            cell.signature((Type((), "int64"),), None, ())

    def state_without_weights(self) -> dict[str, Any]:
        state = super().state_without_weights()
        return {**state, "_tensor": None, "_function": None} if self._trainable else state
