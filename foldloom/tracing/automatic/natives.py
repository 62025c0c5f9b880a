"""Calls that a captured function makes of code that is not followed: torch's functions and modules, and some of Python's own."""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from foldloom.torch_private import modules_of_functions
from foldloom.tracing.automatic.interpreter import Interpreter
from foldloom.tracing.automatic.reads import HandleMethod, is_record, parts_of
from foldloom.tracing.automatic.tracked import C, Iteration, NotRepeatable, Tracked, weakly
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.rules.base import DRAWS
from foldloom.tracing.rules.modules import MODULES, is_hooked
from foldloom.tracing.values.lazy_tensor import LazyTensor

_MAKES = frozenset((torch.zeros, torch.ones, torch.full, torch.eye))
"""Functions that make a constant."""

_ASKS = frozenset(
    (
        torch.is_tensor,
        torch.is_grad_enabled,
        torch.is_floating_point,
        torch.get_default_dtype,
        torch.broadcast_shapes,
        torch.finfo,
        torch.iinfo,
    )
)
"""Functions whose answer depends on types and on the mode alone."""

_PURE = frozenset(
    (
        abs,
        min,
        max,
        round,
        divmod,
        int,
        float,
        bool,
        str,
        math.sqrt,
        math.log,
        math.exp,
        math.ceil,
        math.floor,
        math.prod,
        slice,
        torch.Size,
    )
)
"""Functions of plain values."""

_OPERATORS = frozenset(
    (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.matmul,
        operator.neg,
        operator.getitem,
        operator.eq,
        operator.lt,
    )
)

_STATEFUL = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU,
)  # fmt: skip
"""Modules that draw random numbers or keep statistics while they are trained."""


