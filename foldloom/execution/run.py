"""Running a plan, step by step, over arenas.

Between two steps stands one *exchange*: the outputs of the step before are written into their arenas, and the operands
of the next step are read from them. The cell of a step is ordinary autograd code and knows nothing of arenas; the
exchange is the one autograd function that does. Its backward is the mirror image: gradients of the operands are added into
gradient arenas, gradients of the outputs are slices of them. See `exchange` for why that is exact.

Why not one autograd function around the whole plan, with a small graph per step inside? It was the first design. Calling
the autograd engine anew for every step costs more than an exchange does, and every tensor that a cell closes over
must be found and handed through by hand. With exchanges the engine runs once and finds them itself; double backward, hooks
and autocast work because nothing stands in their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from foldloom.errors import CellError, CellOutputError
from foldloom.execution.backward.again import Made
from foldloom.execution.backward.weight_grads import weight_grads_once
from foldloom.execution.buffers import Buffers
from foldloom.execution.failures import Failure, Failures, Operands, Separated, cell_error, out_of_range
from foldloom.execution.gc_pause import gc_paused
from foldloom.execution.interrupts import check_interrupts, pending
from foldloom.execution.kernels import Kernel, describe, outside_inference_mode
from foldloom.graph import Ints
from foldloom.graph.ragged import Ragged
from foldloom.planning.plans import Plan, Step, Write

Outputs = tuple[torch.Tensor | Sequence[torch.Tensor], ...]

_IN_PLACE = (
    "cell {label} changes one of its arguments in place. Other cells may read the same value: write `x = x + 1` instead of "
    "`x += 1`, or `x.relu()` instead of `x.relu_()`"
)


def run_plan(
    plan: Plan,
    inputs: Sequence[torch.Tensor],
    kernels: Sequence[Kernel | None],
    buffers: Buffers,
    *,
    apart: bool,
    failures: Failures | None = None,
) -> Outputs:
    """The outputs of a plan: for each block of ``plan.outputs`` one tensor, or if they are wanted ``apart`` the rows of it.

    ``inputs`` has one tensor for each input op, its rows in the order of ``plan.input_order``; ``kernels`` has one entry for
    each op, None for inputs. Members that fail are noted in ``failures``; without it, what the first of
    them raises in a loop is raised when all have run.
    """
    found = Failures() if failures is None else failures
    with outside_inference_mode():
        buffers.admit(plan)
    writes: Sequence[Write]
    outputs: Sequence[torch.Tensor]
    writes, outputs = buffers.place_inputs(inputs)
    made: Made | None = None
    operands: Sequence[torch.Tensor] = ()
    tracks = torch.is_grad_enabled()
    modules = _modules_of_repeated_ops(plan, kernels) if tracks else ()
    with gc_paused(), weight_grads_once(modules) if modules else nullcontext():
        for number, step in enumerate(plan.steps):
            kernel = kernels[step.op]
            assert kernel is not None, "only inputs have no kernel, and inputs have no steps"
            lengths = _lengths_of_members(plan, step) if kernel.is_ragged else None
            members = buffers.members_of(step.writes, kernel.ragged_outputs, lengths) if tracks else None
            operands = buffers.exchange(writes, outputs, step.reads, members, made, operands)
            shared = buffers.shared_rows(step.reads)
            versions = [rows._version for rows in shared]
            blocks = operands if not kernel.is_ragged else _with_lengths(plan, step, operands)
            call = _call_some if found else _call
            outputs = call(kernel, blocks, plan, number, step, lengths, found)
            writes, made = step.writes, None if members is None else Made(kernel, members)
            if versions and [rows._version for rows in shared] != versions:
                raise CellError(_IN_PLACE.format(label=kernel.op.label))
        if failures is None and found:
            raise found.first_new().as_cell_error()
        if apart:
            return tuple(buffers.hand_out(writes, outputs, plan.outputs, made, operands))
        return tuple(buffers.exchange(writes, outputs, plan.outputs, None, made, operands))


def _lengths_of_members(plan: Plan, step: Step) -> Ints | None:
    return next((plan.lengths_of(read, step.size) for read in step.reads if read.lengths >= 0), None)


def _with_lengths(plan: Plan, step: Step, operands: Sequence[torch.Tensor]) -> list[torch.Tensor | Ragged]:
    """Ragged operands as such."""
    remaining = iter(operands)
    result: list[torch.Tensor | Ragged] = []
    for read in step.reads:
        if read.lengths < 0:
            result += [next(remaining) for _ in range(read.slots)]
        else:
            result.append(Ragged(next(remaining), torch.from_numpy(plan.lengths_of(read, step.size))))
    return result


def _call(
    kernel: Kernel,
    operands: Operands,
    plan: Plan,
    number: int,
    step: Step,
    lengths: Ints | None,
    failures: Failures,
) -> Sequence[torch.Tensor]:
    if pending:
        check_interrupts()
    try:
        outputs = kernel.call(*operands)
        if kernel.is_ragged:
            outputs = [output.values if isinstance(output, Ragged) else output for output in outputs]
        kernel.check(outputs, [write.size for write in step.writes])
    except CellOutputError:
        raise
    except Exception as error:
        if "modified inplace" in str(error):
            raise CellError(_IN_PLACE.format(label=kernel.op.label)) from error
        separated = Separated(kernel, operands, step, lengths)
        separated.run()
        if not separated.errors:
            raise cell_error(_explain(kernel, operands, plan, number, step, error, None), error, kernel.op) from error
        _note(separated, kernel, operands, plan, number, step, failures)
        outputs = separated.outputs()
    return outputs


def _call_some(
    kernel: Kernel,
    operands: Operands,
    plan: Plan,
    number: int,
    step: Step,
    lengths: Ints | None,
    failures: Failures,
) -> Sequence[torch.Tensor]:
    """The same for a step some of whose members may read what has failed."""
    lost = failures.among(plan, step)
    if not lost:
        return _call(kernel, operands, plan, number, step, lengths, failures)
    separated = Separated(kernel, operands, step, lengths)
    separated.run(lost)
    for member, failure in lost.items():
        failures.mark(failure, step.writes, separated.spans(member))
    _note(separated, kernel, operands, plan, number, step, failures)
    return separated.outputs()


def _note(
    separated: Separated,
    kernel: Kernel,
    operands: Operands,
    plan: Plan,
    number: int,
    step: Step,
    failures: Failures,
) -> None:
    """Note the members that have failed of themselves."""
    for member, error in separated.take_errors():
        order = int(plan.examples_of(step)[member]), int(plan.nodes[step.first + member])
        failure = Failure(error, kernel.op, _explain(kernel, operands, plan, number, step, error, member), order)
        failures.mark(failure, step.writes, separated.spans(member))
        failures.note_new(failure)


def _explain(
    kernel: Kernel, operands: Operands, plan: Plan, number: int, step: Step, error: Exception, member: int | None
) -> str:
    examples = plan.examples_of(step)
    which = (
        f"example {examples[member]}"
        if member is not None
        else f"{step.size} members together (each alone succeeds), of examples {_some(sorted(set(examples.tolist())))}"
    )
    shapes = ", ".join(
        describe(operand) if isinstance(operand, torch.Tensor) else repr(operand) for operand in operands
    )
    return f"cell {kernel.op.label} failed in step {number} on ({shapes}), {which}: {error}{out_of_range(kernel, operands, member)}"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


def _modules_of_repeated_ops(plan: Plan, kernels: Sequence[Kernel | None]) -> list[torch.nn.Module]:
    """The modules that run in more than one step: there, weight gradients are worth collecting."""
    seen: set[int] = set()
    repeated: dict[int, torch.nn.Module] = {}
    for step in plan.steps:
        kernel = kernels[step.op]
        for module in () if kernel is None else kernel.modules:
            if id(module) in seen:
                repeated[id(module)] = module
            seen.add(id(module))
    return list(repeated.values())
