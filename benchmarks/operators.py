"""Torch's own operator database as the judge: every operator, recorded for a batch, against the same operator called eagerly.

For each operator several sample inputs are taken. Examples of the same structure with other numbers make one batch for each
sample; all samples together make another, in which examples differ. Values are compared, and gradients of a weighted sum of
all outputs. The function itself is tried on every sample, its method and its in-place form on a few.
Of operators that draw random numbers, or leave memory as they find it, only shapes and dtypes can be compared.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import multiprocessing
import random
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

import foldloom as fl
from foldloom.execution import Kernel, engine
from foldloom.planning.plans import Plan
from foldloom.tracing import lift
from foldloom.tracing.flushing.kernels import CELL, DIRECT_RULE, how
from foldloom.tracing.rules.fallback import ONE_BY_ONE, VMAP
from foldloom.tracing.values.lazy_tensor import LazyTensor

ALIKE = 4
"""Examples of the same structure in a batch."""
MOST_SAMPLES = 6
"""Samples of one operator that are tried: the first, the last, and some between."""
MOST_SAMPLES_OF_VARIANTS = 2

ON_DEMAND = "on demand"
WAYS = (DIRECT_RULE, CELL, VMAP, ONE_BY_ONE, ON_DEMAND)
"""How an operator can run, the fastest first."""

RIGHT, WRONG, ERROR, EAGER_FAILS, OUT_OF_SCOPE = "right", "wrong", "error", "eager fails", "out of scope"

_DTYPES = (torch.float64, torch.complex128, torch.float32, torch.complex64, torch.int64, torch.int32, torch.bool)


@dataclass
class Verdict:
    """What was found out about one operator."""

    name: str
    verdict: str = RIGHT
    detail: str = ""
    dtype: str = ""
    ways: list[str] = field(default_factory=list)
    """Which ways its steps went."""
    steps: int = 0
    """Steps taken by all batches of examples alike, and how many examples they had. What goes one by one is that many steps."""
    examples: int = 0
    recorded: bool = True
    """Whether all tensors that it gave were values of the batch, not computed at once."""
    variants: list[str] = field(default_factory=list)
    only_shapes: bool = False
    """Whether values could not be compared, for some sample at least."""

    @property
    def ran_eagerly(self) -> bool:
        return self.verdict in (RIGHT, WRONG, ERROR)

    @property
    def how(self) -> str:
        return ", ".join(self.ways)

    @property
    def slowest_way(self) -> str:
        return max(self.ways, key=WAYS.index, default="nothing to do")

    @property
    def in_fewer_steps(self) -> bool:
        return self.verdict == RIGHT and self.recorded and self.steps < self.examples


@dataclass
class Example:
    """One call of an operator: its arguments, and what makes outputs with a free sign or phase comparable by gradient."""

    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    comparable: Callable[[Any], Any]

    def fresh(self) -> tuple[Example, list[torch.Tensor]]:
        """The same with new leaves, because operators may change what they are given; and those that need gradients."""
        sources: list[torch.Tensor] = []

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            if copied.requires_grad:
                sources.append(copied)
            return copied

        return Example(map_tensors(copy, self.arguments), self.comparable), sources


@dataclass
class Outcome:
    """What one call gave: its outputs, and gradients if it has any."""

    output: Any
    gradients: list[torch.Tensor | None]
    draws: bool = False
    """Whether it drew random numbers."""


@dataclass
class Run:
    """A plan that has run, and what ran it."""

    plan: Plan
    kernels: Sequence[Kernel | None]

    def ways(self) -> Iterator[tuple[str, int]]:
        """For each step, which way it went and how often something was called for it."""
        for step in self.plan.steps:
            kernel = self.kernels[step.op]
            assert kernel is not None, "inputs have no steps"
            way = how(kernel)
            yield way, step.size if way == ONE_BY_ONE else 1


class MismatchError(Exception):
    """The batch gave something else than eager, and did not say so."""


# Operators and their samples.


def operators() -> dict[str, Any]:
    # Takes seconds, and needs `expecttest`.
    from torch.testing._internal import common_methods_invocations as database

    # The database seeds random operators anew for every call, which would hide that they are random.
    vars(database)["wrapper_set_seed"] = called
    return {op.full_name: op for op in database.op_db}


def called(operator: Callable[..., Any], input: Any, *args: Any, **kwargs: Any) -> Any:
    """What the database writes as `torch.Tensor.exp(x)` is called as `x.exp()`; in place only on a clone."""
    if not inspect.ismethoddescriptor(operator):
        return operator(input, *args, **kwargs)
    name = operator.__name__
    works_in_place = name.endswith("_") and not name.startswith("__")
    return getattr(input.clone() if works_in_place else input, name)(*args, **kwargs)


def dtype_of(op: Any) -> torch.dtype | None:
    """The dtype that it is tried with."""
    supported = op.supported_dtypes("cpu")
    return next((dtype for dtype in _DTYPES if dtype in supported), None)


def samples_of(op: Any, dtype: torch.dtype, seed: int) -> list[Example]:
    """Samples whose tensors depend on the seed. Sizes that are drawn are drawn by `random`, so that they do not."""
    torch.manual_seed(seed)
    random.seed(0)
    needs_grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    return [
        Example((sample.input, tuple(sample.args), dict(sample.kwargs)), sample.output_process_fn_grad)
        for sample in op.sample_inputs("cpu", dtype, requires_grad=needs_grad, set_seed=False)
    ]


def structure(value: Any) -> Any:
    """What examples alike have in common: everything but the numbers in their tensors."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.layout, value.requires_grad
    if isinstance(value, (list, tuple)):
        return type(value), tuple([structure(item) for item in value])
    if isinstance(value, dict):
        return tuple([(key, structure(item)) for key, item in value.items()])
    return repr(value)


