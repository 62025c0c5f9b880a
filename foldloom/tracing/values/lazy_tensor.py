"""Handles: values that are not computed yet, and behave as tensors.

When Python needs what a handle stands for, the value is demanded: `flushing/flush.py: Flushes.demand`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from ctypes import c_void_p, py_object, pythonapi, sizeof
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import torch

from foldloom.errors import ArgumentError
from foldloom.execution.kernels import dtype_of
from foldloom.graph import Type
from foldloom.pytrees import leaf, map_leaves
from foldloom.torch_private import exchange_tensors, make_subclass
from foldloom.tracing import fast_path
from foldloom.tracing.functions.calls import OPERAND, SHARED, Mark, static
from foldloom.tracing.scope import ActiveRecorder, recording_paused, scope, unwatched, user_line
from foldloom.tracing.values.conversions import as_complex, as_float, as_index, as_int, as_truth
from foldloom.tracing.values.methods import give_methods


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


if TYPE_CHECKING:

    class _Tensor:
        """Its other methods are given to handles by `give_methods`."""
else:
    _Tensor = torch.Tensor


@leaf
class LazyTensor(_Tensor):
    """Stands for a tensor of one example while it is being recorded.

    Shape and dtype are known at once. What is computed with it is recorded; what needs its value demands it of the recorder.
    ``_value`` is its number in the graph, or for a ragged one the numbers of its rows. When the recording is over, it stands
    for the tensor that was computed.

    It is a torch.Tensor, so that whoever looks finds one. The tensor that torch's C++ code would find in it has no data, and whatever
    computes with that raises. Making one takes longer than recording an operation, so `_fast_path.c` uses handles again.
    Where `torch.Tensor` means one of the user's, ask `is_tensor`.
    """

    __slots__ = ("_depth", "_place", "_recorder", "_source", "_type", "_value", "_views")

    _recorder: Any
    _value: Any
    _type: Type
    _depth: int
    _views: list[weakref.ref[Any]]
    """Its views, as `Views` or rows: an in-place change must reach them."""
    _source: tuple[Any, Any]
    """If it is a view: its `Views` and which of them it is; or the ragged value and which of its rows it is; or `Given` and a tensor."""

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

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        self.requires_grad_(wanted)  # type: ignore[attr-defined]

    @property
    def is_leaf(self) -> bool:
        given = self._recorder.tensor_given_as(self)
        return is_cut(self) or not self.requires_grad if given is None else given.is_leaf

    @property
    def grad_fn(self) -> object:
        """None, or something that says that there is a history: what it is, autograd knows when the value is computed."""
        given = self._recorder.tensor_given_as(self)
        if given is not None:
            return given.grad_fn
        return RECORDED if self.requires_grad and not is_cut(self) else None

    @property
    def grad(self) -> torch.Tensor | None:
        return self._recorder.grad_of(self)  # type: ignore[no-any-return]

    @grad.setter
    def grad(self, grad: Any) -> None:
        given = self._recorder.tensor_given_as(self)
        if given is None:
            raise self._refused("x.grad = ...", "Return the value, and set the gradient of what fl.batch returns")
        given.grad = grad._tensor() if type(grad) is LazyTensor else grad

    @property
    def data(self) -> Any:
        return self.detach()  # type: ignore[attr-defined]

    @data.setter
    def data(self, value: Any) -> None:
        self._recorder.set_data(self, value)

    def _refused(self, what: str, instead: str) -> ArgumentError:
        return ArgumentError(f"`{what}` of a value that is not computed yet. {instead}\n  {self._recorder.where()}")

    __array_priority__ = 1000
    __array_ufunc__ = None
    """numpy leaves computing with a value to it."""

    layout = torch.strided
    is_sparse = is_quantized = is_nested = is_mkldnn = is_meta = is_mps = is_xpu = False

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
        return self._recorder.number_of(self)

    def tolist(self) -> Any:
        if not self._type.shape:
            return self.item()
        value = self._detached()
        with unwatched():
            return value.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self._recorder.array_of(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    __bool__ = as_truth
    __int__ = as_int
    __float__ = as_float
    __complex__ = as_complex
    __index__ = as_index

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        given = self._recorder.tensor_given_as(self)
        value = self._detached() if given is None else given
        with recording_paused(), unwatched():  # what printing calls is not the program's
            return repr(value)

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        return object.__format__(self, form) if self._type.shape else format(self.item(), form)

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

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Whoever comes here has gone past `__torch_function__`, and would compute with a tensor that has no data.
        raise ArgumentError(
            f"`{func}` is called on a value that is not computed yet, by code that is not written in Python. Make what calls it a cell "
            f"(`fl.cell`), or call it on what fl.batch returns\n  at {user_line()}"
        )

    def __dlpack__(self, **_: Any) -> Any:
        raise self._refused("__dlpack__", "Its memory cannot be shared; copy it: `torch.tensor(x.tolist())`")

    __dlpack_device__ = __dlpack__

    def __copy__(self) -> Any:
        # As torch does it: the same memory, and no history.
        return self.detach().requires_grad_(self.requires_grad)  # type: ignore[attr-defined]

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            )
        copied: Any = self.detach().clone().requires_grad_(self.requires_grad)  # type: ignore[attr-defined]
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        tensor = self._tensor()
        with recording_paused():
            # Of a view, torch would write the memory of all examples.
            return tensor.detach().clone().requires_grad_(tensor.requires_grad).__reduce_ex__(protocol)

    __hash__ = object.__hash__

    __class__ = property(lambda self: torch.Tensor)


def is_cut(handle: LazyTensor) -> bool:
    """Whether a value is a view that was made without gradients."""
    views = getattr(handle, "_source", (None,))[0]
    return not getattr(views, "grad_enabled", True)


LazyTensor.__name__ = LazyTensor.__qualname__ = "Tensor"
LazyTensor.__module__ = "torch"


def _empty_handle(dtype: str) -> Any:
    """A handle that stands for nothing yet."""
    nothing = _NOTHING.get(dtype)
    if nothing is None:
        # Of the dtype that it will stand for: `isinstance(x, torch.FloatTensor)` looks at the tensor itself.
        with torch.inference_mode(False), unwatched():
            nothing = _NOTHING[dtype] = torch.empty(0, dtype=getattr(torch, dtype), device="cpu")
    return make_subclass(LazyTensor, nothing)


_NOTHING: dict[str, torch.Tensor] = {}


def _new_handle(recorder: Any, value: Any, type: Type, depth: int, source: tuple[Any, Any] | None = None) -> LazyTensor:
    handle: LazyTensor = _empty_handle(type.dtype)
    handle._recorder, handle._value, handle._type, handle._depth = recorder, value, type, depth
    if source is not None:
        handle._source = source
    return handle


class _Freed(_Tensor):
    """What C makes of a handle that torch is to free: it has the same layout, and is freed as any tensor."""

    __slots__ = LazyTensor.__slots__


new_handle = fast_path.handles(LazyTensor, _Freed, Type, _empty_handle, _new_handle)


def become_tensor(handle: LazyTensor, tensor: torch.Tensor) -> None:
    """Make a tensor of a handle that somebody holds: the very object, of torch's own type from then on. What was the tensor is used up.

    Python changes the type of an object only to one with the same fields. A handle merely has more of them, which are empty by then.
    """
    vars(handle)  # from now on its attributes, if it is given any, are in a dict: else Python keeps them by type
    fast_path.forget_handle(handle)
    with unwatched():
        exchange_tensors(handle, tensor)
    _INCREASE(py_object(torch.Tensor))
    c_void_p.from_address(id(handle) + _TYPE_AT).value = id(torch.Tensor)
    _DECREASE(py_object(LazyTensor))


_TYPE_AT = object.__basicsize__ - sizeof(c_void_p)
"""Where an object has its type: last of what all objects have."""
_INCREASE, _DECREASE = pythonapi.Py_IncRef, pythonapi.Py_DecRef


def is_tensor(value: object) -> bool:
    """Whether this is a tensor that is computed, one of the user's say, and no handle."""
    return isinstance(value, torch.Tensor) and type(value) is not LazyTensor  # type: ignore[comparison-overlap]


