"""Traces: what a call or a segment records, with the guards that say when. How they are made, and made known to other recorders."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from foldloom.graph import Op
from foldloom.torch_private import are_transforms_active
from foldloom.tracing.automatic.body_builder import NOT_PLAIN, BodyBuilder, plainly_returned
from foldloom.tracing.automatic.natives import Natives
from foldloom.tracing.automatic.tracked import PLAIN, C, NotRepeatable, Tracked, Tracker
from foldloom.tracing.cells.bodies import AUTOMATIC, Body
from foldloom.tracing.cells.core import Cell
from foldloom.tracing.cells.lookup import cell_of_module
from foldloom.tracing.mutation.guards import same_settings, settings_of
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.values.lazy_tensor import LazyTensor
from foldloom.tracing.weight_names import weights_named


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


def trace_of(
    recorder: Recorder, tracker: Tracker, natives: Natives, builder: BodyBuilder, returned: Any, label: str
) -> Any:
    """The trace of what was recorded; ``returned`` says how its result is built."""
    appends = tuple([(container.register, part_of(tracker, builder, item)) for container, item in tracker.appends])
    if not builder.operands:
        raise NotRepeatable("it is given nothing to compute with")
    body, types = builder.body()
    made = Recorded()
    made.rules = body.rules()
    if sum(rule != 0 for rule in made.rules) > 1 and not body.is_smooth:
        raise NotRepeatable("it returns several results, and may have infinite derivatives between them")
    if not body.is_of_one_piece(types, builder.output_types):
        raise NotRepeatable("it returns results that do not depend on the same tensors")
    outputs = tuple(builder.output_types)
    made.op = Op(
        AUTOMATIC, types, outputs, body, label=label, repeatable=all(node.op.repeatable for node in body.nodes)
    )
    made.types = types
    made.numbers = tuple({natives.kinds[register] for register in builder.number_registers})
    made.modes, made.device = recorder.signatures.modes, recorder.inputs.device
    lines = [recorder.signatures.line_of(node.op) for node in body.nodes]
    made.line = next((line for line in lines if line is not None), None)
    made.fingerprints = [Fingerprint(module) for module in natives.modules.values()]
    made.weights = _weights_of(body, natives)
    plain = plainly_returned(returned, len(outputs))
    made.returns = Ellipsis if plain is NOT_PLAIN else plain
    program = tracker.program
    rebuild = returned if made.returns is Ellipsis else None
    trace = C.trace(tuple(program.guards), tuple(builder.operands), program.first_free, rebuild, appends)
    trace.recorded = made
    return trace


def part_of(tracker: Tracker, builder: BodyBuilder, tracked: Tracked) -> Any:
    """How a value that is left behind is built."""
    if tracked.register is not None and not tracked.is_settled and type(tracked.value) in PLAIN:
        return (C.READ, tracked.register)
    tracker.settle(tracked)
    return builder.returned(tracked.value)


def _weights_of(body: Body, natives: Natives) -> list[tuple[Any, bool]]:
    weights = {id(w): w for node in body.nodes for name in node.op.shared for w in weights_named(name)}
    weights |= {id(w): w for module in natives.modules.values() for w in module.parameters()}
    return [(weakref.ref(weight), weight.requires_grad) for weight in weights.values()]


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
