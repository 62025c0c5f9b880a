"""A value that is not computed yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from foldloom.errors import ValueNotReadyError
from foldloom.execution.kernels import dtype_of
from foldloom.graph import Type

if TYPE_CHECKING:
    from foldloom.lazy.recorder import Recorder


class LazyTensor:
    """Stands for a tensor while an example is being recorded: it can be passed to cells and returned.

    Shape and dtype are known at once. Anything that needs the value says that it belongs inside a cell.
    """

    __slots__ = ("_depth", "_recorder", "_type", "_value")

    def __init__(self, recorder: Recorder, value: int, type: Type, depth: int) -> None:
        self._recorder = recorder
        self._value = value
        self._type = type
        self._depth = depth

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._type.shape)

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self._type)

    @property
    def ndim(self) -> int:
        return len(self._type.shape)

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def __repr__(self) -> str:
        return f"LazyTensor({self._type!r}, not computed yet)"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> NoReturn:
        raise _not_ready(getattr(func, "__name__", str(func)))

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # protocols that Python probes for, such as __deepcopy__
            raise AttributeError(name)
        raise _not_ready(name)


def _not_ready(operation: str) -> ValueNotReadyError:
    return ValueNotReadyError(
        f"`{operation}` needs a value that is not computed yet. While fl.batch records an example, results of cells can be "
        "passed to cells and returned; write every other computation inside a cell: "
        "`f = fl.cell(lambda x: ...)`, whose argument is a tensor with the batch first"
    )


def _refuse(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: LazyTensor, *_: object) -> NoReturn:
        raise _not_ready(operation)

    return refuse


_OPERATIONS = {
    "+": "add radd iadd", "-": "sub rsub isub neg", "*": "mul rmul imul", "/": "truediv rtruediv itruediv",
    "//": "floordiv rfloordiv ifloordiv", "%": "mod rmod imod", "**": "pow rpow ipow", "@": "matmul rmatmul imatmul",
    "[]": "getitem setitem", "<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne",
    "bool()": "bool", "int()": "int", "float()": "float", "index": "index", "len()": "len", "iteration": "iter",
    "in": "contains", "abs()": "abs", "~": "invert", "&": "and rand iand", "|": "or ror ior", "^": "xor rxor ixor",
    "numpy": "array",
}  # fmt: skip
for _operation, _names in _OPERATIONS.items():
    for _name in _names.split():
        setattr(LazyTensor, f"__{_name}__", _refuse(_operation))
LazyTensor.__hash__ = object.__hash__  # type: ignore[method-assign]
