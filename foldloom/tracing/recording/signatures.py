"""What is known of calls: by function, settings, weights and the types of the operands, in each mode of torch.

Everything here happens once for each signature of a batch. What a function returns is inferred once for all batches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from foldloom.errors import ArgumentError, FoldloomError
from foldloom.execution.kernels import type_of
from foldloom.graph import Op, Type
from foldloom.pytrees import Nesting
from foldloom.torch_private import are_transforms_active, is_any_autocast_enabled
from foldloom.tracing.building.builder import GraphBuilder
from foldloom.tracing.building.inputs import Inputs
from foldloom.tracing.cells.core import Cell, Settings
from foldloom.tracing.functions.calls import OPERAND, SHARED, call_of_template, name_of
from foldloom.tracing.functions.derivatives import NO_DERIVATIVE
from foldloom.tracing.functions.histories import ALWAYS
from foldloom.tracing.functions.shape_inference import (
    NeedsValuesError,
    Returned,
    has_mixed_factors,
    inferred,
    with_names,
)
from foldloom.tracing.mutation.guards import Guards
from foldloom.tracing.mutation.views import ALIASES, DATA, MAY_COPY, VIEWS_OF_ROWS
from foldloom.tracing.rules import has_ragged_rule, has_rule, ragged_returned
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.rules.draws import drawn_from
from foldloom.tracing.rules.indexing import take
from foldloom.tracing.rules.modules import MODULES
from foldloom.tracing.rules.raising import may_raise
from foldloom.tracing.scope import Mode, current_mode, recording_paused, user_line
from foldloom.tracing.values.lazy_tensor import LazyTensor, is_tensor, mark_of
from foldloom.tracing.weights import DerivedWeights


class KnownCall:
    """What is needed to record one more call of a known signature."""

    __slots__ = (
        "draws",
        "is_derivable",
        "is_operand",
        "is_ragged",
        "kept",
        "may_raise",
        "op_number",
        "output_types",
        "returns",
        "returns_one",
        "returns_tuple",
        "shares_with",
    )

    def __init__(
        self,
        op_number: int,
        output_types: tuple[Type, ...],
        returns: Nesting,
        *,
        is_ragged: bool = False,
        shares_with: int | None = None,
        is_operand: bool = False,
        may_raise: bool = False,
        is_derivable: bool = True,
        draws: str | None = None,
    ) -> None:
        self.op_number = op_number
        self.output_types = output_types
        self.returns = returns
        self.returns_one = returns is None
        self.returns_tuple = returns == (tuple, len(output_types), (None,) * len(output_types))
        self.shares_with = shares_with
        """The operand that the results are views of."""
        self.is_operand = is_operand
        """Whether that operand itself is returned, and nothing is computed."""
        self.is_ragged = is_ragged
        self.is_derivable = is_derivable
        """Whether the function has a derivative. If not, it matters whether an operand requires grad."""
        self.may_raise = may_raise
        """Whether it raises for some values and not for others."""
        self.draws = draws
        """What the count of the random numbers that it draws follows from, if it draws any: see `Returned`."""
        self.kept: Any = None
        """Weights whose identity is in the key of this call: they must live as long as the key."""


_returned: dict[Hashable, Returned | None] = {}
"""What functions return, by signature; None where it depends on values. The same for all batches."""


_Signature = tuple[Any, Any, tuple[Type, ...], tuple[Hashable, ...]]
"""A call of a function without its values: the function, its template, the types of the operands and the names of the weights."""


class Signatures:
    """The signatures that a recording has met. Calls in another mode are other ops, so each mode has a table of its own; the table of
    the current mode is `GraphBuilder.calls`."""

    def __init__(self, graph: GraphBuilder, inputs: Inputs, guards: Guards, derived: DerivedWeights) -> None:
        self._graph = graph
        self._inputs = inputs
        self._guards = guards
        self._derived = derived
        self._calls_of_mode: dict[tuple[Mode, frozenset[int]], dict[Any, Any]] = {}
        """By the mode, and the weights that are frozen for a while."""
        self._line_of_op: dict[Op, str] = {}
        self.base_mode = self._mode = current_mode()
        self.base_inference = torch.is_inference_mode_enabled()
        self._use_calls()

    def end(self) -> None:
        """Nothing more is recorded."""
        self._calls_of_mode = {}
        self._use_calls()

    # ---- Modes.

    def change_mode(self) -> None:
        """Torch is in another mode than it was, or in one that must be asked for at every call."""
        mode = current_mode()
        if mode[0] is not self._mode[0] and not self.base_inference:
            self._graph.note_inference(torch.is_inference_mode_enabled())
        if mode == self._mode:
            self._use_calls()
            return
        if mode[0] and not self.base_mode[0]:
            raise ArgumentError(
                "gradients are enabled inside a batch that runs without them. Call fl.batch where they are enabled, and write "
                f"`with torch.no_grad():` inside the function for what needs none\n  {self._graph.where()}"
            )
        self._mode = mode
        self._use_calls()

    def _use_calls(self) -> None:
        calls = self._calls_of_mode.setdefault((self._mode, self._guards.frozen), {})
        is_usual = self._mode[2] is self.base_mode[2] and not is_any_autocast_enabled()
        self._graph.set_calls(calls, self._mode[0], not is_usual, self._mode[0] or not self.base_mode[0])

    def note_flag(self, tensor: torch.Tensor) -> None:
        """`requires_grad` of a weight has been switched."""
        if not self._guards.flag_changed(tensor):
            self._calls_of_mode = {}
            self._derived.forget()
        self._use_calls()

    @property
    def has_gradients(self) -> bool:
        """Whether the batch runs with gradients."""
        return self.base_mode[0]

    @property
    def mode_of_op(self) -> Mode | None:
        """The mode that new ops run in; None for that of the whole batch."""
        return None if self._mode == self.base_mode else self._mode

    # ---- Cells.

    def of_cell(
        self, key: tuple[Any, ...], cell: Cell, types: tuple[Type, ...], nesting: Nesting, settings: Settings
    ) -> KnownCall:
        """A call of a cell, which is known under the key from then on."""
        try:
            with recording_paused():
                is_known = cell.knows(types, nesting, settings)
                with nullcontext() if is_known else self._guards.changes_allowed():
                    signature = cell.signature(types, nesting, settings)
        except FoldloomError as error:
            raise type(error)(f"{error}\n  {self._graph.where()}") from error.__cause__
        frozen = () if cell.module is None else [w for w in cell.module.parameters() if id(w) in self._guards.frozen]
        if frozen:
            raise ArgumentError(
                f"cell {cell.label} is called while some of its weights do not require grad for a while. Detach what it computes, or take it off "
                f"the cells\n  {self._graph.where()}"
            )
        op = signature.op if self.mode_of_op is None else replace(signature.op, mode=self.mode_of_op)
        if cell.module is not None:
            self._guards.guard_cell(cell.module)
        self._guards.guard_function(cell.function, cell.label)
        self._inputs.note_cell(cell)
        may_raise = type(cell.function) not in MODULES or type(cell.function) is torch.nn.Embedding
        known = KnownCall(
            self._add_op(op, signature.histories, may_raise), op.outputs, signature.returns, may_raise=may_raise
        )
        self._graph.calls[key] = known
        return known

    # ---- Functions.

    def of_function(
        self, function: Any, nesting: Any, leaves: list[Any], handles: Sequence[LazyTensor]
    ) -> KnownCall | Returned | None:
        """How to record a call whose values have fixed shapes; what it returns if that is no tensor; None if it needs values."""
        if any(is_tensor(leaf) and leaf.layout is not torch.strided for leaf in leaves):
            return None
        signature, weights = self._signature(function, nesting, leaves, handles)
        known = self._graph.calls.get(signature)
        if known is not None:
            return known  # type: ignore[no-any-return]
        returned = self._returned_by(signature, weights)
        if returned is None or not returned.types:
            return returned
        if returned.is_operand and function not in MAY_COPY:
            known = KnownCall(-1, returned.types, None, shares_with=returned.shares_with, is_operand=True)
        else:
            repeatable = has_rule(function) and function not in DRAWS
            op_number = self._new_op(signature, weights, returned, repeatable=repeatable)
            risk = may_raise(function, len(handles) + len(weights), returned.types)
            known = KnownCall(
                op_number,
                returned.types,
                returned.nesting,
                shares_with=returned.shares_with,
                may_raise=risk,
                is_derivable=returned.no_derivative is None,
                draws=None if function is drawn_from else returned.draws,
            )
            known.kept = weights
            self._note_views(function, op_number, known.shares_with)
        self._graph.calls[signature] = known
        return known

    def _note_views(self, function: Any, op_number: int, shares_with: int | None) -> None:
        if function is take:  # which stands for an index that is a view
            shares_with = 0
        if shares_with is not None and function is not DATA:  # which autograd takes for another tensor
            self._graph.view_of_op[op_number] = shares_with

    def of_ragged(
        self, function: Any, nesting: Any, leaves: list[Any], handles: Sequence[LazyTensor]
    ) -> KnownCall | None:
        """How to record a call with ragged values as they are; None if they must be made dense for it."""
        if not has_ragged_rule(function) or len({len(h._value) for h in handles if h._type.ragged}) > 1:
            return None
        signature, weights = self._signature(function, nesting, leaves, handles)
        known = self._graph.calls.get(signature)
        if known is None:
            try:
                with recording_paused():
                    _, template, types, _ = signature
                    call = call_of_template(function, template, types, weights, ())
                    returned = None if has_mixed_factors(call) else ragged_returned(call)
                    returned = returned and with_names(function, returned)
            except Exception as error:
                self._add_note(error, signature)
                raise
            known = False
            if returned is not None:
                shares_with = 0 if function in VIEWS_OF_ROWS else None
                op_number = self._new_op(signature, weights, returned._replace(shares_with=shares_with))
                risk = may_raise(function, len(handles) + len(weights), returned.types)
                known = KnownCall(
                    op_number,
                    returned.types,
                    returned.nesting,
                    is_ragged=True,
                    shares_with=shares_with,
                    may_raise=risk,
                    is_derivable=returned.no_derivative is None,
                )
                known.kept = weights
                self._note_views(function, op_number, shares_with)
            self._graph.calls[signature] = known
        return known if isinstance(known, KnownCall) else None

    def _signature(
        self, function: Any, nesting: Any, leaves: list[Any], handles: Sequence[LazyTensor]
    ) -> tuple[_Signature, list[torch.Tensor]]:
        """The signature of a call, and the weights that it names."""
        template = (nesting, tuple([mark_of(leaf) for leaf in leaves]))
        weights = [leaf for leaf in leaves if is_tensor(leaf)]
        names = tuple([self._derived.name_of(weight) for weight in weights])
        return (function, template, tuple([handle._type for handle in handles]), names), weights

    def _returned_by(self, signature: _Signature, weights: list[torch.Tensor]) -> Returned | None:
        function, template, types, _ = signature
        key = (
            function,
            template,
            types,
            tuple([(type_of(weight), weight.requires_grad) for weight in weights]),
            self._mode,
            are_transforms_active(),  # where inference may fail, which must not be kept
        )
        if key not in _returned:
            try:
                with recording_paused():  # what torch calls meanwhile is none of the program's
                    returned = inferred(call_of_template(function, template, types, weights, ()))
                _returned[key] = with_names(function, returned)
            except NeedsValuesError:
                _returned[key] = None
            except Exception as error:
                self._add_note(error, signature)
                raise
        return _returned[key]

    def _new_op(
        self, signature: _Signature, weights: list[torch.Tensor], returned: Returned, *, repeatable: bool = False
    ) -> int:
        function, template, types, names = signature
        self._guards.guard_tensors(weights)
        if returned.no_derivative is not None:
            NO_DERIVATIVE[name_of(function), template, types] = returned.no_derivative
        op = Op(
            key=name_of(function), inputs=types, outputs=returned.types, settings=template, shared=names,
            mode=self.mode_of_op, repeatable=repeatable, label=getattr(function, "__name__", ""),
        )  # fmt: skip
        histories = self._histories(function, template, weights, returned)
        return self._add_op(op, histories, may_raise(function, len(types) + len(weights), returned.types))

    def _histories(
        self, function: Any, template: Any, weights: list[torch.Tensor], returned: Returned
    ) -> tuple[int, ...]:
        """The rules of the results of a function. A view requires grad as its base does, even if it is made without gradients."""
        is_view = returned.shares_with is not None or function is take
        if not is_view or self._mode[0] or not self.has_gradients or function in ALIASES:
            return returned.histories
        first = next(mark for mark in template[1] if mark in (OPERAND, SHARED))
        of_weight = ALWAYS if first is SHARED and weights[0].requires_grad else 0
        rule = of_weight if first is SHARED else 1 << (returned.shares_with or 0)
        return (rule,) * len(returned.types)

    def _add_op(self, op: Op, histories: Any, may_raise: bool) -> int:
        if may_raise:
            self._line_of_op.setdefault(op, user_line())
        return self._graph.add_op(op, histories)

    def of_automatic(
        self, key: tuple[Any, ...], op: Op, histories: tuple[int, ...], returns: Any, line: str | None
    ) -> None:
        """An automatic cell, which is known under the key from then on; ``line`` is where it may raise, if it may."""
        if line is not None:
            self._line_of_op.setdefault(op, line)
        number = self._graph.add_op(op, histories)
        self._graph.calls[key] = KnownCall(number, op.outputs, returns, may_raise=line is not None)

    @property
    def modes(self) -> tuple[Mode, Mode]:
        """The mode of the batch, and that of the next call."""
        return self.base_mode, self._mode

    def line_of(self, op: Op) -> str | None:
        """Where an operation that may raise was called first."""
        return self._line_of_op.get(op)

    def _add_note(self, error: Exception, signature: _Signature) -> None:
        function, _, types, _ = signature
        error.add_note(f"while recording {name_of(function)}({', '.join(map(repr, types))}) {self._graph.where()}")


def frozen_settings(cell: Cell, settings: dict[str, Any]) -> Settings:
    items = tuple([(name, settings[name], repr(settings[name])) for name in sorted(settings)])
    for name, value, _ in items:
        if isinstance(value, (torch.Tensor, np.ndarray)):
            raise ArgumentError(
                f"cell {cell.label} was given a tensor by keyword ({name}). Keyword arguments are settings; pass what is "
                f"to be batched by position: `{cell.label}(..., {name})`\n  at {user_line()}"
            )
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"cell {cell.label} was given {name}={value!r:.60}, which cannot tell one step from another because it is not "
                f"hashable. Pass a tuple instead of a list\n  at {user_line()}"
            ) from None
    return items
