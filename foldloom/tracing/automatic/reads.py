"""What a captured function reads by name or by place: globals, closures, attributes, items. Where Python finds them, as reads of a guard
program."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, NamedTuple

import torch
from torch import nn

from foldloom.tracing.automatic.tracked import INNER, PLAIN, C, NotRepeatable, Tracked, Tracker, weakly
from foldloom.tracing.fibers.module_state import guarded
from foldloom.tracing.values.lazy_tensor import LazyTensor

_HOMES = ("_parameters", "_buffers", "_modules")
_NONE = object()

_OF_HANDLES = frozenset(
    (
        "shape",
        "dtype",
        "ndim",
        "T",
        "mT",
        "H",
        "mH",
        "real",
        "imag",
        "itemsize",
        "is_cuda",
        "is_cpu",
        "layout",
        "is_sparse",
    )
)
"""Attributes of a tensor that its type decides, or that are operations."""

_OF_ROWS = frozenset(("shape", "size", "numel", "nelement", "T", "mT", "H", "mH", "unbind", "split", "chunk", "tolist"))
"""What tells how many rows there are."""

_DENIED_METHODS = frozenset(
    ("backward", "register_hook", "retain_grad", "requires_grad_", "register_post_accumulate_grad_hook", "data_ptr", "storage", "untyped_storage",
     "is_shared", "share_memory_", "set_", "record_stream", "map_", "apply_", "bernoulli", "multinomial", "is_contiguous", "stride", "is_set_to",
     "element_size", "get_device", "storage_offset", "uniform", "exponential", "normal")
)  # fmt: skip


class Method(NamedTuple):
    """A function with the object that it was found on."""

    function: Tracked
    owner: Tracked


class HandleMethod(NamedTuple):
    """A method of a value that is not computed yet."""

    handle: LazyTensor
    name: str


class PropertyCall(NamedTuple):
    """An attribute that calls a function."""

    function: Tracked
    owner: Tracked


INNER.update((Method, HandleMethod, PropertyCall))


def closure_variable(tracker: Tracker, function: Tracked, number: int) -> Tracked:
    """A variable of the function around, which is not followed itself."""
    name = function.value.__code__.co_freevars[number]
    try:
        value = function.value.__closure__[number].cell_contents
    except ValueError:
        raise NotRepeatable(f"`{name}` has no value") from None
    assert function.register is not None, "functions with closures were read"
    return tracker.read(value, C.READ_CLOSURE, function.register, number)


def global_variable(tracker: Tracker, function: Tracked, name: str) -> Tracked:
    """A global of the function's module, or a builtin."""
    register = function.register
    assert register is not None, "the function that globals belong to was read"
    found = function.value.__globals__
    if name in found:
        return tracker.read(found[name], C.READ_GLOBAL, register, name=name)
    builtins = function.value.__builtins__
    if name not in builtins:
        raise NotRepeatable(f"there is no `{name}`")
    return tracker.read(builtins[name], C.READ_BUILTIN, register, name=name)


def subscript(tracker: Tracker, owner: Tracked, index: Any) -> Tracked | None:
    """What ``owner[index]`` is; None if that is a call like others."""
    value = owner.value
    if type(value) is LazyTensor or owner.register is None:
        if owner.items is not None and type(index) is int:
            return owner.items[index]
        return Tracked(tracker.settle_known(owner)[index])
    if (type(value) is list or isinstance(value, tuple)) and type(index) in (int, slice):
        items = tracker.items(owner)
        return items[index] if type(index) is int else Tracked(value[index], None, items[index])
    if type(value) is dict:
        if index not in value:
            raise NotRepeatable("it looks for an entry that is not there")
        return tracker.read(value[index], C.READ_ENTRY, owner.register, name=index)
    if isinstance(value, (nn.ModuleList, nn.Sequential)) and type(index) is int:
        return parts_of(tracker, owner)[index]
    if isinstance(value, str):
        return Tracked(tracker.settle(owner)[index])
    return None


def attribute(tracker: Tracker, owner: Tracked, name: str) -> Tracked | PropertyCall:
    """What ``owner.name`` is; the value may be a `Method` or a `HandleMethod`."""
    value = owner.value
    if type(value) is LazyTensor:
        return _of_handle(value, name)
    if isinstance(value, torch.Tensor):
        tracker.settle(owner)
        return _of_parameter(value, name)
    if type(value) is list and name == "append":
        return Tracked(Method(Tracked(list.append), owner))
    if owner.register is None:
        return _of_local(owner, name)
    if isinstance(value, type):
        tracker.settle(owner)
        return _of_class(tracker, owner, name)
    return _of_object(tracker, owner, name)


def _of_handle(handle: LazyTensor, name: str) -> Tracked:
    if handle._type.ragged and name in _OF_ROWS:
        raise NotRepeatable(f"it asks for `{name}` of a value with any number of rows")
    if name in _OF_HANDLES:
        return Tracked(getattr(handle, name))
    if name in _DENIED_METHODS or name.endswith("_") or name.startswith("_"):
        raise NotRepeatable(f"it calls `{name}` of a tensor")
    if not callable(getattr(type(handle), name, None)):
        raise NotRepeatable(f"it reads `{name}` of a tensor")
    return Tracked(HandleMethod(handle, name))


def _of_parameter(tensor: torch.Tensor, name: str) -> Tracked:
    if name in ("shape", "dtype", "ndim", "T", "mT"):
        return Tracked(getattr(tensor, name))
    if (
        name.endswith("_")
        or name.startswith("_")
        or name in _DENIED_METHODS
        or not callable(getattr(type(tensor), name, None))
    ):
        raise NotRepeatable(f"it reads `{name}` of a parameter")
    return Tracked(getattr(tensor, name))