def map_tensors(function: Callable[[Any], Any], value: Any) -> Any:
    """The same nesting with every tensor replaced."""
    if isinstance(value, (torch.Tensor, LazyTensor)):
        return function(value)
    if isinstance(value, (list, tuple)):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: map_tensors(function, item) for key, item in value.items()}
    return value


def with_tensors(value: Any, replacements: Sequence[torch.Tensor]) -> Any:
    """The same nesting with these tensors, in order."""
    rest = iter(replacements)
    return map_tensors(lambda _: next(rest), value)


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def tensors(value: Any) -> list[Any]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, (torch.Tensor, LazyTensor))]


def spread(count: int, most: int) -> list[int]:
    """At most so many of the first numbers, evenly."""
    if count <= most:
        return list(range(count))
    return sorted({round(number * (count - 1) / (most - 1)) for number in range(most)})


# Calls, eager and in a batch.


def calls_of(op: Any) -> dict[str, Callable[[Example], Any]]:
    """The ways to call an operator."""

    def form(operator: Callable[..., Any]) -> Callable[[Example], Any]:
        def call(example: Example) -> Any:
            input, args, kwargs = example.arguments
            return called(operator, input, *args, **kwargs)

        return call

    calls = {"function": form(op.op)}
    if op.method_variant is not None:
        calls["method"] = form(op.method_variant)
    if inspect.ismethoddescriptor(op.inplace_variant):
        calls["in place"] = form(op.inplace_variant)
    elif op.inplace_variant is not None:
        calls["in place"] = form(lambda input_, *args, **kwargs: op.inplace_variant(input_.clone(), *args, **kwargs))
    return calls


def eagerly(call: Callable[[Example], Any], example: Example) -> Outcome:
    fresh, sources = example.fresh()
    before = torch.get_rng_state()
    output = call(fresh)
    draws = not torch.equal(torch.get_rng_state(), before)
    return Outcome(output, gradients(fresh.comparable, output, sources, differentiable(output)), draws)


