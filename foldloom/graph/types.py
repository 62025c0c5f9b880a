"""The types of values: shape and dtype of one value of one example."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import ClassVar

_FLOATING = ("float", "bfloat", "complex")

ANY = -1
"""The first dimension of a ragged type."""


class Type:
    """The shape and dtype of one value of one example, without a batch dimension.

    Types are interned, so that two equal types are one object and a signature compares by identity. The first dimension
    of a ragged type is `ANY`; ``row`` is the type of one of its rows, and of any other type the type itself.
    """

    __slots__ = ("dtype", "ragged", "row", "shape")
    _interned: ClassVar[dict[tuple[tuple[int, ...], str], Type]] = {}

    shape: tuple[int, ...]
    dtype: str
    ragged: bool
    row: Type

    def __new__(cls, shape: Iterable[int], dtype: str) -> Type:
        key = (tuple(shape), sys.intern(dtype))
        known = cls._interned.get(key)
        if known is None:
            known = super().__new__(cls)
            object.__setattr__(known, "shape", key[0])
            object.__setattr__(known, "dtype", key[1])
            object.__setattr__(known, "ragged", key[0][:1] == (ANY,))
            object.__setattr__(known, "row", Type(key[0][1:], dtype) if known.ragged else known)
            known = cls._interned.setdefault(key, known)
        return known

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Type is shared by everything that has it and never changes")

    def __reduce__(self) -> tuple[type[Type], tuple[tuple[int, ...], str]]:
        return Type, (self.shape, self.dtype)

    @property
    def differentiable(self) -> bool:
        return self.dtype.startswith(_FLOATING)

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join('*' if size == ANY else str(size) for size in self.shape)}]"
