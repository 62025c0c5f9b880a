"""Captures: what a call of a function records, kept with the guards under which the next call is one node.

The call that is captured is recorded operation by operation, as ever. Its operations then make the body of an automatic cell
(`cells/bodies.py`), and the function's code gets a trace: from then on `_automatic.c` answers calls for which the guards hold.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import CodeType, FrameType
from typing import Any

from torch import nn

from foldloom.torch_private import are_transforms_active, global_module_hooks
from foldloom.tracing import fast_path
from foldloom.tracing.automatic.attempt import Attempt
from foldloom.tracing.automatic.forms import Form, form_of
from foldloom.tracing.automatic.interpreter import Interpreter, is_library, why_not
from foldloom.tracing.automatic.segments import divided, learn
from foldloom.tracing.automatic.traces import admit, own, trace_of
from foldloom.tracing.automatic.tracked import C, NotRepeatable
from foldloom.tracing.catching import may_be_caught
from foldloom.tracing.fibers.module_hooks import get_attribute
from foldloom.tracing.fibers.module_state import guarded
from foldloom.tracing.interception.modules import call_or_record
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import is_machinery, scope

MOST_FAILURES = 2
"""Captures of one function that may fail before it is left alone."""

refused: weakref.WeakKeyDictionary[CodeType, str] = weakref.WeakKeyDictionary()
"""Functions that are called often and are no automatic cells, with the reason."""
_failures: weakref.WeakKeyDictionary[CodeType, int] = weakref.WeakKeyDictionary()


def follows(code: CodeType) -> bool | Form | None:
    """Whether a function is the user's and may be captured; None if it is, but only segments of it may be. For one of torch's that is
    written in Python, how it is reported. Asked once for each function."""
    if is_library(code.co_filename) or _is_generated(code):
        return form_of(code) or False
    reason = why_not(code)
    if reason is not None:
        refused[code] = reason
        return None
    return True


def _is_generated(code: CodeType) -> bool:
    """Whether a function was made by `dataclass`, `namedtuple` and the like, for one of Foldloom's own classes maybe."""
    return code.co_filename == "<string>" and (code.co_name == "<lambda>" or code.co_name.startswith("__"))


_CALLERS = frozenset(("call_or_record", "_call_impl", "record_example"))
"""Functions of torch's and Foldloom's that call the user's as the user would."""


def _is_called_by_user(caller: FrameType) -> bool:
    """Others may be in the middle of something, which a capture would disturb."""
    return not is_machinery(caller.f_code.co_filename) or caller.f_code.co_name in _CALLERS


def capture(function: Any, arguments: tuple[Any, ...]) -> tuple[Any] | None:
    """The result of a call that was captured, or None if Python has to run it. Called by the hook, in the place of the function."""
    recorder: Any = scope.recorder
    code = function.__code__
    if recorder.names_cells or may_be_caught() or are_transforms_active() or not _is_called_by_user(sys._getframe(1)):
        return None
    result: tuple[Any] | None = None
    try:
        attempt = Attempt(recorder, function, arguments)
        result = attempt.follow(functools.partial(_run, attempt))
        attempt.tracker.do_appends()
        _keep(attempt, result[0], code)
    except NotRepeatable as error:
        _count_failure(code, str(error))
    except Exception as error:  # what the function itself raises, it raises again when Python runs it
        _count_failure(code, f"it raises {type(error).__name__}")
    return result


def _run(attempt: Attempt, interpreter: Interpreter) -> tuple[Any]:
    tracker = attempt.tracker
    returned = interpreter.run(tracker.function, tracker.arguments)
    tracker.settle(returned)
    return (returned.value,)


def _keep(attempt: Attempt, result: Any, code: CodeType) -> None:
    builder = attempt.builder()
    returned = builder.returned(result)
    if len(builder.nodes) < 2:
        raise NotRepeatable("it computes next to nothing")
    trace = trace_of(attempt.recorder, attempt.tracker, attempt.natives, builder, returned, code.co_qualname)
    C.add_trace(code, trace)


def _count_failure(code: CodeType, reason: str) -> None:
    _failures[code] = _failures.get(code, 0) + 1
    if _failures[code] >= MOST_FAILURES:
        refused[code] = reason
        C.refuse(code)


def bind() -> bool:
    """Tell C who captures. Whether there are automatic cells: they need C, and a version of Python whose frames are known."""
    if not fast_path.is_compiled:
        return False
    C.bind_segments(learn)
    return bool(
        C.bind_automatic(
            follows,
            divided,
            call_or_record.__code__,
            get_attribute.__code__,
            nn.Parameter,
            capture,
            admit,
            own,
            guarded,
            global_module_hooks,
        )
    )


is_available = bind()


class automatic_cells:  # noqa: N801 (used like a function)
    """Within it, functions that the recorder's examples call may become automatic cells."""

    def __init__(self, recorder: Recorder, is_on: bool) -> None:
        self._recorder = recorder
        self._is_on = is_on and is_available

    def __enter__(self) -> None:
        self._recorder.automatic = self._is_on
        if self._is_on:
            C.enter()

    def __exit__(self, *_: object) -> None:
        self._recorder.automatic = False
        if self._is_on:
            C.leave()