def check_batch(
    call: Callable[[Example], Any],
    examples: Sequence[Example],
    expected: Sequence[Outcome],
    only_shapes: bool,
    *,
    strictly: bool = False,
) -> tuple[list[Run], bool]:
    """Run the batch and compare what it gives. Returns what it ran, and whether the outputs come from that.

    ``strictly``, a gradient of None is not one of zeros, and outputs require grad exactly if they do eagerly.
    """
    pairs = [example.fresh() for example in examples]
    # Structures are of no interest here; what is no tensor goes around the batch.
    other_leaves: list[list[Any]] = [[] for _ in examples]
    all_lazy = all_given = True

    def program(number: int) -> list[Any]:
        nonlocal all_lazy, all_given
        recorded = Example(map_tensors(lift, pairs[number][0].arguments), pairs[number][0].comparable)
        given = {id(tensor) for tensor in tensors(recorded.arguments)}
        output = call(recorded)
        all_lazy &= all(isinstance(tensor, LazyTensor) for tensor in tensors(output))
        all_given &= all(id(tensor) in given for tensor in tensors(output))
        other_leaves[number] = [leaf for leaf in leaves(output) if not isinstance(leaf, (torch.Tensor, LazyTensor))]
        return tensors(output)

    with runs_noted() as runs:
        found = fl.batch(program)(list(range(len(examples))))
    for (fresh, sources), outcome, given, others in zip(pairs, expected, found, other_leaves, strict=True):
        check_others(others, outcome.output)
        check_outputs(given, tensors(outcome.output), only_shapes)
        if strictly and differentiable(given) != differentiable(outcome.output):
            raise MismatchError(f"requires_grad is {differentiable(given)}, not {differentiable(outcome.output)}")
        if not only_shapes:
            output = with_tensors(outcome.output, given)
            gradients_found = gradients(fresh.comparable, output, sources, differentiable(outcome.output))
            check_gradients(gradients_found, outcome.gradients, strictly=strictly)
    # Without any step, either nothing was to be computed or it was computed at once.
    return runs, all_lazy and (all_given or any(run.plan.steps for run in runs))


def differentiable(output: Any) -> list[bool]:
    return [bool(tensor.requires_grad) for tensor in tensors(output)]


def gradients(
    comparable: Callable[[Any], Any], output: Any, sources: Sequence[torch.Tensor], asked: Sequence[bool]
) -> list[torch.Tensor | None]:
    """Of a weighted sum of the outputs that are asked for."""
    if not sources or not any(asked):
        return []
    asking = iter(asked)
    kept = map_tensors(lambda tensor: tensor if next(asking) else tensor.detach(), output)
    loss = torch.zeros((), dtype=torch.float64)
    for number, tensor in enumerate(tensors(comparable(kept))):
        if tensor.requires_grad:
            dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
            real = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
            weights = torch.cos(torch.arange(real.numel(), dtype=torch.float64) + number).reshape(real.shape)
            loss = loss + (real * weights).sum()
    if not loss.requires_grad:
        return [None for _ in sources]
    # All examples of a batch hang on one graph.
    return list(torch.autograd.grad(loss, sources, allow_unused=True, retain_graph=True))


# Comparing.


def check_others(actual: Sequence[Any], expected_output: Any) -> None:
    expected = [leaf for leaf in leaves(expected_output) if not isinstance(leaf, torch.Tensor)]
    for one, other in zip(actual, expected, strict=False):
        both_nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
        if type(one) is not type(other) or not (one == other or both_nan):
            raise MismatchError(f"{one!r} instead of {other!r}")
    if len(actual) != len(expected):
        raise MismatchError(f"{len(actual)} results that are no tensors, instead of {len(expected)}")


