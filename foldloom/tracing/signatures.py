"""What is known of calls: by the function, its settings, its weights and the types of its operands.

Everything here happens once for each signature of a batch; what a function returns is found once for all batches.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import is_grad_enabled
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled

from foldloom.errors import ArgumentError, FoldloomError
from foldloom.execution.kernels import type_of
from foldloom.graph import Op, Type
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing.cells.core import Cell, Settings
from foldloom.tracing.cells.nesting import Nesting
from foldloom.tracing.functions.calls import call_of_template, name_of, rebuilt
from foldloom.tracing.functions.shape_inference import NeedsValuesError, Returned, inferred
from foldloom.tracing.inputs import code_of
from foldloom.tracing.lazy_tensor import LazyTensor
from foldloom.tracing.mutation.views import MAY_COPY, VIEWS_OF_ROWS
from foldloom.tracing.progress import Progress
from foldloom.tracing.rules import has_ragged_rule, has_rule, ragged_returned
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.scope import Mode, autocast_state, recording_paused, user_line


class KnownCall:
    """What is needed to record one more call of a known signature."""

    __slots__ = (
        "is_operand",
        "is_ragged",
        "kept",
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
    ) -> None:
        self.op_number = op_number
        self.output_types = output_types
        self.returns = returns
        self.returns_one = returns is None
        self.returns_tuple = returns == (tuple, len(output_types), (None,) * len(output_types))
        self.shares_with = shares_with
        """The operand in whose memory the results lie."""
        self.is_operand = is_operand
        """Whether that operand itself is returned, and nothing is computed."""
        self.is_ragged = is_ragged
        self.kept: Any = None
        """Weights that the key of this call names by identity; they must live as long as the key."""


_returned: dict[Hashable, Returned | None] = {}
"""What functions return, by signature; None where it depends on values. The same for all batches."""


class Signatures(Progress):
    """A recording that knows the signatures it has met, in each mode."""

    __slots__ = ("_autocast", "_calls", "_grad")

    def __init__(self, scheduler: Scheduler | None, owner: object) -> None:
        super().__init__(scheduler, owner)
        self._mode = self._base_mode = is_grad_enabled(), autocast_state()
        self._grad, self._autocast = is_grad_enabled(), is_any_autocast_enabled()
        self._calls_of_mode: dict[Mode, dict[Any, Any]] = {}
        self._calls: dict[Any, Any] = self._calls_of_mode.setdefault(self._base_mode, {})

    def end(self) -> None:
        super().end()
        self._calls, self._calls_of_mode = {}, {}

    def _change_mode(self) -> None:
        """Calls in another mode are other ops."""
        mode = is_grad_enabled(), autocast_state()
        if mode == self._mode:
            return
        if mode[0] and not self._base_mode[0]:
            raise ArgumentError(
                "gradients are enabled inside a batch that runs without them. Call fl.batch where they are enabled, and write "
                f"`with torch.no_grad():` inside the function for what needs none\n  {self.where()}"
            )
        self._mode = mode
        self._grad, self._autocast = mode[0], is_any_autocast_enabled()
        self._calls = self._calls_of_mode.setdefault(mode, {})

    @property
    def has_gradients(self) -> bool:
        """Whether the batch runs with gradients."""
        return self._base_mode[0]

    @property
    def _mode_of_op(self) -> Mode | None:
        return None if self._mode == self._base_mode else self._mode

    def _new_cell_call(
        self, key: tuple[Any, ...], cell: Cell, types: tuple[Type, ...], nesting: Nesting, settings: Settings
    ) -> KnownCall:
        try:
            with recording_paused(), self.unchanged.changes_are_ours():
                signature = cell.signature(types, nesting, settings)
        except FoldloomError as error:
            raise type(error)(f"{error}\n  {self.where()}") from error.__cause__
        op = signature.op if self._mode_of_op is None else replace(signature.op, mode=self._mode_of_op)
        if cell.module is not None:
            self.unchanged.note_cell(cell.module)
        known = self._calls[key] = KnownCall(self.add_op(op), op.outputs, signature.returns)
        self._first_cell = self._first_cell or cell
        return known

    def _known(
        self, function: Any, nesting: Any, leaves: list[Any], handles: list[LazyTensor]
    ) -> KnownCall | Returned | None:
        """What is known of calls like this: how to record it, what it returns if that is no tensor, None if it needs values."""
        if any(isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided for leaf in leaves):
            return None
        codes = tuple([code_of(leaf) for leaf in leaves])
        template = (nesting, codes)
        types = tuple([handle._type for handle in handles])
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shared = tuple([self._name_of_shared(weight) for weight in weights])
        key = (function, template, types, shared)
        known = self._calls.get(key)
        if known is not None:
            return known  # type: ignore[no-any-return]
        signature = (
            function,
            template,
            types,
            tuple([type_of(weight) for weight in weights]),
            self._mode,
            torch.get_default_dtype(),
        )
        if signature not in _returned:
            try:
                _returned[signature] = inferred(call_of_template(function, template, types, weights, ()))
            except NeedsValuesError:
                _returned[signature] = None
            except Exception as error:
                error.add_note(f"while recording {name_of(function)}({', '.join(map(repr, types))}) {self.where()}")
                raise
        returned = _returned[signature]
        if returned is None or not returned.types:
            return returned
        if returned.is_operand and function not in MAY_COPY:
            known = self._calls[key] = KnownCall(
                -1, returned.types, None, shares_with=returned.shares_with, is_operand=True
            )
            return known
        op = Op(
            key=name_of(function), inputs=types, outputs=returned.types, settings=template, shared=shared,
            mode=self._mode_of_op, repeatable=has_rule(function) and function not in DRAWS,
            label=getattr(function, "__name__", ""),
        )  # fmt: skip
        known = KnownCall(self.add_op(op), op.outputs, returned.nesting, shares_with=returned.shares_with)
        known.kept = weights
        self.unchanged.note_tensors(weights)
        self._calls[key] = known
        return known

    def _derive(self, function: Any, nesting: Any, leaves: list[Any]) -> Any:
        """A function of weights alone is computed once, for everybody."""
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        template = (nesting, tuple([code_of(leaf) for leaf in leaves]))
        derivation = (
            name_of(function),
            template,
            tuple([self._name_of_shared(weight) for weight in weights]),
            self._mode_of_op,
        )
        known = self._derived.get(derivation)
        if known is not None and self.is_derived(known):
            return known
        args, kwargs = rebuilt(nesting, iter(leaves))
        with recording_paused():
            made = function(*args, **kwargs)
        if isinstance(made, torch.Tensor) and function not in DRAWS:
            self._derived[derivation] = made
            self._derivation[id(made)] = derivation, made, made._version
            self.unchanged.note_tensors(weights)
        return made

    def _known_ragged(
        self, function: Any, nesting: Any, leaves: list[Any], handles: list[LazyTensor]
    ) -> KnownCall | None:
        """How to record a call with ragged values as they are; None if they must be made dense for it."""
        if not has_ragged_rule(function) or len({len(h._value) for h in handles if h._type.ragged}) > 1:
            return None
        template = (nesting, tuple([code_of(leaf) for leaf in leaves]))
        types = tuple([handle._type for handle in handles])
        weights = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        shared = tuple([self._name_of_shared(weight) for weight in weights])
        key = (function, template, types, shared)
        known = self._calls.get(key)
        if known is None:
            try:
                with recording_paused():
                    returned = ragged_returned(call_of_template(function, template, types, weights, ()))
            except Exception as error:
                error.add_note(f"while recording {name_of(function)}({', '.join(map(repr, types))}) {self.where()}")
                raise
            if returned is None:
                known = False
            else:
                op = Op(
                    key=name_of(function), inputs=types, outputs=returned.types, settings=template, shared=shared,
                    mode=self._mode_of_op, label=getattr(function, "__name__", ""),
                )  # fmt: skip
                shares_with = 0 if function in VIEWS_OF_ROWS else None
                known = KnownCall(
                    self.add_op(op), op.outputs, returned.nesting, is_ragged=True, shares_with=shares_with
                )
                known.kept = weights
                self.unchanged.note_tensors(weights)
            self._calls[key] = known
        return known if isinstance(known, KnownCall) else None


def frozen_settings(cell: Cell, settings: dict[str, Any]) -> Settings:
    items = tuple([(name, settings[name], repr(settings[name])) for name in sorted(settings)])
    for name, value, _ in items:
        if isinstance(value, (LazyTensor, torch.Tensor, np.ndarray)):
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
