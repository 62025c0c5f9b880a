"""How torch reports calls of its functions that are written in Python: which arguments by position, and which by name.

`F.relu(x)` finds that `x` is no ordinary tensor, and reports ``(x,)`` and ``{"inplace": False}``. A call is recorded under the
form in which it is reported, so `_automatic.c`, which does not let the function run, must know it.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from torch.nn import functional

Form = tuple[Any, tuple[int, ...], tuple[str, ...], tuple[int, ...]]
"""A function; which of its variables are reported by position; the names of those that are reported by name, and which they are."""


class _Reporting:
    """Answers a call with how it is reported."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _Reported(function, tuple(args), dict(kwargs or {}))


class _Reported:
    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs


def form_of(code: CodeType) -> Form | None:
    """The form of a function of `torch.nn.functional`, by its code; None if it cannot be found."""
    function = getattr(functional, code.co_name, None)
    if getattr(function, "__code__", None) is not code or code.co_kwonlyargcount or code.co_name.startswith("_"):
        return None
    arguments = [_Reporting() for _ in range(code.co_argcount)]
    try:
        reported = function(*arguments)  # type: ignore[misc]
    except Exception:  # it looks at its arguments first
        return None
    if not isinstance(reported, _Reported) or reported.function is not function:
        return None
    place = {id(argument): number for number, argument in enumerate(arguments)}
    given = (*reported.args, *reported.kwargs.values())
    if not all(id(argument) in place for argument in given) or len(given) != len(arguments):
        return None
    return (
        function,
        tuple([place[id(argument)] for argument in reported.args]),
        tuple(reported.kwargs),
        tuple([place[id(argument)] for argument in reported.kwargs.values()]),
    )