def check_same(what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    exact = expected.dtype in (torch.float64, torch.complex128)
    try:
        torch.testing.assert_close(
            actual.detach(),
            expected.detach(),
            rtol=1e-8 if exact else None,
            atol=1e-9 if exact else None,
            equal_nan=True,
        )
    except AssertionError as error:
        raise MismatchError(f"{what}: {error}") from None


def check_outputs(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], only_shapes: bool) -> None:
    if len(actual) != len(expected):
        raise MismatchError(f"{len(actual)} tensors instead of {len(expected)}")
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        if not only_shapes:
            check_same(f"output {number}", one, other)
        elif (one.shape, one.dtype) != (other.shape, other.dtype):
            raise MismatchError(
                f"output {number} is {one.dtype} {tuple(one.shape)}, not {other.dtype} {tuple(other.shape)}"
            )


def check_gradients(
    actual: Sequence[torch.Tensor | None], expected: Sequence[torch.Tensor | None], *, strictly: bool = False
) -> None:
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        given = one if other is None else other
        if one is not None and other is not None:
            check_same(f"gradient {number}", one, other)
        elif given is not None and (strictly or given.abs().sum() != 0):
            raise MismatchError(f"gradient {number} is {'missing' if one is None else 'there where eager has none'}")


# Judging.


def judge(op: Any, most_samples: int = MOST_SAMPLES) -> Verdict:
    verdict = Verdict(op.full_name)
    dtype = dtype_of(op)
    if dtype is None:
        verdict.verdict, verdict.detail = EAGER_FAILS, "it does not run on the CPU"
        return verdict
    verdict.dtype = str(dtype).removeprefix("torch.")
    by_seed = [samples_of(op, dtype, seed) for seed in range(ALIKE)]
    if not any(tensors(example.arguments) for example in by_seed[0]):
        verdict.verdict, verdict.detail = OUT_OF_SCOPE, "it takes no tensors"
        return verdict
    takes_tensors = [number for number, example in enumerate(by_seed[0]) if tensors(example.arguments)]
    for variant, call in calls_of(op).items():
        most = most_samples if variant == "function" else MOST_SAMPLES_OF_VARIANTS
        picked = [takes_tensors[position] for position in spread(len(takes_tensors), most)]
        batches = [[samples[number] for samples in by_seed if number < len(samples)] for number in picked]
        judge_variant(verdict, op, variant, call, batches)
        if verdict.verdict != RIGHT:
            break
    return verdict


def judge_variant(
    verdict: Verdict, op: Any, variant: str, call: Callable[[Example], Any], batches: list[list[Example]]
) -> None:
    """Each batch of examples alike, then the first two of every batch together."""
    mixed: list[tuple[Example, Outcome]] = []
    mixed_only_shapes = False
    why_not = ""
    for batch in batches:
        first = structure(batch[0].arguments)
        # Numbers among the arguments may be drawn too: then the first example stands for all.
        alike = [example if structure(example.arguments) == first else batch[0] for example in batch]
        try:
            expected = [eagerly(call, example) for example in alike]
        except Exception as error:
            why_not = why_not or described(error)
            continue
        only_shapes = "empty" in op.name or any(outcome.draws for outcome in expected)
        judge_batch(verdict, variant, call, alike, expected, only_shapes, counted=variant == "function")
        if verdict.verdict != RIGHT:
            return
        mixed += list(zip(alike, expected, strict=True))[:2]
        mixed_only_shapes |= only_shapes
    verdict.only_shapes |= mixed_only_shapes
    if mixed:
        verdict.variants.append(variant)
        examples, outcomes = zip(*mixed, strict=True)
        judge_batch(verdict, f"{variant}, mixed", call, examples, outcomes, mixed_only_shapes, counted=False)
    elif variant == "function":
        verdict.verdict, verdict.detail = EAGER_FAILS, why_not


def judge_batch(
    verdict: Verdict,
    label: str,
    call: Callable[[Example], Any],
    examples: Sequence[Example],
    expected: Sequence[Outcome],
    only_shapes: bool,
    *,
    counted: bool,
) -> None:
    try:
        runs, recorded = check_batch(call, examples, expected, only_shapes)
        if counted:
            verdict.recorded &= recorded
            ways = [way for run in runs for way in run.ways()]
            found = {*verdict.ways, *[way for way, _ in ways], *([] if recorded else [ON_DEMAND])}
            verdict.ways = sorted(found, key=WAYS.index)
            verdict.steps += sum(calls for _, calls in ways)
            verdict.examples += len(examples)
    except MismatchError as mismatch:
        verdict.verdict, verdict.detail = WRONG, f"{label}: {described(mismatch)}"
    except Exception as error:
        verdict.verdict, verdict.detail = ERROR, f"{label}: {described(error)}"


