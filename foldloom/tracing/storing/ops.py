"""Ops in a file: types, names of weights, settings. What is read is looked through as if a stranger had written it: functions are those of
torch that take tensors and change none of them, classes are Python's own containers."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import torch

from foldloom.errors import FoldloomError, RecordingError
from foldloom.graph import Op, Type
from foldloom.pytrees import Constant, unflatten
from foldloom.pytrees.messages import shown
from foldloom.torch_private import private_effects
from foldloom.tracing.functions.calls import OPERAND, SHARED, Call, Mark, call_of_template, function_named
from foldloom.tracing.mutation.functional import changed_beside_the_first, changes_in_place
from foldloom.tracing.weight_names import DerivedName, derived_name

MOST_LEVELS = 100

_CLASSES: dict[str, type] = {
    "tuple": tuple, "list": list, "dict": dict, "slice": slice, "int": int, "float": float, "bool": bool, "str": str, "complex": complex,
    "NoneType": type(None), "dtype": torch.dtype, "device": torch.device, "layout": torch.layout, "memory_format": torch.memory_format,
}  # fmt: skip
_NAMES = {cls: name for name, cls in _CLASSES.items()}
_OPERATORS = frozenset(
    (
        "abs", "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "invert", "le", "lshift", "lt", "matmul", "mod", "mul", "ne", "neg", "or_",
        "pos", "pow", "rshift", "sub", "truediv", "xor",
    )
)  # fmt: skip
_EFFECTS = frozenset(
    (
        "__array__", "__deepcopy__", "__dlpack__", "__setstate__", "backward", "const_data_ptr",
        "data_ptr", "dequantize", "module_load", "numpy", "pin_memory", "record_stream", "register_hook", "register_post_accumulate_grad_hook", "resize",
        "resize_as", "retain_grad", "storage", "tolist", "untyped_storage", *private_effects,
    )
)  # fmt: skip
"""What does something to tensors, or shows their memory, though its name does not end in an underscore."""
_OF_BACKENDS = re.compile("(batch_norm_|cudnn_|fbgemm_|fused_moving_|miopen_|mkldnn_|native_batch_norm|quantized_)")
"""How functions begin that torch calls itself: some change running statistics, others take what is packed as it is."""
_MARKS = {"OPERAND": OPERAND, "SHARED": SHARED}
_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def count_of(value: Any) -> int:
    if type(value) is not int or not -1 <= value < 1 << 62:
        raise RecordingError(f"{shown(value)} is no count")
    return value


def stored_type(type: Type) -> list[Any]:
    return [list(type.shape), type.dtype]


def type_of(stored: Any) -> Type:
    shape, dtype = stored
    of_torch(torch.dtype, dtype)
    if not isinstance(shape, list) or any(count_of(size) < 0 for size in shape[1:]):
        raise RecordingError(f"{shown(stored)} is no type")
    return Type([count_of(size) for size in shape], dtype)


def stored_op(op: Op) -> dict[str, Any]:
    stored: dict[str, Any] = {field.name: getattr(op, field.name) for field in fields(Op)}
    if ":" in op.key and not _is_of_torch(op.key):
        raise RecordingError(
            f"{op} calls {op.key}, which is no function of torch's: make it a cell, or keep the recording by `pickle`"
        )
    for name in ("inputs", "outputs"):
        stored[name] = [stored_type(type) for type in stored[name]]
    if op.mode is not None:
        raise RecordingError(
            f"{op} was called in a mode (autocast, say) that a file cannot hold: keep the recording by `pickle`"
        )
    for name in ("settings", "mode", "training"):
        stored[name] = _encoded(stored[name], op)
    stored["shared"] = _stored_names(op)
    return stored


def _stored_names(op: Op) -> dict[str, Any]:
    """The names of the weights that an op is given. A derived weight is an entry that tells by their numbers what it is computed from."""
    entries: list[Any] = []
    number_of: dict[Any, int] = {}

    def add(name: Any) -> int:
        if name not in number_of:
            entry = name
            if isinstance(name, DerivedName):
                if name.mode is not None or not _is_of_torch(name.function):
                    raise RecordingError(
                        f"{op} is given a weight that {name.function} has made, in a mode or by a function that a file cannot hold: "
                        "keep the recording by `pickle`"
                    )
                entry = [name.function, _encoded(name.template, op), [add(source) for source in name.sources]]
            number_of[name] = len(entries)
            entries.append(entry)
        return number_of[name]

    return {"given": [add(name) for name in op.shared], "entries": entries}


def _names(stored: Any) -> tuple[str | DerivedName, ...]:
    """The same, read: only functions of torch's may have made a weight, of names before it."""
    names: list[str | DerivedName] = []
    for entry in stored["entries"]:
        if isinstance(entry, str):
            names.append(entry)
            continue
        function, template, numbers = entry
        if not isinstance(function, str) or not _is_of_torch(function):
            raise RecordingError(
                f"it makes a weight by {shown(function)}, which is no function of torch's that only computes"
            )
        sources = tuple([_name(names, number) for number in numbers])
        name = derived_name(function, _decoded(template), sources, None)
        _check_function(function, name.template, (), len(sources), ())
        names.append(name)
    return tuple([_name(names, number) for number in stored["given"]])


def _name(names: Sequence[str | DerivedName], number: Any) -> str | DerivedName:
    if not 0 <= count_of(number) < len(names):
        raise RecordingError(f"it is given a weight with the number {shown(number)}, of {len(names)}")
    name: str | DerivedName = names[number]
    return name


