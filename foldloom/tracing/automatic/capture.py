"""Captures: what a call of a function records, kept with the guards under which the next call is one node.

The call that is captured is recorded operation by operation, as ever. Its operations then make the body of an automatic cell
(`cells/bodies.py`), and the function's code gets a trace: from then on `_automatic.c` answers calls for which the guards hold.
"""

from __future__ import annotations

import sys
import weakref
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from foldloom.graph import Op
from foldloom.torch_private import are_transforms_active, global_module_hooks
from foldloom.tracing import fast_path
from foldloom.tracing.automatic.body_builder import NOT_PLAIN, BodyBuilder, plainly_returned, rebuilder
from foldloom.tracing.automatic.forms import Form, form_of
from foldloom.tracing.automatic.interpreter import Interpreter, is_library, why_not
from foldloom.tracing.automatic.natives import Natives
from foldloom.tracing.automatic.tracked import C, NotRepeatable, Tracker
from foldloom.tracing.catching import may_be_caught
from foldloom.tracing.cells.bodies import AUTOMATIC
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.cells.lookup import cell_of_module
from foldloom.tracing.fibers.module_hooks import get_attribute
from foldloom.tracing.fibers.module_state import guarded
from foldloom.tracing.interception.modules import call_or_record
from foldloom.tracing.mutation.guards import same_settings, settings_of
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import is_machinery, scope
from foldloom.tracing.values.lazy_tensor import LazyTensor
from foldloom.tracing.weights import weights_named

MOST_FAILURES = 2
"""Captures of one function that may fail before it is left alone."""

refused: weakref.WeakKeyDictionary[CodeType, str] = weakref.WeakKeyDictionary()
"""Functions that are called often and are no automatic cells, with the reason."""
_failures: weakref.WeakKeyDictionary[CodeType, int] = weakref.WeakKeyDictionary()


class Fingerprint:
    """The state in which one of torch's modules was called, without keeping it alive: see `mutation.guards.State`."""

    def __init__(self, module: nn.Module) -> None:
        self._parts = [
            (
                weakref.ref(part),
                part.training,
                _weak_items(part._parameters),
                _weak_items(part._modules),
                settings_of(vars(part)),
            )
            for part in module.modules()
        ]
        self.module = weakref.ref(module)

    def holds(self) -> bool:
        for reference, training, weights, parts, settings in self._parts:
            part = reference()
            if part is None or part.training is not training or not same_settings(vars(part), settings):
                return False
            if not _are_items(part._parameters, weights) or not _are_items(part._modules, parts):
                return False
        return True


_WeakItems = list[tuple[str, Any]]


def _weak_items(items: dict[str, Any]) -> _WeakItems:
    return [(name, None if item is None else weakref.ref(item)) for name, item in items.items()]


def _are_items(items: dict[str, Any], weak_items: _WeakItems) -> bool:
    return len(items) == len(weak_items) and all(
        name in items and items[name] is (None if reference is None else reference()) for name, reference in weak_items
    )


class Recorded:
    """What a trace stands for: everything that another recorder must be told to record it."""

    __slots__ = (
        "code",
        "device",
        "fingerprints",
        "key",
        "line",
        "modes",
        "numbers",
        "op",
        "returns",
        "rules",
        "types",
        "weights",
    )

    op: Op
    rules: tuple[int, ...]
    returns: Any
    types: tuple[Any, ...]
    numbers: tuple[type, ...]
    modes: Any
    device: torch.device
    line: str | None
    fingerprints: list[Fingerprint]
    weights: list[tuple[Any, bool]]


def follows(code: CodeType) -> bool | Form:
    """Whether a function is the user's and may be captured; for one of torch's that is written in Python, how it is reported. Asked once
    for each function."""
    if is_library(code.co_filename) or _is_generated(code):
        return form_of(code) or False
    reason = why_not(code)
    if reason is not None:
        refused[code] = reason
    return reason is None


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
    attempt = _Capture(recorder, function, arguments)
    try:
        attempt.run()
        attempt.keep()
    except NotRepeatable as error:
        _failures[code] = _failures.get(code, 0) + 1
        if _failures[code] >= MOST_FAILURES:
            _refuse(code, str(error))
    except Exception as error:  # what the function itself raises, it raises again when Python runs it
        _failures[code] = _failures.get(code, 0) + 1
        if _failures[code] >= MOST_FAILURES:
            _refuse(code, f"it raises {type(error).__name__}")
    return attempt.result


def _refuse(code: CodeType, reason: str) -> None:
    refused[code] = reason
    C.refuse(code)