class Given:
    """Stands for the recorder in handles of given tensors. When such a handle is used, it becomes an input of the graph, and its recorder
    is the real one from then on."""

    __slots__ = ("recorder",)

    is_over = False
    stands_for_recorder = True

    def __init__(self, recorder: ActiveRecorder) -> None:
        self.recorder = recorder

    def device_of(self, handle: LazyTensor) -> torch.device:
        return handle._value.device  # type: ignore[no-any-return]

    def requires_grad_of(self, handle: LazyTensor) -> bool:
        return handle._value.requires_grad  # type: ignore[no-any-return]

    def tensor_given_as(self, handle: LazyTensor) -> torch.Tensor:
        return handle._value  # type: ignore[no-any-return]

    def grad_of(self, handle: LazyTensor) -> torch.Tensor | None:
        return handle._value.grad  # type: ignore[no-any-return]

    def array_of(self, handle: LazyTensor) -> Any:
        return self.recorder.array_of(handle)

    def rows_of(self, handle: LazyTensor) -> list[LazyTensor]:
        return self.recorder.rows_of(handle)

    def demand(self, handles: Sequence[LazyTensor], form: Form) -> list[Any]:
        tensors = [handle._value for handle in handles]
        if form is TENSOR:
            return tensors
        with recording_paused():
            return [tensor.item() if form is NUMBER else tensor.detach() for tensor in tensors]

    def number_of(self, handle: LazyTensor) -> Any:
        return self.demand((handle,), NUMBER)[0]

    def call_function(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any] | None) -> Any:
        return self.recorder.call_function(function, args, kwargs)

    def set_item(self, handle: LazyTensor, index: Any, value: Any) -> None:
        self.recorder.set_item(handle, index, value)

    def set_data(self, handle: LazyTensor, value: Any) -> None:
        self.recorder.set_data(handle, value)

    def backward(self, handle: LazyTensor, args: Any, kwargs: Any) -> None:
        self.recorder.backward(handle, args, kwargs)

    def where(self) -> str:
        return self.recorder.where()


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


give_methods(LazyTensor)
