"""Blocks over sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from foldloom.blocks.block import Block, Pipe
from foldloom.blocks.combinators.items import element_of, refuse_endless, takes_nothing
from foldloom.blocks.describing import Described, Describing, Ops, Through
from foldloom.blocks.inference import Unknown, head, known, wait_for_head
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import BlockType, BroadcastSequenceType, PyObjectType, SequenceType, TupleType
from foldloom.errors import WiringError
from foldloom.tracing.scope import user_line


class Map(Block):
    """Applies a block to every element.

    >>> from foldloom import blocks as fb
    >>> fb.Map(fb.Scalar()).eval([1, 2])
    [tensor(1.), tensor(2.)]
    """

    def __init__(self, elem_block: Any) -> None:
        self._element = self.adopt(".element", elem_block)
        self.settle()

    def _infer(self) -> None:
        inner = self._element
        element = element_of(self, self.takes, self._infer, inner.takes)
        if element is None:
            return
        inner.fit(
            element,
            inner.takes,
            lambda one, other: f"{shortened(self)} gets elements of {one}, but {shortened(inner)} takes {other}",
        )
        kind = BroadcastSequenceType if isinstance(head(self.takes), BroadcastSequenceType) else SequenceType
        self.give(kind(inner.gives))

    def describe(self, to: Describing) -> Described:
        if isinstance(head(self.takes), BroadcastSequenceType):
            return {"kind": "pipe", "stages": [to.block(self._element)]}
        return {"kind": "map", "element": to.block(self._element)}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        return through(self._element, inputs)


class Broadcast(Block):
    """Repeats a value endlessly, to be zipped with a sequence: ``fb.Zip()`` stops at the shortest.

    >>> from foldloom import blocks as fb
    >>> rows = fb.Record((fb.Map(fb.Scalar()), fb.Scalar() >> fb.Broadcast())) >> fb.Zip()
    >>> rows.eval(([1, 2], 5))
    [(tensor(1.), tensor(5.)), (tensor(2.), tensor(5.))]
    """

    def __init__(self) -> None:
        self.gives = BroadcastSequenceType(self.takes)

    def describe(self, to: Describing) -> Described:
        return {"kind": "identity"}


class Zip(Block):
    """From a tuple of sequences to the sequence of tuples, as long as the shortest.

    >>> from foldloom import blocks as fb
    >>> (fb.Record((fb.Map(fb.Scalar()), fb.Map(fb.Scalar()))) >> fb.Zip()).eval(([1, 2, 3], [4, 5]))
    [(tensor(1.), tensor(4.)), (tensor(2.), tensor(5.))]
    """

    def __init__(self) -> None:
        self.settle()

    def _infer(self) -> None:
        if wait_for_head(self.takes, self._infer):
            return
        takes = head(self.takes)
        if isinstance(takes, PyObjectType):
            self.give(takes)
            return
        if not isinstance(takes, TupleType):
            raise self.type_error(f"{shortened(self)} takes a tuple of sequences, not {known(takes)}")
        elements = [element_of(self, item, self._infer) for item in takes.items]
        if any(element is None for element in elements):
            return
        kind = BroadcastSequenceType if all(self._endless(takes)) and elements else SequenceType
        self.give(kind(TupleType([element for element in elements if element is not None])))

    @staticmethod
    def _endless(takes: BlockType) -> list[bool]:
        return [isinstance(head(item), BroadcastSequenceType) for item in takes.parts]

    def describe(self, to: Describing) -> Described:
        return {"kind": "zip", "endless": self._endless(head(self.takes))}


class ZipWith(Pipe):
    """``fb.Zip() >> fb.Map(block)``: applies the block to the first elements of all sequences, then to the second,
    and so on.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> numbers = fb.Map(fb.Scalar())
    >>> (fb.Record((numbers, numbers)) >> fb.ZipWith(fb.Function(torch.add))).eval(([1, 2], [3, 4]))
    [tensor(4.), tensor(6.)]
    """

    def __init__(self, elem_block: Any) -> None:
        super().__init__(Zip(), Map(elem_block))

    def __repr__(self) -> str:
        return Block.__repr__(self)


class NGrams(Block):
    """All windows of ``n`` consecutive elements, without padding.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.NGrams(2)).eval([1, 2, 3])
    [(tensor(1.), tensor(2.)), (tensor(2.), tensor(3.))]
    """

    def __init__(self, n: int) -> None:
        if n < 1:
            raise WiringError(f"fb.NGrams({n}) would be runs of {n} elements: there is none\n  at {user_line()}")
        self._n = n
        self.settle()

    def _infer(self) -> None:
        element = element_of(self, self.takes, self._infer)
        if element is None:
            return
        refuse_endless(self, self.takes)
        self.give(SequenceType(TupleType([element] * self._n)))

    def describe(self, to: Describing) -> Described:
        return {"kind": "ngrams", "n": self._n}


class Fold(Block):
    """A left fold: ``combine_block`` takes (state, element) and gives the next state. An empty sequence gives the
    start.

    >>> import torch
    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Fold(fb.Function(torch.sub), fb.FromTensor(10.0))).eval([1, 2, 3])
    tensor(4.)
    """

    def __init__(self, combine_block: Any, start_block: Any) -> None:
        self._combine, self._start = self.adopt(".combine", combine_block), self.adopt(".start", start_block)
        self._elements: BlockType = Unknown()
        self.settle()

    def _infer(self) -> None:
        state = self.gives
        combine, start = self._combine, self._start
        takes_nothing(start)
        combine.fit(
            TupleType(state, self._elements),
            combine.takes,
            lambda one, other: (
                f"{shortened(self)} calls {shortened(combine)} with (state, element), that is {one}, but it takes {other}"
            ),
        )
        start.fit(
            state,
            start.gives,
            lambda one, other: f"the state of {shortened(self)} is {one}, but it starts with {other}",
        )
        combine.fit(
            state,
            combine.gives,
            lambda one, other: f"the state of {shortened(self)} is {one}, but {shortened(combine)} gives {other}",
        )
        element = element_of(self, self.takes, self._infer, self._elements)
        if element is None:
            return
        refuse_endless(self, self.takes)
        self.fit(
            element,
            self._elements,
            lambda one, other: f"{shortened(self)} gets elements of {one}, but {shortened(combine)} takes {other}",
        )

    def always_evaluated(self) -> Iterable[Block]:
        return (self._start,)

    def describe(self, to: Describing) -> Described:
        return {"kind": "fold", "combine": to.block(self._combine), "start": to.block(self._start)}

    def flow(self, inputs: Ops, through: Through) -> Ops:
        start = through(self._start, inputs)
        return start | through(self._combine, inputs | start | through(self._combine, inputs))