class _Capture:
    """One call that is followed."""

    def __init__(self, recorder: Recorder, function: Any, arguments: tuple[Any, ...]) -> None:
        self._recorder = recorder
        self._function = function
        self._arguments = arguments
        self._natives = Natives()
        self.result: tuple[Any] | None = None

    def run(self) -> None:
        graph, flushes = self._recorder.graph, self._recorder.flushes
        self._recorder.signatures.change_mode()
        self._first = graph.mark()
        flushes.refuses = NotRepeatable("it needs the value of a tensor")
        graph.numbers_vary = False  # those of a body are its constants
        try:
            self._tracker = Tracker(self._recorder, self._function, self._arguments)
            interpreter = Interpreter(self._tracker, self._natives)
            returned = interpreter.run(self._tracker.function, self._tracker.arguments)
            self._tracker.settle(returned)
            self.result = (returned.value,)
        except BaseException:
            # Python runs the function from its beginning.
            graph.rewind(self._first)
            self._recorder.inputs.rewind(graph.value_count)
            raise
        finally:
            flushes.refuses = None
            graph.numbers_vary = True

    # ---- The body.

    def keep(self) -> None:
        """Keep what was recorded as a trace."""
        graph = self._recorder.graph
        first = self._first
        if len(graph.lengths) != first.lengths:
            raise NotRepeatable("it computes values with any number of rows")
        numbers = list(graph.op_of_node[first.nodes :])
        operands = graph.operands[first.operands :]
        assert self.result is not None
        builder = BodyBuilder(self._tracker, self._natives)
        position, value = 0, first.values
        for number in numbers:
            op = graph.ops[number]
            if op.is_input:
                value += 1
                continue
            size = len(op.inputs)
            builder.add(op, operands[position : position + size], value, graph.histories.rules_of(number))
            position, value = position + size, value + len(op.outputs)
        returned = builder.returned(self.result[0])
        if len(builder.nodes) < 2:
            raise NotRepeatable("it computes next to nothing")
        if not builder.operands:
            raise NotRepeatable("it is given nothing to compute with")
        self._keep(builder, returned)

    def _keep(self, builder: BodyBuilder, returned: Any) -> None:
        recorder, code = self._recorder, self._function.__code__
        body, types = builder.body()
        made = Recorded()
        made.rules = body.rules()
        if sum(rule != 0 for rule in made.rules) > 1 and not body.is_smooth:
            raise NotRepeatable("it returns several results, and may have infinite derivatives between them")
        label = code.co_qualname
        outputs = tuple(builder.output_types)
        made.op = Op(
            AUTOMATIC, types, outputs, body, label=label, repeatable=all(node.op.repeatable for node in body.nodes)
        )
        made.types = types
        made.numbers = tuple({self._natives.kinds[register] for register in builder.number_registers})
        made.modes, made.device = recorder.signatures.modes, recorder.inputs.device
        lines = [recorder.signatures.line_of(node.op) for node in body.nodes]
        made.line = next((line for line in lines if line is not None), None)
        made.fingerprints = [Fingerprint(module) for module in self._natives.modules.values()]
        weights = {id(w): w for node in body.nodes for name in node.op.shared for w in weights_named(name)}
        weights |= {id(w): w for module in self._natives.modules.values() for w in module.parameters()}
        made.weights = [(weakref.ref(weight), weight.requires_grad) for weight in weights.values()]
        plain = plainly_returned(returned, len(outputs))
        made.returns = Ellipsis if plain is NOT_PLAIN else plain
        rebuild = rebuilder(returned) if made.returns is Ellipsis else None
        program = self._tracker.program
        trace = C.trace(tuple(program.guards), tuple(builder.operands), program.first_free, rebuild)
        trace.recorded = made
        C.add_trace(code, trace)


# ---- Traces in other recorders.


def admit(trace: Any, recorder: Recorder) -> bool:
    """Make a trace known to a recorder, in the current mode of torch. False if it does not hold there."""
    recorded: Recorded = trace.recorded
    recorder.signatures.change_mode()
    if recorded.modes != recorder.signatures.modes or recorded.device != recorder.inputs.device or recorder.names_cells:
        return False
    if are_transforms_active():
        return False
    key = (trace, *recorded.types)
    if key in recorder.graph.calls:
        for kind in recorded.numbers:
            recorder.inputs.expect_number(kind)
        return True
    weights = [(reference(), requires_grad) for reference, requires_grad in recorded.weights]
    if any(weight is None or weight.requires_grad is not requires_grad for weight, requires_grad in weights):
        return False
    if not all(fingerprint.holds() for fingerprint in recorded.fingerprints):
        return False
    modules = [fingerprint.module() for fingerprint in recorded.fingerprints]
    if not all(recorder.guards.guard_module(module) for module in modules if module is not None):
        return False
    for module in modules:
        if module is not None:
            _guard_cell(recorder, cell_of_module(module))
    recorder.guards.guard_tensors([weight for weight, _ in weights if weight is not None])
    for kind in recorded.numbers:
        recorder.inputs.expect_number(kind)
    recorder.signatures.of_automatic(key, recorded.op, recorded.rules, recorded.returns, recorded.line)
    return True


def _guard_cell(recorder: Recorder, cell: Cell) -> None:
    if cell.module is not None:
        recorder.guards.guard_cell(cell.module)
    recorder.guards.guard_function(cell.function, cell.label)
    recorder.inputs.note_cell(cell)


def own(recorder: Recorder, handle: LazyTensor) -> None:
    """Make a given tensor an input of the graph, if it is taken as one whole in any case."""
    if recorder.is_given(handle) and (handle.ndim == 0 or (handle.ndim == 1 and handle.is_floating_point())):
        recorder.own(handle)


def bind() -> bool:
    """Tell C who captures. Whether there are automatic cells: they need C, and a version of Python whose frames are known."""
    return fast_path.is_compiled and bool(
        C.bind_automatic(
            follows,
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
