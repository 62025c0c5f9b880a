"""The one thing to change first: of everything that keeps a program from running in fewer steps, what would save most time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foldloom.views.reasons import Cause, Reason
from foldloom.views.survey import Place, Survey

WORTH_IT = 0.05
"""What saves less than this share of the time that steps take is not worth a change."""


@dataclass(frozen=True)
class Advice:
    """What to change, where, and how much of the time that would save at most."""

    cause: str
    text: str
    place: Place | None = None
    saves: float = 0.0

    def __str__(self) -> str:
        return self.text if self.place is None else f"{self.text} ({self.place})"


@dataclass(frozen=True)
class Costs:
    """The seconds that things took. ``of_op`` has those of the survey's ops, forward and backward."""

    recording: float
    planning: float
    of_op: Sequence[float]

    @property
    def steps(self) -> float:
        return sum(self.of_op)

    @property
    def total(self) -> float:
        return self.steps + self.recording + self.planning


def advice_for(survey: Survey, reasons: Sequence[Reason], costs: Costs) -> Advice:
    """Of what keeps calls apart, the dearest. Recording comes last: calls that stay apart are also dearer to record."""
    if not survey.schedules or not survey.chosen.steps:
        return Advice("nothing", "nothing was batched: call `fl.batch` inside `with fl.profile()`")
    candidates = [*_from_reasons(reasons, costs), *_from_demands(survey, costs), *_from_schedules(survey, costs)]
    best = max(candidates, key=lambda advice: advice.saves, default=None)
    if best is not None and best.saves >= WORTH_IT * costs.steps:
        return best
    return _from_recording(survey, costs) if costs.recording > 0.5 * costs.total else _nothing(survey, costs)


def _from_reasons(reasons: Sequence[Reason], costs: Costs) -> Iterator[Advice]:
    for reason in reasons:
        seconds = sum(costs.of_op[op] for op in reason.ops)
        saves = seconds * (1 - reason.fewest / max(1, reason.steps))
        yield Advice(reason.cause.value, _past(reason), reason.place, saves)


def _past(reason: Reason) -> str:
    if reason.cause is Cause.NO_RULE:
        return f"`{reason.label}` ran its {reason.nodes:,} members one by one: {reason.detail}"
    if 2 * reason.alone < reason.steps:
        return f"`{reason.label}` ran {reason.steps:,} times, for {reason.nodes / reason.steps:.1f} members on average: {reason.detail}"
    return f"`{reason.label}` ran alone {reason.alone:,} times: {reason.detail}"


def _from_demands(survey: Survey, costs: Costs) -> Iterator[Advice]:
    counts = Counter([place for place in survey.demands if place is not None])
    if not counts:
        return
    place, count = counts.most_common(1)[0]
    nodes = survey.chosen.node_count / survey.part_count
    steps, fewest = len(survey.chosen.steps), _steps_in_one_part(survey)
    if 2 * fewest <= steps:
        saves = (costs.steps + costs.planning) * (1 - fewest / steps)
        remedy = "what comes later does not need it, so ask after the loop"
    else:
        saves = costs.planning * (1 - 1 / survey.part_count)
        remedy = "ask only every few rounds, or decide without asking (`torch.where`)"
    yield Advice(
        "demand",
        f"a value was asked for {count:,} times inside a loop, and each time everything waited for a batch of {nodes:.1f} nodes: {remedy}",
        place,
        saves,
    )


def _steps_in_one_part(survey: Survey) -> int:
    """How many steps it would take by depth if nobody asked on the way."""
    depths: list[int] = []
    levels: set[tuple[int, int]] = set()
    operands = iter(survey.operands.tolist())
    for op, arity in zip(survey.op_of_node.tolist(), survey.arity_of_node.tolist(), strict=True):
        deepest = max([depths[next(operands)] for _ in range(arity)], default=0)
        depths.append(0 if survey.ops[op].is_input else deepest + 1)
        if depths[-1]:
            levels.add((op, depths[-1]))
    return len(levels)


def _from_schedules(survey: Survey, costs: Costs) -> Iterator[Advice]:
    chosen = survey.chosen
    for other in survey.schedules[1:]:
        if len(other.steps) < 0.8 * len(chosen.steps):
            name = "".join(word.capitalize() for word in other.name.split())
            yield Advice(
                "scheduler",
                f"{other.name} takes {len(other.steps):,} steps where {chosen.name} takes {len(chosen.steps):,}: write "
                f"`scheduler=fl.{name}()`",
                None,
                costs.steps * (1 - len(other.steps) / len(chosen.steps)),
            )


def _from_recording(survey: Survey, costs: Costs) -> Advice:
    share = costs.recording / costs.total
    once = (
        ""
        if survey.part_count > 1
        else ", or record each example once and plan the recordings (`fl.record`, `fl.plan`)"
    )
    return Advice(
        "recording",
        f"recording takes {share:.0%} of the time: make a cell (`fl.cell`) of what always goes together{once}",
        None,
        costs.recording,
    )


def _nothing(survey: Survey, costs: Costs) -> Advice:
    seconds: Counter[str] = Counter()
    for op, cost in zip(survey.ops, costs.of_op, strict=True):
        seconds[op.label or op.key] += cost  # type: ignore[assignment]
    name, cost = seconds.most_common(1)[0]
    return Advice(
        "nothing",
        f"nothing stands out: steps have {survey.chosen.mean_batch:.1f} members on average, and `{name}` takes "
        f"{cost / max(costs.total, 1e-12):.0%} of the time",
    )
