"""A call of a torch function, with its arguments taken apart.

What is the same for all members of a step (numbers, flags, weights) stays in the arguments; each value of one example is an
`Operand`, to be replaced by the block of all members. A *template* is the same in a form that can be compared, hashed
and pickled: it is what tells two calls of one function apart.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from foldloom.errors import CellMismatchError
from foldloom.graph import Type
from foldloom.pytrees import flatten, leaf, map_leaves, unflatten
from foldloom.torch_private import functions_of_nn


@leaf
class Operand(NamedTuple):
    number: int
    type: Type

    @property
    def ndim(self) -> int:
        return len(self.type.shape)


class Mark:
    """Stands in a template where a value or a weight goes."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


OPERAND = Mark("OPERAND")
SHARED = Mark("SHARED")


class Call(NamedTuple):
    """``args`` and ``kwargs`` hold operands, weights and everything else in its place."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: tuple[Type, ...]
    outputs: tuple[Type, ...]

    def filled(self, blocks: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with each operand replaced."""

        def block_of(leaf: Any) -> Any:
            return blocks[leaf.number] if type(leaf) is Operand else leaf

        return map_leaves(self.args, block_of), map_leaves(self.kwargs, block_of)

    def apply(self, *blocks: Any) -> Any:
        args, kwargs = self.filled(blocks)
        return self.function(*args, **kwargs)

    def tensors(self) -> list[Operand | torch.Tensor]:
        """All operands and weights, in order."""
        found: list[Any] = []
        flatten((self.args, self.kwargs), found)
        return [leaf for leaf in found if isinstance(leaf, (Operand, torch.Tensor))]


def static(value: Any) -> Hashable:
    """A setting, told from what merely equals it: 1 from True and 1.0, 0.0 from -0.0."""
    if type(value) is float:
        return float, value.hex()
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return type(value), value


class _Itself:
    """A setting that cannot be compared, such as an array: equal to nothing else."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _value_of(setting: Any) -> Any:
    if type(setting) is _Itself:
        return setting.value
    kind, value = setting
    return float.fromhex(value) if kind is float else value


def call_of_template(
    function: Callable[..., Any],
    template: Any,
    operands: tuple[Type, ...],
    shared: Sequence[torch.Tensor],
    outputs: tuple[Type, ...],
) -> Call:
    nesting, codes = template
    weights = iter(shared)
    numbered = iter([Operand(number, type) for number, type in enumerate(operands)])

    def value_of(code: Any) -> Any:
        if code is OPERAND:
            return next(numbered)
        return next(weights) if code is SHARED else _value_of(code)

    args, kwargs = unflatten(nesting, iter([value_of(code) for code in codes]))
    return Call(function, args, kwargs, operands, outputs)


_function_of_name: dict[str, Callable[..., Any]] = {}
_name_of_function: dict[Callable[..., Any], str] = {}


def name_of(function: Callable[..., Any]) -> str:
    """A name under which the function is found again, in this process or, where it can be imported, in another."""
    name = _name_of_function.get(function)
    if name is None:
        if function.__name__ == "__get__":  # of a property, such as `x.T`
            name = f"torch.Tensor:{getattr(function, '__self__').__name__}.__get__"  # noqa: B009
        else:
            module = getattr(function, "__module__", None) or _owner_of(function)
            name = f"{module}:{getattr(function, '__qualname__', None) or function.__name__}"
        if _function_of_name.get(name, function) is not function:
            name = f"{name}#{len(_function_of_name)}"
        _function_of_name[name] = function
        _name_of_function[function] = name
    return name


def _owner_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", "")
    if getattr(torch.Tensor, name, None) is function:
        return "torch.Tensor"
    return functions_of_nn.__name__ if getattr(functions_of_nn, name, None) is function else "torch"


def function_named(name: str) -> Callable[..., Any]:
    function = _function_of_name.get(name)
    if function is None:
        module, _, path = name.partition(":")
        try:
            found: Any = torch.Tensor if module == "torch.Tensor" else importlib.import_module(module)
            parts = path.split(".")
            # Torch's own functions say that they are methods of a class that nobody can import.
            is_builtin = parts[0] == "_VariableFunctionsClass" or (module == "torch.Tensor" and parts[-1] != "__get__")
            for part in parts[-1:] if is_builtin else parts:
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise CellMismatchError(
                f"the plan calls {name}, which this process cannot find. Define the function in a module that can be imported, "
                "or record in the process that runs"
            ) from error
        function = _function_of_name[name] = found
    return function
