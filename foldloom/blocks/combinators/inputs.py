"""Blocks from Python objects to tensors."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from foldloom.blocks.block import Block
from foldloom.blocks.describing import Described, Describing
from foldloom.blocks.lowering.codegen import CodeBuilder, Generated
from foldloom.blocks.lowering.lowering import Lowering, Run, number_maker
from foldloom.blocks.printing import shortened
from foldloom.blocks.types import PyObjectType, TensorType
from foldloom.errors import WiringError
from foldloom.pytrees.messages import shown
from foldloom.tracing.scope import scope, user_line
from foldloom.tracing.values.lazy_tensor import LazyTensor


class Tensor(Block):
    """Converts a number, list, array or tensor to a tensor of this shape and dtype.

    >>> from foldloom import blocks as fb
    >>> fb.Tensor([2]).eval([1, 2])
    tensor([1., 2.])
    """

    def __init__(self, shape: Iterable[int], dtype: Any = None) -> None:
        self._type = TensorType(shape, dtype)
        self.takes, self.gives = PyObjectType(), self._type

    def describe(self, to: Describing) -> Described:
        return {"kind": "tensor", "shape": list(self._type.fixed()), "dtype": to.dtype(self._type.dtype)}

    def lowered(self, lower: Lowering) -> Run:
        dtype = lower.dtype(self._type.dtype)
        array = self._array(dtype)
        return array if self._type.shape else self._number(number_maker(dtype), array)

    def _number(self, convert: Run, array: Run) -> Run:
        def run(value: Any) -> Any:
            if type(value) in _TENSORS:  # converting it to a number would lose its gradient
                return array(value)
            try:
                return convert(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise self._refused(value) from error

        return run

    def _array(self, dtype: str) -> Run:
        shape = self._type.shape
        torch_dtype = getattr(torch, dtype)

        def run(value: Any) -> Any:
            made: Any = value
            if isinstance(value, torch.Tensor):
                if made.dtype is not torch_dtype:
                    made = made.to(torch_dtype)
                if type(made) is LazyTensor:  # a tensor in the example, wrapped by the batch
                    assert scope.recorder is not None
                    made = scope.recorder.own(made)
            else:
                made = _as_array(value)
                if made is None:
                    raise self._refused(value)
                made = made.astype(dtype) if dtype != "bfloat16" else torch.from_numpy(made).to(torch_dtype)
            if made.shape != shape:
                raise self.input_error(
                    f"{shortened(self)} was given {shown(value)} of shape {list(made.shape)}; it takes shape {list(shape)}"
                )
            return made

        return run

    def _refused(self, value: object) -> Exception:
        return self.input_error(
            f"{shortened(self)} was given {shown(value)} ({type(value).__name__}), of which it cannot make {self._type}"
        )


_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter, LazyTensor))


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        return None
    return array if array.dtype.kind in "biufc" else None  # numpy would turn None into nan


class Scalar(Tensor):
    """Converts a number to a tensor without dimensions.

    >>> from foldloom import blocks as fb
    >>> fb.Scalar("int64").eval(3)
    tensor(3)
    """

    def __init__(self, dtype: Any = None) -> None:
        super().__init__([], dtype)


class Vector(Tensor):
    """Converts a list of ``size`` numbers to a vector.

    >>> from foldloom import blocks as fb
    >>> fb.Vector(3).eval([1, 2, 3])
    tensor([1., 2., 3.])
    """

    def __init__(self, size: int, dtype: Any = None) -> None:
        super().__init__([size], dtype)


class InputTransform(Generated, Block):
    """Applies a Python function to a Python object.

    >>> from foldloom import blocks as fb
    >>> (fb.InputTransform(len) >> fb.Scalar("int64")).eval("word")
    tensor(4)
    """

    def __init__(self, py_fn: Callable[[Any], Any]) -> None:
        if not callable(py_fn):
            raise WiringError(f"fb.InputTransform takes a function, not {py_fn!r:.60}\n  at {user_line()}")
        self._py_fn = py_fn
        self.takes = self.gives = PyObjectType()

    def describe(self, to: Describing) -> Described:
        return {"kind": "transform", "function": to.value(self._py_fn)}

    def emit(self, code: CodeBuilder, value: str) -> str:
        return code.assign(f"{code.name(self._py_fn, 'function')}({value})")


class OneHotFromList(Block):
    """One-hot encoding of a value by its position in a list. Other values raise an error, or with ``strict=False``
    give zeros.

    >>> from foldloom import blocks as fb
    >>> fb.OneHotFromList(["noun", "verb"]).eval("verb")
    tensor([0., 1.])
    >>> fb.OneHotFromList(["noun", "verb"], strict=False).eval("other")
    tensor([0., 0.])
    """

    def __init__(self, elements: Sequence[Hashable], dtype: Any = None, strict: bool = True) -> None:
        self._elements = list(elements)
        self._strict = strict
        if len(set(self._elements)) != len(self._elements):
            repeated = next(element for element in self._elements if self._elements.count(element) > 1)
            raise WiringError(
                f"{repeated!r} is twice among the elements, so its place is not clear\n  at {user_line()}"
            )
        self._type = TensorType([len(self._elements)], dtype)
        self.takes, self.gives = PyObjectType(), self._type

    def describe(self, to: Describing) -> Described:
        return {
            "kind": "one_hot",
            "elements": to.value(self._elements),
            "dtype": to.dtype(self._type.dtype),
            "strict": self._strict,
        }

    def lowered(self, lower: Lowering) -> Run:
        rows = torch.eye(len(self._elements), dtype=getattr(torch, lower.dtype(self._type.dtype))).unbind()
        row_of_element: dict[Any, Any] = dict(zip(self._elements, rows, strict=True))
        unknown = None if self._strict else lower.constant(0, self._type)

        def run(value: Any) -> Any:
            row = row_of_element.get(value, unknown)
            if row is None:
                raise self.missing_key(
                    f"{shortened(self)} was given {shown(value)}, which is none of its {len(rows)} elements"
                )
            return row

        return run


class OneHot(OneHotFromList):
    """One-hot encoding of an integer in ``range(start, stop)``, or in ``range(start)`` if ``stop`` is not given.

    >>> from foldloom import blocks as fb
    >>> fb.OneHot(3).eval(1)
    tensor([0., 1., 0.])
    """

    def __init__(self, start: int, stop: int | None = None, dtype: Any = None) -> None:
        super().__init__(range(start) if stop is None else range(start, stop), dtype)
