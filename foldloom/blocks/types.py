"""The types of values between blocks.

    PyObjectType              any Python object: a tree, a record, a word, a list of such
    TensorType                a tensor of known shape and dtype
    TupleType                 a fixed number of values, each of its own type
    SequenceType              any number of values of one type
    BroadcastSequenceType     one value, repeated endlessly
    VoidType                  nothing

Blocks look up keys and lengths in Python objects, and compute on tensors. A tuple or sequence of Python objects is a
Python object too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foldloom.errors import BlockTypeError


class BlockType:
    """The base class of types."""

    @property
    def parts(self) -> tuple[BlockType, ...]:
        """The types that this one contains."""
        return ()

    def with_parts(self, parts: Sequence[BlockType]) -> BlockType:
        return self

    @property
    def size(self) -> int:
        """The number of elements of a value. Raises an error if values differ in size."""
        raise BlockTypeError(f"{self} has no fixed size")

    def terminal_types(self) -> Iterator[BlockType]:
        """The leaves of nested tuple types, in order."""
        yield self

    def for_each_terminal(self, function: Callable[[BlockType, Any], None], value: Any) -> None:
        """Call a function with each leaf type and the corresponding part of a value."""
        for type, part in zip(self.terminal_types(), self.flatten(value), strict=True):
            function(type, part)

    def flatten(self, value: Any) -> list[Any]:
        """The parts of a value, one for each leaf type."""
        return [value]

    def unflatten(self, parts: Iterable[Any]) -> Any:
        """A value from its parts: the inverse of `flatten`."""
        return next(iter(parts))


@dataclass(frozen=True, init=False)
class TensorType(BlockType):
    """The type of a tensor of one example, without the batch dimension. The dtype defaults to torch's default. A
    dimension that differs between examples is None.

    >>> TensorType([3], "int64").size
    3
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __init__(self, shape: Iterable[int | None], dtype: Any = None) -> None:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(extent is not None and (not isinstance(extent, (int, np.integer)) or extent < 0) for extent in shape):
            raise BlockTypeError(f"a shape is made of whole numbers from 0 up, so {shape} is none")
        object.__setattr__(self, "shape", tuple([None if extent is None else int(extent) for extent in shape]))
        object.__setattr__(self, "dtype", dtype_name(dtype))

    @property
    def size(self) -> int:
        if not self.is_fixed:
            return super().size
        return int(np.prod(self.fixed()))

    @property
    def is_fixed(self) -> bool:
        """Whether all dimensions are known."""
        return None not in self.shape

    def fixed(self, length: int = 0) -> tuple[int, ...]:
        """The shape, with ``length`` in place of unknown dimensions."""
        return tuple([length if extent is None else extent for extent in self.shape])

    def __repr__(self) -> str:
        return f"TensorType({list(self.shape)}, {self.dtype!r})"


@dataclass(frozen=True, init=False)
class TupleType(BlockType):
    """``TupleType(first, second, ...)``, or one iterable of types.

    >>> from foldloom import blocks as fb
    >>> fb.TupleType("int64", [3]).size
    4
    """

    items: tuple[BlockType, ...]

    def __init__(self, *items: Any) -> None:
        given = items[0] if len(items) == 1 and isinstance(items[0], (tuple, list)) else items
        object.__setattr__(self, "items", tuple([convert_to_type(item) for item in given]))

    @property
    def parts(self) -> tuple[BlockType, ...]:
        return self.items

    def with_parts(self, parts: Sequence[BlockType]) -> BlockType:
        return TupleType(*parts) if len(parts) != 1 else TupleType(list(parts))

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    def terminal_types(self) -> Iterator[BlockType]:
        for item in self.items:
            yield from item.terminal_types()

    def flatten(self, value: Any) -> list[Any]:
        return [part for item, own in zip(self.items, value, strict=True) for part in item.flatten(own)]

    def unflatten(self, parts: Iterable[Any]) -> Any:
        remaining = iter(parts)
        return tuple([item.unflatten(remaining) for item in self.items])

    def __repr__(self) -> str:
        return f"TupleType({', '.join(map(repr, self.items))})"


