"""Reductions of sequences, and recurrence along them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from foldloom.blocks.block import Block, Pipe
from foldloom.blocks.combinators.composition import AllOf
from foldloom.blocks.combinators.computing import Function
from foldloom.blocks.combinators.items import Length, element_of, refuse_endless, takes_nothing
from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.inference import Unknown, known, unknowns
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import SequenceType, TupleType


class Reduce(Block):
    """Combines neighbours pairwise, level by level, until one value is left. An empty sequence gives the default, or
    zeros.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Reduce(fb.Function(torch.sub))).eval([8, 4, 1])
    tensor(3.)
    """

    def __init__(self, combine_block: Any, default_block: Any = None) -> None:
        self._combine = self.adopt(".combine", combine_block)
        self._default = None if default_block is None else self.adopt(".default", default_block)
        self.settle()

    def _infer(self) -> None:
        combine, default, one = self._combine, self._default, self.gives
        combine.fit(
            TupleType(one, one),
            combine.takes,
            lambda pair, takes: (
                f"{shortened(self)} combines two of a kind, that is {pair}, but {shortened(combine)} takes {takes}"
            ),
        )
        combine.fit(
            one,
            combine.gives,
            lambda wanted, gives: f"{shortened(self)} is to give {wanted}, but {shortened(combine)} gives {gives}",
        )
        if default is not None:
            takes_nothing(default)
            default.fit(
                one,
                default.gives,
                lambda wanted, gives: f"{shortened(self)} gives {wanted}, but its default is {gives}",
            )
        element = element_of(self, self.takes, self._infer)
        if element is not None:
            refuse_endless(self, self.takes)
            self.fit(
                element,
                one,
                lambda elements, combined: (
                    f"{shortened(self)} gets elements of {elements}, but combines them to {combined}"
                ),
            )

    def describe(self, to: Describing) -> Described:
        return {
            "kind": "reduce",
            "combine": to.block(self._combine),
            "default": to.optional_block(self._default),
            "zeros": to.zeros(known(self.gives)) if self._default is None else None,
        }


class Sum(Reduce):
    """The sum of a sequence of tensors; zeros if it is empty.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Sum()).eval([1, 2, 3])
    tensor(6.)
    """

    def __init__(self) -> None:
        super().__init__(Function(torch.add))


class Min(Reduce):
    """The elementwise minimum of a sequence of tensors; zeros if it is empty.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Min()).eval([3, 1, 2])
    tensor(1.)
    """

    def __init__(self) -> None:
        super().__init__(Function(torch.minimum))


class Max(Reduce):
    """The elementwise maximum of a sequence of tensors; zeros if it is empty.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Max()).eval([3, 1, 2])
    tensor(3.)
    """

    def __init__(self) -> None:
        super().__init__(Function(torch.maximum))


def _divided(total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return total / count.clamp(min=1).to(total.dtype).view(-1, *[1] * (total.ndim - 1))


class Mean(Pipe):
    """The mean of a sequence of tensors; zeros if it is empty.

    >>> from foldloom import blocks as fb
    >>> (fb.Map(fb.Scalar()) >> fb.Mean()).eval([1, 2, 6])
    tensor(3.)
    """

    def __init__(self) -> None:
        super().__init__(AllOf(Sum(), Length("int64")), Function(_divided))

    def __repr__(self) -> str:
        return Block.__repr__(self)


class RNN(Block):
    """Runs a cell along a sequence. The cell takes (element, state) and gives (output, next state).

    The output is a pair of the sequence of outputs and the final state. The initial state is zeros unless given; with
    ``initial_state_from_input=True`` the input is a pair of the sequence and the initial state.

    >>> from foldloom import blocks as fb
    >>> def cell(x, state):
    ...     return x + state, x + state
    >>> totals = fb.Map(fb.Scalar()) >> fb.RNN(fb.Function(cell), initial_state=fb.Zeros("float32"))
    >>> totals.eval([1, 2, 3])
    ([tensor(1.), tensor(3.), tensor(6.)], tensor(6.))
    """

    def __init__(self, cell: Any, initial_state: Any = None, initial_state_from_input: bool = False) -> None:
        self._cell = self.adopt(".cell", cell)
        self._initial = None if initial_state is None else self.adopt(".initial_state", initial_state)
        self._from_input = initial_state_from_input
        if initial_state is not None and initial_state_from_input:
            raise self.wiring_error(
                f"{shortened(self)} has an initial state and is to read one from its input: leave one of them out"
            )
        self._sequence, self._element, self._out, self._state = Unknown(), Unknown(), Unknown(), Unknown()
        self.takes = TupleType(self._sequence, self._state) if initial_state_from_input else self._sequence
        self.gives = TupleType(SequenceType(self._out), self._state)
        self.settle()

    def _infer(self) -> None:
        cell, initial = self._cell, self._initial
        cell.fit(
            TupleType(self._element, self._state),
            cell.takes,
            lambda one, takes: (
                f"{shortened(self)} calls {shortened(cell)} with (element, state), that is {one}, but it takes {takes}"
            ),
        )
        cell.fit(
            TupleType(self._out, self._state),
            cell.gives,
            lambda one, gives: (
                f"{shortened(self)} needs (output, state), that is {one}, of {shortened(cell)}, which gives {gives}"
            ),
        )
        if initial is not None:
            takes_nothing(initial)
            initial.fit(
                self._state,
                initial.gives,
                lambda state, gives: f"the state of {shortened(self)} is {state}, but it starts with {gives}",
            )
        element = element_of(self, self._sequence, self._infer, self._element)
        if element is None:
            return
        refuse_endless(self, self._sequence)
        self.fit(
            element,
            self._element,
            lambda one, other: f"{shortened(self)} gets elements of {one}, but {shortened(cell)} takes {other}",
        )

    def check_types(self) -> None:
        if unknowns(self._state):
            raise self.type_error(
                f"it cannot be inferred what the state of {shortened(self)} is, because its cell both takes and gives it. Say what it "
                "starts with: fb.RNN(cell, initial_state=fb.Zeros(...))"
            )

    def always_evaluated(self) -> Iterable[Block]:
        return () if self._initial is None else (self._initial,)

    def describe(self, to: Describing) -> Described:
        needs_zeros = self._initial is None and not self._from_input
        return {
            "kind": "rnn",
            "rnn_cell": to.block(self._cell),
            "initial": to.optional_block(self._initial),
            "zeros": to.zeros(known(self._state)) if needs_zeros else None,
            "from_input": self._from_input,
        }
