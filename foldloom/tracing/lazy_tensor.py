"""Handles: values that are not computed yet, and behave as tensors."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum, auto
from typing import Any

import torch

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import dtype_of
from foldloom.graph import Type
from foldloom.pytrees import leaf, map_leaves
from foldloom.tracing import fast_path
from foldloom.tracing.functions.calls import OPERAND, SHARED, Mark, static
from foldloom.tracing.scope import ActiveRecorder, scope, unwatched


class Form(Enum):
    """How a value is demanded."""

    NUMBER = auto()
    """As a Python number."""
    DETACHED = auto()
    """As a tensor through which no gradients flow."""
    TENSOR = auto()
    """As a tensor through which gradients flow."""


NUMBER, DETACHED, TENSOR = Form


class _Recorded:
    """Stands for the `grad_fn` of a value that is not computed yet."""

    next_functions = ()

    def name(self) -> str:
        return "RecordedBackward"

    def __repr__(self) -> str:
        return "<RecordedBackward>"


RECORDED = _Recorded()


@leaf
class LazyTensor:
    """Stands for a tensor of one example while it is being recorded.

    Shape and dtype are known at once. What is computed with it is recorded; what needs its value demands it of the recorder.
    ``_value`` is its number in the graph, or for a ragged one the numbers of its rows. When the recording is over, it stands
    for the tensor that was computed.

    It is not a subclass of torch.Tensor, because making one takes longer than recording an operation; and its ``__class__`` does not
    say that it is one, because torch's C code would believe it.
    """

    __slots__ = ("__weakref__", "_depth", "_recorder", "_source", "_type", "_value", "_views")

    _value: Any
    _views: list[weakref.ref[Any]]
    """Its views, as `Views` or rows: an in-place change must reach them."""
    _source: tuple[Any, Any]
    """If it is a view: its `Views` and which of them it is; or the ragged value and which of its rows it is; or `Given` and a tensor."""

    def __init__(self, recorder: Any, value: Any, type: Type, depth: int) -> None:
        self._recorder = recorder
        self._value = value
        self._type = type
        self._depth = depth

    @property
    def shape(self) -> torch.Size:
        type = self._type
        return torch.Size((len(self._value), *type.row.shape)) if type.ragged else torch.Size(type.shape)

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self._type)

    @property
    def device(self) -> torch.device:
        return self._recorder.device_of(self)  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        return len(self._type.shape)

    @property
    def requires_grad(self) -> bool:
        return self._recorder.requires_grad_of(self)  # type: ignore[no-any-return]

    @property
    def is_leaf(self) -> bool:
        given = self._recorder.tensor_given_as(self)
        return not self.requires_grad if given is None else given.is_leaf

    @property
    def grad_fn(self) -> object:
        """None, or something that says that there is a history: what it is, autograd knows when the value is computed."""
        given = self._recorder.tensor_given_as(self)
        if given is not None:
            return given.grad_fn
        return RECORDED if self.requires_grad else None

    __array_priority__ = 1000
    __array_ufunc__ = None
    """numpy leaves computing with a value to it."""

    grad = None
    layout = torch.strided
    is_sparse = is_quantized = is_nested = is_mkldnn = is_meta = is_mps = is_xpu = False

    def _refuse_to_be_a_parameter(self, _: bool) -> None:
        raise ArgumentError(
            "a parameter is made inside the function given to fl.batch, of a value that is not computed yet. Make modules and parameters "
            f"before, where an optimiser can find them\n  {self._recorder.where()}"
        )

    _is_param = property(fset=_refuse_to_be_a_parameter)
    """What `nn.Parameter` sets on a tensor of a kind that it does not know."""

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    def size(self, dim: int | None = None) -> torch.Size | int:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self._type.shape)

    def numel(self) -> int:
        return self.shape.numel()

    nelement = numel

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def __len__(self) -> int:
        if not self._type.shape:
            raise TypeError("len() of a 0-d tensor")
        return len(self._value) if self._type.ragged else self._type.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self._type.shape:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self._recorder.rows_of(self))

    # What needs the value demands it of the recorder: see `Flushes.demand`.

    def _tensor(self) -> torch.Tensor:
        return self._recorder.demand((self,), TENSOR)[0]  # type: ignore[no-any-return]

    def _detached(self) -> torch.Tensor:
        return self._recorder.demand((self,), DETACHED)[0]  # type: ignore[no-any-return]

    def item(self) -> Any:
        return self._recorder.demand((self,), NUMBER)[0]

    def tolist(self) -> Any:
        if not self._type.shape:
            return self.item()
        value = self._detached()
        with unwatched():
            return value.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        # A copy, because the memory may be that of all examples; read-only, because writing to it would not change this value.
        array = self._detached().clone().numpy(force=force)
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def __str__(self) -> str:
        return str(self._detached())

    def __format__(self, form: str) -> str:
        return format(self.item(), form) if form and not self._type.shape else format(str(self), form)

    def __repr__(self) -> str:
        return f"LazyTensor({self._type!r}, not computed yet)"

    def backward(self, *args: Any, **kwargs: Any) -> None:
        self._recorder.backward(self, args, kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        recorder = scope.recorder
        if recorder is None:
            return computed(func, tuple(args), kwargs or {})
        return recorder.call_function(func, args, kwargs)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._recorder.set_item(self, index, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.clone()  # type: ignore[attr-defined]

    __hash__ = object.__hash__


class Given:
    """Stands for the recorder in handles of given tensors. When such a handle is used, it becomes an input of the graph, and its recorder
    is the real one from then on."""

    __slots__ = ("recorder",)

    is_over = False

    def __init__(self, recorder: ActiveRecorder) -> None:
        self.recorder = recorder

    def device_of(self, handle: LazyTensor) -> torch.device:
        return handle._value.device  # type: ignore[no-any-return]

    def requires_grad_of(self, handle: LazyTensor) -> bool:
        return handle._value.requires_grad  # type: ignore[no-any-return]

    def tensor_given_as(self, handle: LazyTensor) -> torch.Tensor:
        return handle._value  # type: ignore[no-any-return]

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        return [self.recorder.give(row) for row in handle._value]

    def demand(self, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
        tensors = [handle._value for handle in handles]
        if form is TENSOR:
            return tensors
        return [tensor.item() if form is NUMBER else tensor.detach() for tensor in tensors]

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        return self.recorder.call_function(function, args, kwargs)

    def set_item(self, handle: LazyTensor, index: Any, value: Any) -> None:
        self.recorder.set_item(self.recorder.own(handle), index, value)

    def backward(self, handle: LazyTensor, args: Any, kwargs: Any) -> None:
        self.recorder.backward(handle, args, kwargs)

    def where(self) -> str:
        return self.recorder.where()


class Views:
    """The results of one call that are views of one of its arguments. The views hold it; it keeps none of them alive."""

    __slots__ = ("__weakref__", "_views", "args", "base", "function", "grad_enabled", "kwargs")

    def __init__(
        self,
        base: LazyTensor,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        views: Sequence[LazyTensor],
        grad_enabled: bool,
    ) -> None:
        self.base = base
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.grad_enabled = grad_enabled
        self._views = [weakref.ref(view) for view in views]

    @property
    def is_of_first(self) -> bool:
        return bool(self.args) and self.args[0] is self.base

    @property
    def is_alias(self) -> bool:
        """Whether they are the same tensor without its history."""
        return self.function in _ALIASES

    def move(self, base: LazyTensor) -> None:
        """Make these the views of another handle, which stands for the same memory."""
        self.args = tuple([base if arg is self.base else arg for arg in self.args])
        self.base = base

    def exchange(self, view: LazyTensor, other: LazyTensor) -> None:
        """Another handle takes the place of one of the views."""
        self._views = [weakref.ref(other) if found() is view else found for found in self._views]

    def in_use(self) -> list[tuple[LazyTensor, int | None]]:
        """The views that are still alive, and which of the call's results each is."""
        alive = [view for found in self._views if (view := found()) is not None]
        return [(view, view._source[1]) for view in alive]