@dataclass(frozen=True, init=False)
class SequenceType(BlockType):
    """Any number of values of one type.

    >>> from foldloom import blocks as fb
    >>> (fb.InputTransform(list) >> fb.Map(fb.Scalar())).output_type
    SequenceType(TensorType([], 'float32'))
    """

    element: BlockType

    def __init__(self, element: Any) -> None:
        object.__setattr__(self, "element", convert_to_type(element))

    @property
    def parts(self) -> tuple[BlockType, ...]:
        return (self.element,)

    def with_parts(self, parts: Sequence[BlockType]) -> BlockType:
        return type(self)(parts[0])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.element!r})"


@dataclass(frozen=True, init=False, repr=False)
class BroadcastSequenceType(SequenceType):
    """One value, repeated endlessly.

    >>> from foldloom import blocks as fb
    >>> (fb.Scalar() >> fb.Broadcast()).output_type
    BroadcastSequenceType(TensorType([], 'float32'))
    """


@dataclass(frozen=True)
class PyObjectType(BlockType):
    """Any Python object.

    >>> from foldloom import blocks as fb
    >>> fb.Scalar().input_type
    PyObjectType()
    """


@dataclass(frozen=True)
class VoidType(BlockType):
    """Nothing: the input of a block that takes none, and the output of one that drops what it gets.

    >>> from foldloom import blocks as fb
    >>> fb.Zeros(2).input_type
    VoidType()
    """

    @property
    def size(self) -> int:
        return 0


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of torch or numpy, or of a name."""
    if dtype is None:
        dtype = torch.get_default_dtype()
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (torch.dtype, str)) else np.dtype(dtype).name
    if not isinstance(getattr(torch, name, None), torch.dtype):
        raise BlockTypeError(f"{dtype!r} is not a dtype that torch knows, such as 'float32' or torch.int64")
    return name


def convert_to_type(value: Any) -> BlockType:
    """A type from its short form: 42 is a vector of size 42, 'int64' a scalar, [3, 4, 'int32'] a matrix, a tuple a
    tuple type.

    >>> convert_to_type((150, "int64"))
    TupleType(TensorType([150], 'float32'), TensorType([], 'int64'))
    """
    if isinstance(value, BlockType):
        return value
    if isinstance(value, bool):
        raise BlockTypeError(f"{value!r} is not a type: write fb.TensorType([], 'bool')")
    if isinstance(value, int):
        return TensorType([value])
    if isinstance(value, (str, torch.dtype)):
        return TensorType([], value)
    if isinstance(value, tuple):
        return TupleType(*value) if len(value) != 1 else TupleType(list(value))
    if isinstance(value, list):
        has_dtype = bool(value) and isinstance(value[-1], (str, torch.dtype))
        return TensorType(value[:-1], value[-1]) if has_dtype else TensorType(value)
    raise BlockTypeError(
        f"{value!r:.80} is not a type. Write one of fb.TensorType, TupleType, SequenceType, PyObjectType, VoidType, or in short: "
        "42 for a vector, 'int64' for a scalar, [3, 4] for a matrix, a tuple for a tuple"
    )


def canonicalize_type(type: Any) -> BlockType:
    """Replaces tuples and sequences of Python objects by Python objects.

    >>> canonicalize_type(SequenceType(TupleType(PyObjectType(), PyObjectType())))
    PyObjectType()
    """
    converted = convert_to_type(type)
    parts = [canonicalize_type(part) for part in converted.parts]
    is_finite = not isinstance(converted, BroadcastSequenceType)
    if parts and is_finite and all(isinstance(part, PyObjectType) for part in parts):
        return PyObjectType()
    return converted.with_parts(parts)


def with_dtypes(type: BlockType, dtypes: Mapping[str, str]) -> BlockType:
    """The type with dtypes replaced according to a mapping."""
    if isinstance(type, TensorType):
        return TensorType(type.shape, dtypes.get(type.dtype, type.dtype))
    return type.with_parts([with_dtypes(part, dtypes) for part in type.parts])
