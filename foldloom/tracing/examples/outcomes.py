"""What becomes of each example: its result, or the exception that it raised (`errors="return"`)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from foldloom.errors import ArgumentError, CellError, SharedStateError
from foldloom.tracing.arguments import described
from foldloom.tracing.scope import is_machinery

Errors = Literal["raise", "return"]


class Raised:
    """Stands for the result of an example that has raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def errors_of(given: Any) -> Errors:
    if given not in get_args(Errors):
        raise ArgumentError(f'errors is "raise" or "return", and was {described(given)}')
    return given  # type: ignore[no-any-return]


def outcome_of(task: Callable[[], Any]) -> Any:
    """What a task returns, or `Raised`. That examples have seen each other's changes is no error of one of them."""
    try:
        return task()
    except SharedStateError:
        raise
    except Exception as error:
        return Raised(error)


def result_or_error(function: Callable[..., Any], args: Sequence[Any], number: int) -> Any:
    """What a function returns, or the exception that it raises, which says where."""
    outcome = outcome_of(lambda: function(*args))
    return noted(outcome.error, number) if type(outcome) is Raised else outcome


def noted(error: Exception, number: int) -> Exception:
    """The exception of an example, with a note that says which example it was, and one with the user's line."""
    notes = getattr(error, "__notes__", ())
    if f"in example {number}" not in notes:
        error.add_note(f"in example {number}")
    line = line_of(error)
    if line is not None and not any(line in note for note in notes):
        error.add_note(f"at {line}")
    return error


def line_of(error: BaseException) -> str | None:
    """The innermost line of the user's that an exception has passed."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((f"{file}:{line}" for file, line in reversed(lines) if not is_machinery(file)), None)


def together(
    outcomes: Iterable[tuple[int, Any]],
    failed: Mapping[int, CellError],
    results: Iterator[Any],
    add_line: Callable[[Exception], None],
) -> list[Any]:
    """For each example, given with its number, what it returned, or what it raised. ``failed`` has the errors of operations, which had been recorded before
    whatever the example has raised itself; ``results`` those of the examples that have not raised, in order."""
    found: list[Any] = []
    for number, outcome in outcomes:
        result = next(results) if type(outcome) is tuple else None
        error = failed.get(number, outcome.error if type(outcome) is Raised else None)
        found.append(result if error is None else noted(error, number))
        if isinstance(error, CellError):
            add_line(error)
    return found