_LOCAL = (list, tuple, dict, str, int, float, bool, torch.Size, torch.dtype, torch.device, range, slice)


def _of_local(owner: Tracked, name: str) -> Tracked:
    """Of what was made in the call itself."""
    value = owner.value
    if (
        type(value) in _LOCAL
        or isinstance(value, types.ModuleType)
        or (isinstance(value, tuple) and hasattr(type(value), "_fields"))
    ):
        if type(value) is list:
            raise NotRepeatable(f"it calls `{name}` of a list")
        if type(value) is dict and name not in ("get", "items", "keys", "values"):
            raise NotRepeatable(f"it calls `{name}` of a dict")
        return Tracked(getattr(value, name))
    if is_record(type(value)) and name in [field.name for field in dataclasses.fields(value)]:
        return Tracked(getattr(value, name))
    raise NotRepeatable(f"it reads `{name}` of a {type(value).__name__} that it made")


def _in_class(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return _NONE


def _of_class(tracker: Tracker, owner: Tracked, name: str) -> Tracked:
    """Functions and plain values of a class, by its own name."""
    kind, register = owner.value, owner.register
    found = _in_class(kind, name)
    is_function = isinstance(found, (staticmethod, types.FunctionType))
    if register is None or type(kind) is not type or not (is_function or type(found) in PLAIN):
        raise NotRepeatable(f"it reads `{name}` of class {kind.__name__}")
    return tracker.read(getattr(kind, name), C.READ_SLOT, register, name=name)


def is_record(kind: object) -> bool:
    """Whether this is a dataclass that is no more than its fields."""
    return (
        isinstance(kind, type)
        and type(kind) is type
        and dataclasses.is_dataclass(kind)
        and not hasattr(kind, "__post_init__")
        and kind.__new__ is object.__new__
        and "__init__" in kind.__dict__
        and kind.__init__.__code__.co_filename == "<string>"  # made by `dataclass`, from the fields
        and all(
            field.init and not field.kw_only and field.default_factory in (dataclasses.MISSING, list, dict)
            for field in dataclasses.fields(kind)
        )
        and (kind.__setattr__ is object.__setattr__ or getattr(kind, "__dataclass_params__").frozen)  # noqa: B009 (mypy does not know it)
    )


def _of_object(tracker: Tracker, owner: Tracked, name: str) -> Tracked | PropertyCall:
    value = owner.value
    register = owner.register
    assert register is not None, "only what was read has its attributes read"
    kind = tracker.settle_type(owner)
    finds: Any = kind.__getattribute__
    if finds not in (object.__getattribute__, types.ModuleType.__getattribute__):
        raise NotRepeatable(f"class {kind.__name__} has its own way to find attributes")
    in_class = _in_class(kind, name)
    if isinstance(in_class, property):
        if not isinstance(in_class.fget, types.FunctionType):
            raise NotRepeatable(f"`{name}` of {kind.__name__} is a property without a Python function")
        return PropertyCall(_constant(tracker, register, in_class.fget), owner)
    if isinstance(in_class, types.MemberDescriptorType) or _is_field(kind, in_class):
        return tracker.read(getattr(value, name), C.READ_SLOT, register, name=name)
    if in_class is not _NONE and hasattr(type(in_class), "__set__"):
        raise NotRepeatable(f"`{name}` of {kind.__name__} is a descriptor")
    attributes = getattr(value, "__dict__", {})
    if name in attributes:
        return tracker.read(attributes[name], C.READ_ATTRIBUTE, register, name=name)
    if in_class is not _NONE:
        return _from_class(tracker, owner, name, in_class)
    if isinstance(value, nn.Module) and _in_class(kind, "__getattr__") is nn.Module.__getattr__ and name not in guarded:
        for home in _HOMES:
            if name in attributes[home]:
                return tracker.read(attributes[home][name], C.READ_PART, register, name=name, other=home)
    raise NotRepeatable(f"`{name}` of {kind.__name__} is not where attributes are")


def _is_field(kind: type, in_class: Any) -> bool:
    """Whether this is a field of a named tuple."""
    return issubclass(kind, tuple) and type(in_class).__name__ == "_tuplegetter"


def _from_class(tracker: Tracker, owner: Tracked, name: str, found: Any) -> Tracked:
    """What a class has under a name, where the object itself has nothing: the same as long as the class is not changed."""
    assert owner.register is not None
    tracker.program.check(C.CHECK_ABSENT, owner.register, hash(name), name)
    if isinstance(found, types.FunctionType):
        return Tracked(Method(_constant(tracker, owner.register, found), owner))
    if isinstance(found, staticmethod):
        return _constant(tracker, owner.register, found.__func__)
    if hasattr(type(found), "__get__"):
        raise NotRepeatable(f"`{name}` of {type(owner.value).__name__} is a descriptor")
    return _constant(tracker, owner.register, found)


def _constant(tracker: Tracker, register: int, value: Any) -> Tracked:
    made = tracker.read(value, C.READ_CONSTANT, register, name=weakly(value))
    made.is_settled = not isinstance(value, (list, dict, set))
    return made


def parts_of(tracker: Tracker, tracked: Tracked) -> list[Tracked]:
    """The modules in a Sequential or ModuleList that was read."""
    module, register = tracked.value, tracked.register
    assert register is not None
    tracker.settle_type(tracked)
    entries = tracker.read(module.__dict__["_modules"], C.READ_ATTRIBUTE, register, name="_modules")
    assert entries.register is not None
    tracker.program.check(C.CHECK_KEYS, entries.register, 0, tuple(module._modules))
    return [tracker.read(part, C.READ_ENTRY, entries.register, name=name) for name, part in module._modules.items()]
