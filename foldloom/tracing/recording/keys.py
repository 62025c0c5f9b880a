"""Keys of calls of torch's functions: two calls with equal keys are recorded in the same way.

A key holds all that tells two calls apart: the function, the types of the operands, the identities of parameters, plain settings, and
the kind and length of each list or tuple. `_fast_path.c` makes the same keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foldloom.tracing.values.lazy_tensor import LazyTensor

_Parameter = torch.nn.Parameter
_Tensor = torch.Tensor
_STATIC = frozenset((int, bool, str, type(None), torch.dtype, torch.device, type(...)))
_STATIC_BOUNDS = frozenset((int, type(None)))
_NOT_PLAIN = frozenset((LazyTensor, torch.Tensor, _Parameter, tuple, list, dict, torch.Size, slice, np.ndarray))

PLAIN_TYPES = _STATIC | {float}
"""Types of settings that a key holds as they are."""

Key = tuple[tuple[Any, ...], list[int], int, bool]
"""The key, the values of the operands that are not ragged, the greatest depth of these, and whether others are ragged."""


def key_of(recorder: Any, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Key | None:
    """None if there are other arguments than values of this recorder, weights and plain settings. (One function for speed.)"""
    key: list[Any] = [function]
    operands: list[int] = []
    depth = 0
    is_ragged = False
    if kwargs:
        # Settings by name are many and mostly plain: all of them in one go.
        kinds = tuple(map(type, kwargs.values()))
        if not _NOT_PLAIN.isdisjoint(kinds):
            return None
        key += (tuple(kwargs), kinds)
        # Kinds tell 0 from False; only a float has two zeros, which are equal.
        key += kwargs.values() if float not in kinds else [repr(v) if v == 0.0 else v for v in kwargs.values()]
    for arg in args:
        kind = type(arg)
        if kind is tuple or kind is list:
            items = arg
            key += (kind, len(arg))
        else:
            items = (arg,)
        for item in items:
            kind = type(item)
            if kind is LazyTensor:
                if item._recorder is not recorder:
                    return None
                key.append(item._type)
                if item._type.ragged:
                    is_ragged = True
                else:
                    operands.append(item._value)
                    if item._depth > depth:
                        depth = item._depth
            elif kind is _Parameter or (kind is _Tensor and recorder.inputs.is_shared(item)):
                key += (kind, id(item))
            elif kind in _STATIC:
                key += (kind, item)
            elif kind is float:
                key += (kind, item or repr(item))
            elif kind is slice and _STATIC_BOUNDS.issuperset(map(type, (item.start, item.stop, item.step))):
                key += (kind, item.start, item.stop, item.step)
            else:
                return None
    return tuple(key), operands, depth, is_ragged
