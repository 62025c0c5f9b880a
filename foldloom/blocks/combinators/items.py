"""Blocks that look values up by key and position, and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foldloom.blocks.block import Block
from foldloom.blocks.describing import NO_OPS, Described, Describing, Ops, Through
from foldloom.blocks.inference import Unknown, head, known, unify, wait_for_head
from foldloom.blocks.lowering.codegen import LOOKUP_ERRORS, CodeBuilder, Generated
from foldloom.blocks.lowering.lowering import Lowering, Run, number_maker
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import (
    BlockType,
    BroadcastSequenceType,
    PyObjectType,
    SequenceType,
    TensorType,
    TupleType,
    VoidType,
)
from foldloom.pytrees.messages import shown


def element_of(
    block: Block, sequence: BlockType, look: Callable[[], None], wanted: BlockType | None = None
) -> BlockType | None:
    """The element type of a sequence, a tuple with items of one type, or a Python object. None if it is not known
    yet; then ``look`` is called once it is. If the ``wanted`` elements are Python objects, the sequence is
    unified with a Python object."""
    wants_objects = wanted is not None and not wait_for_head(wanted, look) and isinstance(head(wanted), PyObjectType)
    if wants_objects and isinstance(head(sequence), Unknown):
        unify(sequence, PyObjectType())
    if wait_for_head(sequence, look):
        return None
    type = head(sequence)
    if isinstance(type, PyObjectType):
        return type
    if isinstance(type, SequenceType):
        return type.element
    if isinstance(type, TupleType):
        element = Unknown()
        for item in type.items:
            block.fit(
                item,
                element,
                lambda one, other: (
                    f"{shortened(block)} takes elements of one type, but this tuple has {one} and {other}"
                ),
            )
        return element
    raise block.type_error(f"{shortened(block)} takes a sequence, a tuple or a Python object, not {known(type)}")


def refuse_endless(block: Block, sequence: BlockType) -> None:
    if isinstance(head(sequence), BroadcastSequenceType):
        raise block.type_error(f"{shortened(block)} would never end on {known(sequence)}, which has no last element")


def takes_nothing(block: Block) -> None:
    block.fit(
        VoidType(),
        block.takes,
        lambda _, takes: (
            f"{shortened(block)} stands where there is no input, but takes {takes}; fb.Zeros and fb.FromTensor take none"
        ),
    )


class GetItem(Generated, Block):
    """``value[key]`` of a Python object, a tuple or a sequence.

    >>> from foldloom import blocks as fb
    >>> (fb.GetItem("age") >> fb.Scalar("int64")).eval({"age": 7})
    tensor(7)
    """

    def __init__(self, key: Any) -> None:
        self._key = key
        if not isinstance(key, (int, slice)):
            self.takes = PyObjectType()  # only Python objects have named fields
        self.settle()

    def _infer(self) -> None:
        if wait_for_head(self.takes, self._infer):
            return
        item = self._item(head(self.takes))
        self.give(item)

    def _item(self, takes: BlockType) -> BlockType:
        if isinstance(takes, PyObjectType):
            return takes
        if not isinstance(takes, (TupleType, SequenceType)):
            raise self.type_error(f"{shortened(self)} cannot look into {known(takes)}, which has no items")
        if isinstance(takes, SequenceType):
            return takes if isinstance(self._key, slice) else takes.element
        if isinstance(self._key, slice):
            return TupleType(list(takes.items[self._key]))
        if not -len(takes.items) <= self._key < len(takes.items):
            raise self.type_error(
                f"{shortened(self)} looks for item {self._key} of {known(takes)}, which has {len(takes.items)}"
            )
        item: BlockType = takes.items[self._key]
        return item

    def describe(self, to: Describing) -> Described:
        if isinstance(head(self.takes), BroadcastSequenceType):
            return {"kind": "identity"}
        return {"kind": "get_item", "key": to.value(self._key)}

    def emit(self, code: CodeBuilder, value: str) -> str:
        takes = head(self.takes)
        if isinstance(takes, BroadcastSequenceType):
            return value
        if isinstance(takes, TupleType) and isinstance(self._key, int):
            return code.items(value, len(takes.items))[self._key]
        return code.lookup(value, self._key, item_getter(self, self._key))


def item_getter(block: Block, key: Any) -> Run:
    """A function that looks up a key and raises an error that names the block."""

    def run(value: Any) -> Any:
        try:
            return value[key]
        except LOOKUP_ERRORS as error:
            raise block.missing_key(f"{_without(value, key)}, which {shortened(block)} asks for") from error

    return run


def _without(value: Any, key: Any) -> str:
    if isinstance(value, dict):
        return (
            f"a record of the example has no field {key!r} (it has {', '.join(map(repr, list(value)[:8])) or 'none'})"
        )
    if isinstance(value, (list, tuple)) and isinstance(key, int):
        return f"a sequence of {len(value)} has no item {key}"
    if isinstance(key, str) and hasattr(value, key):
        # A common mistake: the object has an attribute of that name instead of an item.
        advice = f" (it has an attribute of that name: write fb.InputTransform(operator.attrgetter({key!r})))"
    else:
        advice = ""
    return f"{shown(value)} ({type(value).__name__}) has no field {key!r}{advice}"


class Slice(Block):
    """``sequence[start:stop:step]``. ``fb.Slice(step=-1)`` reverses a sequence.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Slice(start=1)).eval([5, 6, 7])
    [tensor(6.), tensor(7.)]
    """

    def __init__(self, *, start: int | None = None, stop: int | None = None, step: int | None = None) -> None:
        self._slice = slice(start, stop, step)
        self.settle()

    def _infer(self) -> None:
        if wait_for_head(self.takes, self._infer):
            return
        refuse_endless(self, self.takes)
        takes = head(self.takes)
        if not isinstance(takes, (PyObjectType, SequenceType, TupleType)):
            raise self.type_error(f"{shortened(self)} takes a sequence, a tuple or a Python object, not {known(takes)}")
        sliced = TupleType(list(takes.items[self._slice])) if isinstance(takes, TupleType) else takes
        self.give(sliced)

    def describe(self, to: Describing) -> Described:
        return {"kind": "get_item", "key": to.value(self._slice)}

    def lowered(self, lower: Lowering) -> Run:
        return item_getter(self, self._slice)


class Nth(Block):
    """The element of a sequence at a position, from a pair of both. The position is a Python number.

    >>> from foldloom import blocks as fb
    >>> (fb.Record((fb.Map(fb.Scalar()), fb.InputTransform(int))) >> fb.Nth()).eval(([5, 6, 7], 1))
    tensor(6.)
    """

    def __init__(self) -> None:
        self._sequence = Unknown()
        self.takes = TupleType(self._sequence, PyObjectType())
        self.settle()

    def _infer(self) -> None:
        element = element_of(self, self._sequence, self._infer)
        if element is not None:
            self.give(element)

    def describe(self, to: Describing) -> Described:
        return {"kind": "first" if isinstance(head(self._sequence), BroadcastSequenceType) else "nth"}

    def lowered(self, lower: Lowering) -> Run:
        if isinstance(head(self._sequence), BroadcastSequenceType):
            return lambda pair: pair[0]

        def run(pair: Any) -> Any:
            sequence, position = pair
            try:
                return sequence[position]
            except (KeyError, IndexError, TypeError) as error:
                raise self.missing_key(f"{_without(sequence, position)}, which {shortened(self)} asks for") from error

        return run


class Length(Block):
    """The length of a sequence, tuple or Python object, as a scalar tensor.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Length("int64")).eval([5, 6, 7])
    tensor(3)
    """

    def __init__(self, dtype: Any = None) -> None:
        self.gives = self._type = TensorType([], dtype)
        self.settle()

    def _infer(self) -> None:
        if element_of(self, self.takes, self._infer) is not None:
            refuse_endless(self, self.takes)

    def describe(self, to: Describing) -> Described:
        return {"kind": "length", "dtype": to.dtype(self._type.dtype)}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        return NO_OPS

    def lowered(self, lower: Lowering) -> Run:
        make = number_maker(lower.dtype(self._type.dtype))
        return lambda value: make(len(value))