def described(error: BaseException) -> str:
    """In one line, and the same in every run."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    name = "" if isinstance(error, MismatchError) else f"{type(error).__name__}: "
    return f"{name}{text}"[:300]


@contextmanager
def runs_noted() -> Iterator[list[Run]]:
    """The plans that are run within, with the kernels that ran them."""
    runs: list[Run] = []
    run_plan = vars(engine)["run_plan"]

    def noting(plan: Plan, inputs: Any, kernels: Sequence[Kernel | None], *args: Any, **kwargs: Any) -> Any:
        result = run_plan(plan, inputs, kernels, *args, **kwargs)
        runs.append(Run(plan, kernels))
        return result

    vars(engine)["run_plan"] = noting
    try:
        yield runs
    finally:
        vars(engine)["run_plan"] = run_plan


# Many operators, in processes that may crash or hang.


def judge_all(
    names: Sequence[str],
    judge_name: Callable[[str], Verdict],
    *,
    workers: int,
    seconds: float,
    progress: bool = False,
) -> list[Verdict]:
    """Verdicts in order of the names. A worker that dies, or takes too long for one of them, is replaced."""
    # The parent runs no operator, so that it has no threads that a fork would lose.
    context = multiprocessing.get_context("fork")
    found: dict[str, Verdict] = {}
    waiting = list(reversed(names))
    at_work: dict[Any, tuple[Any, str, float]] = {}  # by connection: the process, its operator, until when
    idle: list[tuple[Any, Any]] = []
    try:
        while len(found) < len(names):
            while waiting and len(at_work) < workers:
                process, connection = idle.pop() if idle else _start_worker(context, judge_name)
                name = waiting.pop()
                connection.send(name)
                at_work[connection] = (process, name, time.monotonic() + seconds)
            ready: list[Any] = wait(list(at_work), timeout=0.5)
            for connection in ready:
                process, name, _ = at_work.pop(connection)
                try:
                    found[name] = Verdict(**connection.recv())
                    idle.append((process, connection))
                except EOFError:
                    process.join()
                    found[name] = Verdict(name, ERROR, f"the process died with exit code {process.exitcode}")
            for connection, (process, name, deadline) in list(at_work.items()):
                if time.monotonic() > deadline:
                    del at_work[connection]
                    process.kill()
                    process.join()
                    found[name] = Verdict(name, ERROR, f"took more than {seconds:g} seconds")
            if progress:
                print(f"\r  {len(found)}/{len(names)} operators", end="", file=sys.stderr, flush=True)
    finally:
        for process in [process for process, _ in idle] + [process for process, _, _ in at_work.values()]:
            process.kill()
            process.join()
        if progress:
            print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return [found[name] for name in names]


def _start_worker(context: Any, judge_name: Callable[[str], Verdict]) -> tuple[Any, Any]:
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, judge_name), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _work(connection: Connection, judge_name: Callable[[str], Verdict]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    while True:
        connection.send(asdict(judge_name(connection.recv())))


# The report.


def summary(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    ran = [verdict for verdict in verdicts if verdict.ran_eagerly]
    count = max(len(ran), 1)
    return {
        "operators": len(verdicts),
        "run eagerly on the CPU": len(ran),
        "right": sum(verdict.verdict == RIGHT for verdict in ran),
        "right, %": round(100 * sum(verdict.verdict == RIGHT for verdict in ran) / count, 1),
        "silently wrong": sum(verdict.verdict == WRONG for verdict in ran),
        "errors": sum(verdict.verdict == ERROR for verdict in ran),
        "in fewer steps than examples, %": round(100 * sum(verdict.in_fewer_steps for verdict in ran) / count, 1),
        "only shapes and dtypes compared": sum(verdict.only_shapes for verdict in ran),
        "slowest way": dict(Counter(verdict.slowest_way for verdict in ran if verdict.verdict == RIGHT).most_common()),
    }


def markdown(verdicts: Sequence[Verdict]) -> str:
    lines = [
        "# Operators",
        "",
        f"Every operator of torch {torch.__version__.split('+')[0]}'s own database (`op_db`), recorded in `fl.batch` for several sample "
        "inputs, against eager PyTorch: values and gradients. Made by `python -m benchmarks operators --write docs/operators.md`, never by hand.",
        "",
        "| | |",
        "|---|---|",
    ]
    for name, value in summary(verdicts).items():
        shown = ", ".join(f"{key}: {number}" for key, number in value.items()) if isinstance(value, dict) else value
        lines.append(f"| {name} | {shown} |")
    lines += [
        "",
        "*How* is by a rule of its own, through `torch.vmap`, one by one within a step, or on demand, at once, because what it "
        "returns depends on values or on memory; several where samples differ. "
        f"*Steps* are those of all batches of {ALIKE} examples alike, of examples; what goes one by one counts as a step each. *Forms* are those that were tried: the function, the "
        "method, the method that works in place. Where *compared* says shapes, the operator draws random numbers or leaves "
        "memory uninitialised, and values cannot be compared.",
        "",
        "| operator | verdict | how | steps | forms | dtype | compared | remark |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for verdict in sorted(verdicts, key=lambda verdict: verdict.name.lower()):
        ran = verdict.ran_eagerly
        cells = [
            f"`{verdict.name}`",
            verdict.verdict if verdict.verdict == RIGHT else f"**{verdict.verdict}**",
            verdict.how,
            f"{verdict.steps}/{verdict.examples}" if verdict.examples else "",
            ", ".join(verdict.variants),
            verdict.dtype,
            ("shapes" if verdict.only_shapes else "values") if ran else "",
            verdict.detail.replace("|", "\\|"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def add_command(commands: Any) -> None:
    parser = commands.add_parser("operators", description=__doc__, help="torch's operator database as the judge")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these operators, by their names in op_db")
    parser.add_argument(
        "--odd", action="store_true", help="with odd arguments: all samples, ties, sizes that differ, none"
    )
    parser.add_argument("--part", metavar="N/M", default="1/1", help="the Nth of M parts of the operators")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the table there")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--seconds", type=float, default=60, help="time limit for one operator")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    table = operators()
    names = list(table)
    if options.only:
        # A name stands for all variants of it: `div` is div.no_rounding_mode, div.floor_rounding, and so on.
        names = [name for name in names if name in options.only or table[name].name in options.only]
        missing = [name for name in options.only if not any(name in (found, table[found].name) for found in names)]
        if missing:
            raise SystemExit(f"no operator is called {', '.join(missing)}")
    part, parts = map(int, options.part.split("/"))
    names = names[part - 1 :: parts]
    # It is made of what is in this file.
    from benchmarks.odd_arguments import judge_odd

    judged = judge_odd if options.odd else judge
    verdicts = judge_all(
        names,
        lambda name: judged(table[name]),
        workers=options.workers,
        seconds=options.seconds,
        progress=sys.stderr.isatty(),
    )
    if options.write is not None:
        options.write.write_text(markdown(verdicts), encoding="utf-8")
    if options.json:
        print(
            json.dumps({"summary": summary(verdicts), "operators": [asdict(verdict) for verdict in verdicts]}, indent=2)
        )
        return
    for verdict in verdicts:
        if verdict.verdict != RIGHT or options.only:
            print(
                f"{verdict.name:<45} {verdict.verdict:<12} {verdict.how:<12} {verdict.steps}/{verdict.examples}  {verdict.detail}"
            )
    for name, value in summary(verdicts).items():
        print(f"{name:<35} {value}")