class Natives:
    """Calls what is not followed, and notes constants and numbers that become tensors."""

    def __init__(self) -> None:
        self.constants: dict[int, tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]] = {}
        """Values that are always the same: function and arguments, by number."""
        self.numbers: dict[int, int] = {}
        """Registers of Python numbers that became tensors, by number of the value."""
        self.kinds: dict[int, type] = {}
        """What kinds of numbers those are, by register."""
        self.modules: dict[int, nn.Module] = {}
        """Torch's modules that were called."""

    def __call__(
        self, run: Interpreter, called: Any, tracked: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]
    ) -> Tracked:
        if isinstance(called, HandleMethod):
            return self._method(run, called, args, kwargs)
        if isinstance(called, nn.Module):
            return self._module(run, called, tracked, args, kwargs)
        handler = _HANDLERS.get(called) if _is_hashable(called) else None
        if handler is not None:
            run.tracker.settle(tracked)
            return handler(run, args, kwargs)
        if called is torch.tensor:
            run.tracker.settle(tracked)
            return self._number(run, args, kwargs)
        if not _is_hashable(called):
            raise NotRepeatable(f"it calls a {type(called).__name__}")
        if _is_named_tuple(called) or is_record(called):
            settle = run.tracker.settle
            run.tracker.settle(tracked)
            return Tracked(called(*map(settle, args), **{name: settle(value) for name, value in kwargs.items()}))
        settled, named = _settled(run, args, kwargs)
        if called in _PURE or called in _OPERATORS:
            _refuse_values(settled, named, called in _PURE)
            run.tracker.settle(tracked)
            return Tracked(called(*settled, **named))
        if not _is_of_torch(called):
            raise NotRepeatable(f"it calls {getattr(called, '__name__', type(called).__name__)}, which is not followed")
        run.tracker.settle(tracked)
        return self._torch(called, settled, named)

    # ---- Torch's functions.

    def _method(
        self, run: Interpreter, method: HandleMethod, args: list[Tracked], kwargs: dict[str, Tracked]
    ) -> Tracked:
        settled, named = _settled(run, args, kwargs)
        function = getattr(torch.Tensor, method.name, None)
        if function in DRAWS or "out" in named:
            raise NotRepeatable(f"it calls `{method.name}` of a tensor")
        return Tracked(getattr(method.handle, method.name)(*settled, **named))

    def _torch(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Tracked:
        name = getattr(function, "__name__", "")
        if function in _MAKES:
            return self._constant(function, args, kwargs)
        if function in _ASKS:
            return Tracked(function(*args, **kwargs))
        takes_values = any(map(_is_value, [*args, *kwargs.values()]))
        if not takes_values or function in DRAWS or (name.endswith("_") and not name.endswith("__")):
            raise NotRepeatable(f"it calls {name or type(function).__name__}")
        if kwargs.get("out") is not None or kwargs.get("inplace") or any(arg is True for arg in args):
            raise NotRepeatable(f"it calls {name} with a flag that may change an argument")
        if kwargs.get("dropout_p") or (name == "scaled_dot_product_attention" and len(args) > 4 and args[4]):
            raise NotRepeatable(f"it calls {name} with dropout")
        return Tracked(function(*args, **kwargs))

    def _constant(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Tracked:
        if kwargs.get("requires_grad") or kwargs.get("out") is not None:
            raise NotRepeatable(f"it calls {function.__name__}")
        made = function(*args, **kwargs)
        return self._noted(made, function, tuple(args), kwargs)

    def _noted(self, made: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tracked:
        if type(made) is not LazyTensor or type(made._value) is not int:
            raise NotRepeatable(f"it calls {function.__name__}")
        self.constants[made._value] = (function, args, tuple(kwargs.items()))
        return Tracked(made)

    def _number(self, run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
        """`torch.tensor` of a number: the number may be another one in the next call."""
        value = args[0].value if len(args) == 1 and not kwargs else None
        if type(value) not in (int, float, bool):
            raise NotRepeatable("it calls torch.tensor with something else than a number")
        made: Any = torch.tensor(value)
        register = args[0].register
        if register is None or args[0].is_settled:
            run.tracker.settle(args[0])
            return self._noted(made, torch.tensor, (value,), {})
        run.tracker.program.check(C.CHECK_NUMBER, register, 0, type(value))
        self.numbers[made._value] = register
        self.kinds[register] = type(value)
        return Tracked(made)

    # ---- Modules.

    def _module(
        self, run: Interpreter, module: nn.Module, tracked: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]
    ) -> Tracked:
        if tracked.register is None or isinstance(module, Cell):
            raise NotRepeatable(f"it calls a {type(module).__name__}")
        if type(module) in MODULES and type(module) is not nn.Sequential:
            return self._torch_module(run, module, tracked, args, kwargs)
        kind = run.tracker.settle_type(tracked)
        if kind.__call__ is not nn.Module.__call__ or isinstance(module, torch.jit.ScriptModule):
            raise NotRepeatable(f"{kind.__name__} has its own way to be called")
        if is_hooked(module) or module._compiled_call_impl is not None or "forward" in module.__dict__:
            raise NotRepeatable(f"{kind.__name__} has hooks, or was compiled")
        run.tracker.program.check(C.CHECK_UNHOOKED, tracked.register)
        if type(module) is nn.Sequential:
            if kwargs or len(args) != 1:
                raise NotRepeatable("it calls a Sequential with other arguments than one")
            x = args[0]
            for part in parts_of(run.tracker, tracked):
                x = run.call(part, [x], {})
            return x
        found = _found(kind, "forward")
        if not isinstance(found, types.FunctionType):
            raise NotRepeatable(f"forward of {kind.__name__} is no function")
        forward = run.tracker.read(found, C.READ_CONSTANT, tracked.register, name=weakly(found))
        return run.call_function(forward, [tracked, *args], kwargs)

    def _torch_module(
        self, run: Interpreter, module: nn.Module, tracked: Tracked, args: list[Tracked], kwargs: dict[str, Tracked]
    ) -> Tracked:
        parts = list(module.modules())
        draws = [
            part for part in parts if part.training and (isinstance(part, _STATEFUL) or getattr(part, "dropout", None))
        ]
        if draws or any(map(is_hooked, parts)) or any(getattr(part, "inplace", False) for part in parts):
            raise NotRepeatable(
                f"it calls a {type(module).__name__} that draws random numbers, keeps statistics, has hooks or works in place"
            )
        settled, named = _settled(run, args, kwargs)
        assert tracked.register is not None
        run.tracker.settle(tracked)
        result = module(*settled, **named)
        if module not in run.tracker.recorder.graph.module_states:
            raise NotRepeatable(f"it calls a {type(module).__name__} in a way that takes several operations")
        run.tracker.program.check(C.CHECK_STATE, tracked.register)
        self.modules[id(module)] = module
        return Tracked(result)


def _found(kind: type, name: str) -> Any:
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)


def _is_hashable(value: Any) -> bool:
    return getattr(type(value), "__hash__", None) is not None


def _is_of_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, torch.Tensor):
        return True
    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return function.__objclass__ in torch.Tensor.__mro__
    module = owner.__name__ if isinstance(owner, types.ModuleType) else getattr(function, "__module__", None)
    is_builtin = module is None and isinstance(function, types.BuiltinFunctionType)
    return not isinstance(function, type) and (
        module in modules_of_functions or (is_builtin and getattr(torch, function.__name__, None) is function)
    )


def _is_named_tuple(called: Any) -> bool:
    return (
        isinstance(called, type)
        and issubclass(called, tuple)
        and hasattr(called, "_fields")
        and called.__init__ is object.__init__
        and getattr(getattr(called.__new__, "__code__", None), "co_filename", "").startswith(
            "<string>"
        )  # made by `namedtuple`
    )


def _is_value(argument: Any) -> bool:
    if isinstance(argument, (list, tuple)):
        return any(map(_is_value, argument))
    return isinstance(argument, torch.Tensor)


def _settled(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> tuple[list[Any], dict[str, Any]]:
    settle = run.tracker.settle_known
    return [settle(arg) for arg in args], {name: settle(value) for name, value in kwargs.items()}


def _refuse_values(args: list[Any], kwargs: dict[str, Any], is_pure: bool) -> None:
    if is_pure and any(map(_is_value, [*args, *kwargs.values()])):
        raise NotRepeatable("it needs the value of a tensor")


# ---- Python's own functions, of values that may be read anew by the next call.


def _length(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    (container,) = args
    value = container.value
    if isinstance(value, tuple) or (type(value) is list and container.register is None):
        return Tracked(len(run.tracker.items(container)))
    if type(value) is LazyTensor and (value._type.ragged or not value._type.shape):
        raise NotRepeatable("it asks for the length of a number, or how many rows there are")
    if type(value) in (LazyTensor, str, range):
        return Tracked(len(run.tracker.settle(container)))
    if isinstance(value, (nn.ModuleList, nn.Sequential)) and container.register is not None:
        return Tracked(len(parts_of(run.tracker, container)))
    raise NotRepeatable(f"it asks for the length of a {type(value).__name__}")


def _range(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    return Tracked(range(*[run.tracker.settle(arg) for arg in args]))


def _together(items: list[Tracked]) -> Tracked:
    return Tracked(tuple([item.value for item in items]), None, items)


def _zip(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    columns = [run.elements(arg) for arg in args]
    if kwargs and len({len(column) for column in columns}) > 1:
        raise NotRepeatable("it goes over lists of different lengths")
    return Tracked(Iteration([_together(list(row)) for row in zip(*columns, strict=False)]))


def _enumerate(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    start = run.tracker.settle(args[1]) if len(args) > 1 else run.tracker.settle(kwargs["start"]) if kwargs else 0
    return Tracked(Iteration([_together([Tracked(n), item]) for n, item in enumerate(run.elements(args[0]), start)]))


def _reversed(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    return Tracked(Iteration(run.elements(args[0])[::-1]))


def _list(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    items = list(run.elements(args[0])) if args else []
    return Tracked([item.value for item in items], None, items)


def _tuple(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    return _together(list(run.elements(args[0])) if args else [])


def _isinstance(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    value, kinds = args
    settled = run.tracker.settle(kinds)
    for kind in settled if isinstance(settled, tuple) else (settled,):
        if type(kind) is not type and kind is not torch.Tensor and kind is not nn.Parameter:
            raise NotRepeatable("it asks for an instance of a class with its own way to tell")
    if value.register is not None and type(value.value) is not LazyTensor:
        run.tracker.settle_type(value)
    return Tracked(isinstance(value.value, settled))


def _sum(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    total: Any = run.tracker.settle(args[1]) if len(args) > 1 else run.tracker.settle(kwargs["start"]) if kwargs else 0
    for item in run.elements(args[0]):
        total = total + run.tracker.settle_known(item)
    return Tracked(total)


def _append(run: Interpreter, args: list[Tracked], kwargs: dict[str, Tracked]) -> Tracked:
    run.tracker.append(args[0], args[1])
    return Tracked(None)


_HANDLERS: dict[Any, Callable[[Interpreter, list[Tracked], dict[str, Tracked]], Tracked]] = {
    len: _length, range: _range, zip: _zip, enumerate: _enumerate, reversed: _reversed, list: _list, tuple: _tuple,
    isinstance: _isinstance, sum: _sum, list.append: _append,
}  # fmt: skip
