"""What a function returns, found by calling it once on tensors that have shapes and no data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from foldloom.execution.kernels import dtype_of, type_of
from foldloom.graph import Type
from foldloom.lazy.calls import Call, Operand, leaves_of
from foldloom.lazy.scope import recording_paused


class Returned(NamedTuple):
    """The nesting of what a function returns, and its leaves: types of tensors, and whatever else there is."""

    nesting: Any
    leaves: tuple[Any, ...]

    @property
    def types(self) -> tuple[Type, ...]:
        return tuple([leaf for leaf in self.leaves if isinstance(leaf, Type)])


class NeedsValuesError(Exception):
    """What the function returns depends on the values it is given: it cannot be known before they are."""


def inferred(call: Call) -> Returned:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with recording_paused(), torch.no_grad():
        try:
            with mode:
                blocks = [torch.empty(type.shape, dtype=dtype_of(type)) for type in call.operands]
            weights = {id(tensor): mode.from_tensor(tensor.detach()) for tensor in _weights(call)}
            args, kwargs = _with_fake_weights(call.filled(blocks), weights)
            with mode:
                result = call.function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
            raise NeedsValuesError from error
        except (NotImplementedError, AssertionError) as error:
            raise NeedsValuesError from error
    leaves: list[Any] = []
    nesting = leaves_of(result, leaves)
    return Returned(nesting, tuple([_type_of_leaf(leaf) for leaf in leaves]))


def _type_of_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if not isinstance(leaf, FakeTensor) or leaf.layout is not torch.strided:
        raise NeedsValuesError
    return type_of(leaf)


def _weights(call: Call) -> list[torch.Tensor]:
    return [tensor for tensor in call.tensors() if not isinstance(tensor, Operand)]


def _with_fake_weights(value: Any, fakes: Mapping[int, torch.Tensor]) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return fakes.get(id(value), value)
    if kind is tuple or kind is list:
        return kind([_with_fake_weights(item, fakes) for item in value])
    if kind is dict:
        return {key: _with_fake_weights(item, fakes) for key, item in value.items()}
    return value
