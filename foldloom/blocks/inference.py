"""Type inference by unification, in both directions, while blocks are combined.

Each block has an input and an output type; an unknown type is an `Unknown`. Connecting two blocks unifies two types:
unknowns are bound, and blocks that wait for them infer again. A failed attempt is rolled back, so that in a notebook
the same blocks can be connected again after an error.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from foldloom.blocks.types import (
    BlockType,
    BroadcastSequenceType,
    PyObjectType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
)


class Unknown(BlockType):
    """A type variable."""

    def __init__(self) -> None:
        self.bound: BlockType | None = None
        self.waiting: list[Callable[[], None]] = []

    def call(self, look: Callable[[], None]) -> None:
        if look not in self.waiting:
            self.waiting.append(look)

    def __getstate__(self) -> dict[str, Any]:
        return {"bound": self.bound, "waiting": []}

    def __repr__(self) -> str:
        return "an unknown type" if self.bound is None else repr(self.bound)


class Clash(Exception):  # noqa: N818 - internal; `Block.fit` turns it into an error
    def __init__(self, one: BlockType, other: BlockType) -> None:
        super().__init__(one, other)
        self.one, self.other = one, other

    def hint(self) -> str:
        """How to mend a common mistake, as the end of a message."""
        kinds = {type(self.one), type(self.other)}
        if kinds == {PyObjectType, TensorType}:
            return ". Python objects become tensors through fb.Tensor, fb.Scalar or fb.Vector; tensors never become Python objects"
        if kinds == {PyObjectType, BroadcastSequenceType}:
            return ". Make the tensor first and repeat it then: fb.Scalar() >> fb.Broadcast()"
        if (
            isinstance(self.one, TensorType)
            and isinstance(self.other, TensorType)
            and self.one.shape == self.other.shape
        ):
            return f". Only the dtypes differ: {self.one.dtype} and {self.other.dtype}"
        return ""


class _Attempt(threading.local):
    """The bindings of the current outermost attempt, and the callbacks that wait for them."""

    active = False

    def __init__(self) -> None:
        self.bound: list[Unknown] = []
        self.woken: list[Callable[[], None]] = []


_attempt = _Attempt()


class attempt:  # noqa: N801 - read as `with attempt():`
    """A transaction: if an error is raised inside, all bindings are undone.

    A class, because a generator would put a frame of the standard library between an error and the user's line.
    """

    def __enter__(self) -> None:
        self._is_outermost = not _attempt.active
        _attempt.active = True

    def __exit__(self, kind: object, *_: object) -> None:
        if not self._is_outermost:
            return
        succeeded = False
        try:
            while kind is None and _attempt.woken:
                _attempt.woken.pop(0)()
            succeeded = kind is None
        finally:
            if not succeeded:
                for unknown in _attempt.bound:
                    unknown.bound = None
            _attempt.active = False
            _attempt.bound.clear()
            _attempt.woken.clear()


def head(type: BlockType) -> BlockType:
    """The type with its outermost variable resolved."""
    while isinstance(type, Unknown) and type.bound is not None:
        type = type.bound
    return type


def known(type: BlockType) -> BlockType:
    """The type with all bound variables resolved."""
    type = head(type)
    return type.with_parts([known(part) for part in type.parts])


def unknowns(type: BlockType) -> list[Unknown]:
    type = head(type)
    if isinstance(type, Unknown):
        return [type]
    return list(itertools.chain.from_iterable(map(unknowns, type.parts)))


def wait(type: BlockType, look: Callable[[], None]) -> bool:
    """Whether the type contains unknowns. If so, ``look`` is called when one of them is bound."""
    found = unknowns(type)
    for unknown in found:
        unknown.call(look)
    return bool(found)


def wait_for_head(type: BlockType, look: Callable[[], None]) -> bool:
    """`wait` for the outermost type alone."""
    outermost = head(type)
    if isinstance(outermost, Unknown):
        outermost.call(look)
        return True
    return False


def unify(one: BlockType, other: BlockType) -> None:
    """Make two types equal, or raise `Clash`. Only inside an `attempt`."""
    one, other = head(one), head(other)
    if one is other:
        return
    if isinstance(one, Unknown):
        _bind(one, other)
    elif isinstance(other, Unknown):
        _bind(other, one)
    elif isinstance(one, PyObjectType) or isinstance(other, PyObjectType):
        _unify_objects(one, other)
    elif type(one) is not type(other) or len(one.parts) != len(other.parts):
        raise Clash(one, other)
    elif isinstance(one, (TensorType, VoidType)):
        if one != other:
            raise Clash(one, other)
    else:
        for own, others in zip(one.parts, other.parts, strict=True):
            unify(own, others)


def _unify_objects(one: BlockType, other: BlockType) -> None:
    """A list or tuple of Python objects is also a Python object."""
    composite = other if isinstance(one, PyObjectType) else one
    if isinstance(composite, BroadcastSequenceType) or not isinstance(
        composite, (TupleType, SequenceType, PyObjectType)
    ):
        raise Clash(one, other)
    for part in composite.parts:
        unify(part, PyObjectType())


def _bind(unknown: Unknown, type: BlockType) -> None:
    if any(inner is unknown for inner in unknowns(type)):
        raise Clash(unknown, type)
    unknown.bound = type
    _attempt.bound.append(unknown)
    _attempt.woken += unknown.waiting
