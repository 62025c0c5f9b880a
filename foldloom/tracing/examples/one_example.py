"""One example is recorded: what it is given becomes values, its function is called, and what it returns is taken apart."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from foldloom.errors import ArgumentError, CellError
from foldloom.pytrees import patched
from foldloom.tracing.examples.shared_results import noting_inference, noting_views
from foldloom.tracing.interception.function_mode import RecordingMode
from foldloom.tracing.mutation.spoiled import Spoiled, SpoiledResult, numbers_of
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import is_machinery
from foldloom.tracing.values.lazy_tensor import LazyTensor, is_tensor


def record_example(
    recorder: Recorder, function: Callable[..., Any], taken: Callable[..., Any], args: Sequence[Any], number: int
) -> tuple[list[int], list[Any], Any]:
    """The values that one example returns, what is known of them (`GivenBack`), and its result without them, as ``taken`` takes it apart."""
    recorder.graph.begin(number)
    with RecordingMode(recorder):
        given = [_lifted(recorder, arg) for arg in args]
        copies = [
            value for value, arg in zip(given, args, strict=True) if value is not arg and type(value) in (list, dict)
        ]
        before = [_items_of(copy) for copy in copies]
        template, outputs = taken(function(*given), LazyTensor)
        if [_items_of(copy) for copy in copies] != before:
            raise ArgumentError(
                "the function changes a list or dict that it is given, by which values that are not computed yet would leave the batch. "
                f"Change a copy: `xs = list(xs)`\n  in example {number}"
            )
        none = not (recorder.inputs.has_given or recorder.flushes.gradients.retained or recorder.has_spoiled)
        given_back = [None if none else _known_of(recorder, output) for output in outputs]
        if taken is patched:
            given_back = noting_views(recorder, outputs, given_back)
            if recorder.graph.inference:
                given_back = noting_inference(recorder, outputs, given_back)
        return [_value_of(recorder, output) for output in outputs], given_back, template


def _known_of(recorder: Recorder, output: LazyTensor) -> Any:
    return SpoiledResult(output) if type(output._recorder) is Spoiled else recorder.known_of(output)


def _value_of(recorder: Recorder, output: LazyTensor) -> int:
    """The value that an example returns, of a fixed shape."""
    if type(output._recorder) is Spoiled:
        output = numbers_of(output)
    if output._recorder is not recorder or output._type.ragged:
        output = recorder.dense(recorder.own(output))
    return output._value  # type: ignore[no-any-return]


def _items_of(container: list[Any] | dict[Any, Any]) -> list[int]:
    """Which items there are, in which order."""
    return [*map(id, container), *(map(id, container.values()) if isinstance(container, dict) else ())]


def _lifted(recorder: Recorder, arg: Any) -> Any:
    """Tensors that an example consists of are its values, alone or in a list, tuple or dict."""
    if is_tensor(arg):
        return recorder.give(arg)
    kind = type(arg)
    if kind is list or kind is tuple:
        if not any(map(is_tensor, arg)):
            return arg
        return kind([recorder.give(item) if is_tensor(item) else item for item in arg])
    if kind is dict and any(map(is_tensor, arg.values())):
        return {key: recorder.give(item) if is_tensor(item) else item for key, item in arg.items()}
    return arg


def add_line(error: Exception, recorder: Recorder) -> None:
    """Say where the operation that failed was called. All its calls are recorded alike, so only the first is known, if it did not fail at
    once."""
    if isinstance(error, CellError):
        line = None if error.op is None else recorder.signatures.line_of(error.op)
        if line is not None:
            error.add_note(f"first called at {line}")
        return
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users = [f"{file}:{line}" for file, line in frames if not is_machinery(file)]
    if users:
        error.add_note(f"at {users[-1]}")
