"""The verdict on a program: what it gives one by one, against what it gives batched in every variant."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace

import foldloom as fl
from benchmarks.fuzz.comparing import (
    Difference,
    differences,
    differences_of_gradients,
    identities,
    same_type,
    tensors_of,
)
from benchmarks.fuzz.running import ALONE, VARIANTS, Batch, Outcome, run


@dataclass(frozen=True)
class Verdict:
    """``kind`` is right, refused, wrong, crashed, hung or unstable; ``alone`` is what the program raised one by one."""

    kind: str
    variant: str = ""
    category: str = ""
    detail: str = ""
    alone: str = ""

    @property
    def fails(self) -> bool:
        return self.kind in ("wrong", "crashed", "hung")

    @property
    def sort(self) -> str:
        return f"{self.kind}, {self.category}"

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def verdict_on(
    source: str, variants: Collection[str] = (), ignoring: Collection[str] = (), batch: Batch = fl.batch
) -> Verdict:
    """The first variant that fails, or else the first that refuses.

    ``ignoring`` are categories of differences that are known already. ``batch`` is there to be replaced by one that is wrong.
    """
    worst = Verdict("right")
    alone = {1: run(source, ALONE), 2: run(source, replace(ALONE, rounds=2))}
    for variant in VARIANTS:
        if variants and variant.name not in variants:
            continue
        batched = run(source, replace(variant, batch=batch))
        verdict = replace(_compared(source, alone[variant.rounds], batched, ignoring), variant=variant.name)
        if verdict.fails:
            return Verdict("unstable") if _is_unstable(source, alone[1]) else verdict
        worst = verdict if worst.kind == "right" else worst
    return worst


def assert_law(source: str) -> None:
    """For tests: the program gives batched what it gives one by one."""
    verdict = verdict_on(textwrap.dedent(source))
    assert verdict.kind == "right", f"{verdict.variant}: {verdict.detail}"


def _compared(source: str, alone: Outcome, batched: Outcome, ignoring: Collection[str]) -> Verdict:
    if batched.error is not None or alone.error is not None:
        verdict = _compared_errors(source, alone.error, batched.error)
        return Verdict("right") if verdict.category in ignoring and verdict.fails else verdict
    most = _rounding(source)
    for difference in _all_differences(alone, batched):
        if difference.category not in ignoring and difference.size >= most:
            return Verdict("wrong", category=difference.category, detail=difference.detail)
    return Verdict("right")


def _rounding(source: str) -> float:
    """How large differences may be that come of rounding: sums over examples are rounded in another order than one by one, under autocast
    to eight bits, and gradients of what a program makes single to 24."""
    if "autocast" in source:
        return 0.05
    return 1e-6 if ".float()" in source or "sum(dtype=torch.float32" in source else 0.0


# --- errors ----------------------------------------------------------------------------------------------------


def _compared_errors(source: str, wanted: BaseException | None, found: BaseException | None) -> Verdict:
    raised = type(wanted).__name__ if wanted is not None else ""
    if found is None:
        return Verdict("wrong", "", "no error", f"nothing is raised, alone {_described(wanted)}", raised)
    if _stands_for(found, wanted):
        return Verdict("right", alone=raised)
    if isinstance(found, fl.errors.FoldloomError) and not _is_an_accident(found):
        return Verdict("refused", "", type(found).__name__, _described(found), raised)
    if wanted is None:
        return Verdict("crashed", "", _signature(found), _described(found))
    later = any(_stands_for(found, run(source, ALONE, only=number).error) for number in range(1, 5))
    names = f"{type(found).__name__} for {raised}"
    category = "error of a later example" if later else f"another error, {names}"
    return Verdict("wrong", "", category, f"{_described(found)}, alone {_described(wanted)}", raised)


def _stands_for(found: BaseException, wanted: BaseException | None) -> bool:
    """The same type, or an error of ours with one of that type as its cause."""
    kinds = [type(found)]
    if isinstance(found, fl.errors.FoldloomError) and found.__cause__ is not None:
        kinds.append(type(found.__cause__))
    return wanted is not None and any(same_type(type(wanted), kind) for kind in kinds)


def _is_an_accident(found: BaseException) -> bool:
    """A cell that failed where nothing fails one by one is no refusal, though the error is ours."""
    return type(found) is fl.errors.CellError and found.__cause__ is not None


def _described(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _signature(error: BaseException) -> str:
    """Names a sort of crash: the type, how its message begins, and the function of ours that it came out of."""
    trace, place = error.__traceback__, "the program"
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/foldloom/" in code.co_filename:
            place = code.co_qualname
        trace = trace.tb_next
    words = " ".join(re.sub(r"[^a-z_ ]+", "*", str(error).lower()).split()[:4])
    return f"{type(error).__name__} '{words}' in {place}"


# --- what else can be seen -------------------------------------------------------------------------------------


def _all_differences(alone: Outcome, batched: Outcome) -> Iterator[Difference]:
    """What is worst comes first."""
    yield from differences(alone.results, batched.results, "result")
    yield from _in_state(alone, batched)
    if (alone.backward_error is None) != (batched.backward_error is None):
        wanted, got = (_described(o.backward_error) if o.backward_error else "nothing" for o in (alone, batched))
        category = "backward error" if batched.backward_error is not None else "no backward error"
        yield Difference(category, f"backward raises {got}, alone {wanted}")
    elif alone.backward_error is None:
        yield from _in_gradients(alone, batched)
    wanted_ids, found_ids = (identities([*tensors_of(o.results), *o.sources.values()]) for o in (alone, batched))
    if wanted_ids != found_ids:
        yield Difference("identity", "two tensors are one object alone and two batched, or the other way round")


def _in_state(alone: Outcome, batched: Outcome) -> Iterator[Difference]:
    for name, wanted in alone.state.items():
        for difference in differences(wanted, batched.state.get(name), f"{name} afterwards"):
            yield Difference(f"state {difference.category}", difference.detail)


def _in_gradients(alone: Outcome, batched: Outcome) -> Iterator[Difference]:
    for name, wanted in alone.sources.items():
        found = batched.sources[name]
        yield from differences_of_gradients(wanted.grad, found.grad, f"gradient of {name}")
        yield from differences(wanted.detach(), found.detach(), f"{name} afterwards")


# --- rounding --------------------------------------------------------------------------------------------------


def _is_unstable(source: str, alone: Outcome) -> bool:
    """Whether rounding alone decides what the program does: then it says nothing about batching.

    All numbers a little larger or smaller must make little difference. What is equal stays equal, so ties are not suspected.
    """
    for by in (1 + 3e-13, 1 - 7e-13, 1 + 5e-12):
        other = run(source, ALONE, scaled_by=by)
        if (other.error is None) != (alone.error is None):
            return True
        if other.error is None and any(_all_differences(alone, other)):
            return True
    return False