def op_of(stored: Any) -> Op:
    key, label = stored["key"], stored["label"]
    if set(stored) != {field.name for field in fields(Op)} or not isinstance(key, str) or not isinstance(label, str):
        raise RecordingError(f"{shown(stored)} is no operation")
    if ":" in key and not _is_of_torch(key):
        raise RecordingError(f"it calls {shown(key)}, which is no function of torch's that only computes")
    found = Op(
        key,
        tuple([type_of(type) for type in stored["inputs"]]),
        tuple([type_of(type) for type in stored["outputs"]]),
        settings=_decoded(stored["settings"]),
        shared=_names(stored["shared"]),
        mode=_decoded(stored["mode"]),
        repeatable=stored["repeatable"] is True,
        training=_decoded(stored["training"]),
        label=label[:200],
    )
    _check_call(found)
    return found


def _check_call(op: Op) -> None:
    """What an operation was called with has the form that its kind has: for functions the nesting of arguments and what is in it."""
    is_of_modes = isinstance(op.training, tuple) and all(
        isinstance(mode, tuple) and len(mode) == 2 and isinstance(mode[0], str) and isinstance(mode[1], bool)
        for mode in op.training
    )
    if not is_of_modes or op.mode is not None or not op.outputs:
        raise RecordingError(f"{shown(op.key)} is called in no mode that there is")
    if op.is_input:
        return
    if not (isinstance(op.settings, tuple) and len(op.settings) == 2):
        raise RecordingError(f"{shown(op.key)} is called with {shown(op.settings)}")
    nesting, given = op.settings
    if ":" in op.key:
        _check_function(op.key, op.settings, op.inputs, len(op.shared), op.outputs)
        return
    unflatten(nesting, iter([None] * len(op.inputs)))
    if not all(isinstance(setting, tuple) and len(setting) == 3 and isinstance(setting[0], str) for setting in given):
        raise RecordingError(f"{shown(op.key)} is called with {shown(op.settings)}")


def _check_function(
    key: str, template: Any, operands: tuple[Type, ...], weights: int, outputs: tuple[Type, ...]
) -> None:
    """That a call has the form of one, and changes nothing that it is given: weights are those of whoever loads the file."""
    call = call_of_template(function_named(key), template, operands, [torch.empty(0)] * weights, outputs)
    marks = [code for code in template[1] if isinstance(code, Mark)]
    is_call = type(call.args) is tuple and type(call.kwargs) is dict and all(type(name) is str for name in call.kwargs)
    if not is_call or marks.count(OPERAND) != len(operands) or marks.count(SHARED) != weights:
        raise RecordingError(f"{shown(key)} is called with {shown(template)}")
    if _changes_arguments(call):
        raise RecordingError(f"it calls {shown(key)} so that it changes what it is given")


def _changes_arguments(call: Call) -> bool:
    given = call.kwargs
    if inspect.isfunction(call.function):  # torch's builtins take these two by their names alone
        given = inspect.signature(call.function).bind(*call.args, **call.kwargs).arguments
    is_told_to = given.get("out") is not None or given.get("inplace", False) is not False
    return is_told_to or bool(changed_beside_the_first(call.function, call.args, call.kwargs))


@cache
def _functions_of_torch() -> frozenset[Any]:
    """Those that take tensors, and that torch lets others override: none of them reads or writes a file. Those that change tensors are left
    out, as a recording has none: a change in place is recorded as a new value."""
    overridable: dict[Any, list[Callable[..., Any]]] = torch.overrides.get_overridable_functions()
    return frozenset([function for functions in overridable.values() for function in functions if _is_pure(function)])


def _is_pure(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return not (changes_in_place(function) or name in _EFFECTS or _OF_BACKENDS.match(name))


def _is_of_torch(key: str) -> bool:
    """Whether the key of an op names a function of torch's that takes tensors. Nothing is imported to find out."""
    module, _, name = key.partition(":")
    if module == "_operator":
        return name in _OPERATORS
    if module.partition(".")[0] != "torch" or (module != "torch.Tensor" and module not in sys.modules):
        return False
    try:
        return function_named(key) in _functions_of_torch()
    except (FoldloomError, AttributeError, TypeError, ImportError):
        return False


# ---- Settings: what is hashable and plain.


def _encoded(value: Any, op: Op) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is tuple:
        return [_encoded(item, op) for item in value]
    if type(value) is float:
        return {"float": value.hex()}
    if isinstance(value, type) and value in _NAMES:
        return {"class": _NAMES[value]}
    if isinstance(value, _OF_TORCH):
        return {_NAMES[type(value)]: str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, Mark):
        return {"mark": repr(value)}
    if isinstance(value, Constant):
        return {"constant": _encoded(value.value, op)}
    if isinstance(value, Type):
        return {"type": stored_type(value)}
    raise RecordingError(
        f"{op} was called with {shown(value)} ({type(value).__name__}), which a file cannot hold: keep the recording by `pickle`"
    )


def _decoded(stored: Any, level: int = 0) -> Any:
    if level > MOST_LEVELS:
        raise RecordingError("it is nested too deeply")
    if stored is None or type(stored) in (bool, int, str):
        return stored
    if isinstance(stored, list):
        return tuple([_decoded(item, level + 1) for item in stored])
    ((kind, content),) = stored.items()
    if kind == "float":
        return float.fromhex(content)
    if kind == "class":
        return _CLASSES[content]
    if kind in ("dtype", "layout", "memory_format"):
        return of_torch(_CLASSES[kind], content)
    if kind == "device":
        return torch.device(content)
    if kind == "mark":
        return _MARKS[content]
    if kind == "constant":
        return Constant(_decoded(content, level + 1))
    if kind == "type":
        return type_of(content)
    raise RecordingError(f"{shown(stored)} is nothing that fl.save writes")


def of_torch(cls: type, name: Any) -> Any:
    found = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(found, cls):
        raise RecordingError(f"{shown(name)} is no {cls.__name__} of torch's")
    return found