_ALIASES = frozenset((torch.detach, torch.Tensor.detach, getattr(torch.Tensor.data, "__get__")))  # noqa: B009


def mark_of(leaf: Any) -> Mark | Hashable:
    """What stands for an argument in a template: a mark for a value or a weight, anything else as it is."""
    if type(leaf) is LazyTensor:
        return OPERAND
    return SHARED if isinstance(leaf, torch.Tensor) else static(leaf)


def computed(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function on the tensors that handles stand for, after their recording is over."""
    return func(*map_leaves(args, _concrete), **map_leaves(kwargs, _concrete))


def _concrete(leaf: Any) -> Any:
    return leaf._tensor() if type(leaf) is LazyTensor else leaf


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    def binary(self: LazyTensor, other: Any) -> Any:
        return self._recorder.call_function(function, (self, other), None)

    return fast_path.operator(function, binary)


def _reflected(function: Callable[..., Any]) -> Callable[..., Any]:
    def binary(self: LazyTensor, other: Any) -> Any:
        return self._recorder.call_function(function, (other, self), None)

    return fast_path.reflected(function, binary)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: LazyTensor, *args: Any, **kwargs: Any) -> Any:
        return self._recorder.call_function(function, (self, *args), kwargs)

    method.__name__ = getattr(function, "__name__", "method")
    return fast_path.method(function, method)


def _property(function: Callable[..., Any]) -> property:
    return property(_method(function))


_BINARY = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "matmul": torch.matmul,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": operator.xor, "lshift": operator.lshift, "rshift": operator.rshift,
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_UNARY = {"neg": operator.neg, "pos": operator.pos, "abs": operator.abs, "invert": operator.invert}


def _give_methods() -> None:
    """All of torch.Tensor's methods, without naming them."""
    for name, function in _BINARY.items():
        setattr(LazyTensor, f"__{name}__", _operator(function))
        setattr(LazyTensor, f"__r{name}__", _reflected(function))
        setattr(LazyTensor, f"__i{name}__", _operator(getattr(torch.Tensor, f"__i{name}__", function)))
    for name in _COMPARISONS:
        setattr(LazyTensor, f"__{name}__", _operator(getattr(operator, name)))
    for name, unary in _UNARY.items():
        setattr(LazyTensor, f"__{name}__", _method(unary))  # type: ignore[arg-type]
    setattr(LazyTensor, "__getitem__", _method(torch.Tensor.__getitem__))  # noqa: B010
    for name in dir(torch.Tensor):
        if name in LazyTensor.__dict__ or name.startswith("__") or hasattr(LazyTensor, name):
            continue
        attribute = getattr(torch.Tensor, name)
        if name in ("T", "mT", "H", "mH", "real", "imag", "data"):
            setattr(LazyTensor, name, _property(attribute.__get__))
        elif callable(attribute) and not isinstance(attribute, type):
            setattr(LazyTensor, name, _method(attribute))


_give_methods()
