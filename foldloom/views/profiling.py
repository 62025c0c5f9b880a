"""`fl.profile`: where the time of real runs goes, and what to change first."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from foldloom.caching import cached_property
from foldloom.execution.observer import observed_by
from foldloom.planning.schedulers import ByAgenda, ByDepth
from foldloom.views.advice import Advice, Costs, advice_for
from foldloom.views.explaining import rows_in_words
from foldloom.views.page import Page, page_of
from foldloom.views.reasons import Reason, reasons_of
from foldloom.views.survey import Survey, survey_of_parts, survey_of_plan, view_of_step
from foldloom.views.text import FAINT, GOOD, NAME, Column, Line, Piece, Table, Text, counted, heading, plain
from foldloom.views.timing import (
    BACKWARD,
    BACKWARD_GATHERS,
    FORWARD,
    GATHERS,
    PHASES,
    PLANNING,
    RECORDING,
    Run,
    Timer,
)


@dataclass
class OperationTimes:
    """What all steps of one operation took, over all runs."""

    name: str
    steps: int = 0
    nodes: int = 0
    alone: int = 0
    widest: int = 0
    forward: float = 0.0
    backward: float = 0.0
    gathers: float = 0.0
    bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.gathers


class Profile:
    """The times of everything that was batched inside ``with fl.profile() as profile``. Prints itself.

    >>> import torch, foldloom as fl
    >>> with fl.profile() as profile:
    ...     results = fl.batch(lambda x: x * 2)([torch.ones(2), torch.zeros(2)])
    >>> "steps" in str(profile)
    True

    Times of a backward pass count for the steps whose gradients it computes. What torch computes outside of batches (the loss, the
    optimiser) is part of the rest. On a GPU, which computes while Python goes on, times are those of giving it work.
    """

    def __init__(self) -> None:
        self.timer = Timer()
        self.seconds = 0.0
        """From the beginning of the block to its end."""

    @property
    def runs(self) -> list[Run]:
        return self.timer.runs_so_far

    @cached_property
    def phases(self) -> dict[str, float]:
        """Seconds by what they were spent on; the rest of the block is "the rest"."""
        totals: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        for span in self.timer.spans:
            totals[span.phase] += span.seconds
        totals["the rest"] = max(0.0, self.seconds - sum(totals.values()))
        return totals

    @cached_property
    def operations(self) -> list[OperationTimes]:
        """The dearest first."""
        found: dict[str, OperationTimes] = {}
        by_step = self._seconds_of_steps
        for number, run in enumerate(self.runs):
            for at, step in enumerate(run.plan.steps):
                op = run.plan.ops[step.op]
                entry = found.setdefault(op.label or op.key, OperationTimes(op.label or op.key))
                entry.steps += 1
                entry.nodes += step.size
                entry.alone += step.size == 1
                entry.widest = max(entry.widest, step.size)
                entry.bytes += view_of_step(run.plan, step, 0, step.op).bytes_copied
                times = by_step[number, at]
                entry.forward += times[FORWARD]
                entry.backward += times[BACKWARD]
                entry.gathers += times[GATHERS] + times[BACKWARD_GATHERS]
        return sorted(found.values(), key=lambda entry: -entry.seconds)

    @cached_property
    def _seconds_of_steps(self) -> dict[tuple[int, int], Counter[str]]:
        found: dict[tuple[int, int], Any] = defaultdict(Counter)
        for span in self.timer.spans:
            if span.run >= 0:
                found[span.run, span.step][span.phase] += span.seconds
        return found

    @cached_property
    def _batches(self) -> list[list[int]]:
        """The runs of each batch."""
        runs_of_batch: dict[int, list[int]] = {}
        for number, run in enumerate(self.runs):
            runs_of_batch.setdefault(run.batch, []).append(number)
        return list(runs_of_batch.values())

    def _seconds_of_run(self, number: int) -> float:
        return sum(self._seconds_of_steps[number, step].total() for step in range(len(self.runs[number].plan.steps)))

    @cached_property
    def _dearest(self) -> list[int]:
        """The runs of the batch that took longest, which stands for all of them."""
        return max(self._batches, key=lambda runs: sum(map(self._seconds_of_run, runs)), default=[])

    @cached_property
    def survey(self) -> Survey:
        """The batch that took longest."""
        runs = [self.runs[number] for number in self._dearest]
        parts = [run.part for run in runs if run.part is not None]
        if parts and len(parts) == len(runs):
            chosen = self.timer.scheduler
            others = [other for other in (ByDepth(), ByAgenda()) if type(other) is not type(chosen)]
            return survey_of_parts(parts, [chosen, *others])
        return survey_of_plan(runs[0].plan) if runs else survey_of_parts([], [])

    @cached_property
    def reasons(self) -> list[Reason]:
        """What did not run together, in the batch that took longest."""
        return reasons_of(self.survey, self.survey.chosen, self.timer.without_rule) if self.runs else []

    @cached_property
    def advice(self) -> Advice:
        """The one thing to change first."""
        return advice_for(self.survey, self.reasons, self._costs())

    def _costs(self) -> Costs:
        """Of the batch that took longest. A step counts as much as the middle one of its operation: a machine that does something else
        for a moment must not change the advice."""
        number_of_op = {op: number for number, op in enumerate(self.survey.ops)}
        steps = [
            (plan.ops[step.op], self._seconds_of_steps[run, at].total())
            for run in self._dearest
            for plan in (self.runs[run].plan,)
            for at, step in enumerate(plan.steps)
        ]
        of_name: dict[str, list[float]] = defaultdict(list)
        for op, seconds in steps:
            of_name[op.label or op.key].append(seconds)
        usual = {name: median(seconds) for name, seconds in of_name.items()}
        of_op = [0.0] * len(number_of_op)
        for op, _ in steps:
            of_op[number_of_op[op]] += usual[op.label or op.key]
        # Recording and planning cannot be told apart by batch; the dearest one's share is that of its runs.
        share = len(self._dearest) / max(1, len(self.runs))
        return Costs(self.phases[RECORDING] * share, self.phases[PLANNING] * share, of_op)

    # ---- As text, as a page, as a trace.

    def text(self) -> Text:
        return Text([*self._summary(), plain(""), *self._table().lines()])

    def print(self) -> None:
        """In colour on a terminal, if rich is installed."""
        self.text().print()

    def __str__(self) -> str:
        return str(self.text())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.text()._repr_html_()

    def _summary(self) -> Iterator[Line]:
        steps = [view_of_step(run.plan, step, 0, step.op) for run in self.runs for step in run.plan.steps]
        nodes = sum(step.size for step in steps)
        parts = f", {len(self.runs)} parts" if len(self.runs) > len(self._batches) else ""
        batches = f"{len(self._batches):,} {'batch' if len(self._batches) == 1 else 'batches'}"
        yield heading(
            f"{batches}{parts}: {counted(nodes, 'node')} in {counted(len(steps), 'step')}, {duration(self.seconds)}"
        )
        yield plain(
            f"  mean batch {nodes / max(1, len(steps)):.1f}, largest {max((step.size for step in steps), default=0):,}; "
            f"{rows_in_words(sum(s.rows_copied for s in steps), sum(s.rows_in_place for s in steps))}, "
            f"{sum(step.bytes_copied for step in steps) / 1024:,.0f} KiB"
        )
        total = max(self.seconds, 1e-12)
        yield plain("  " + ", ".join(f"{name} {s / total:.0%}" for name, s in self.phases.items() if s))
        yield plain("")
        yield Piece("Change first: ", GOOD), Piece(self.advice.text)
        if self.advice.place is not None:
            longest = ", in the batch that took longest" if len(self._batches) > 1 else ""
            yield plain(f"  at {self.advice.place}{longest}", FAINT)

    def _table(self) -> Table:
        columns = [Column("operation", style=NAME)] + [
            Column(title, to_the_right=True)
            for title in ("steps", "nodes", "batch", "widest", "alone", "forward", "backward", "gathers", "KiB copied")
        ]
        return Table(columns, [_cells(entry) for entry in self.operations])

    def page(self, title: str = "Profile") -> Page:
        """The batch that took longest, as `show` draws it, with the times of its steps."""
        seconds = [
            self._seconds_of_steps[run, at].total()
            for run in self._dearest
            for at in range(len(self.runs[run].plan.steps))
        ]
        profile = {
            "advice": self.advice.text,
            "place": "" if self.advice.place is None else f"at {self.advice.place}",
            "phases": [{"name": name, "seconds": seconds} for name, seconds in self.phases.items()],
            "operations": [
                {
                    "name": entry.name, "steps": entry.steps, "nodes": entry.nodes, "forward": entry.forward,
                    "backward": entry.backward, "gathers": entry.gathers, "bytes": entry.bytes,
                }
                for entry in self.operations
            ],
        }  # fmt: skip
        return page_of(self.survey, title, profile, seconds)

    def trace(self, path: str | Path) -> Path:
        """Everything on a time line, for chrome://tracing and its like."""
        path = Path(path)
        path.write_text(json.dumps({"traceEvents": list(self._events()), "displayTimeUnit": "ms"}), encoding="utf-8")
        return path

    def _events(self) -> Iterator[dict[str, Any]]:
        origin = min((span.start for span in self.timer.spans), default=0.0)
        for number, phase in enumerate(PHASES):
            yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": phase}}
        for span in self.timer.spans:
            event = {
                "name": span.phase,
                "cat": span.phase,
                "ph": "X",
                "pid": 0,
                "tid": PHASES.index(span.phase),
                "ts": (span.start - origin) * 1e6,
                "dur": span.seconds * 1e6,
            }
            if span.run >= 0 and span.step < len(self.runs[span.run].plan.steps):
                plan = self.runs[span.run].plan
                step = plan.steps[span.step]
                event["name"] = plan.ops[step.op].label or plan.ops[step.op].key
                event["args"] = {"run": span.run, "step": span.step, "batch": step.size, "op": str(plan.ops[step.op])}
            yield event


def _cells(entry: OperationTimes) -> Sequence[str]:
    return [
        entry.name,
        f"{entry.steps:,}",
        f"{entry.nodes:,}",
        f"{entry.nodes / entry.steps:.1f}",
        f"{entry.widest:,}",
        f"{entry.alone:,}" if entry.alone else "",
        duration(entry.forward),
        duration(entry.backward) if entry.backward else "",
        duration(entry.gathers),
        f"{entry.bytes / 1024:,.0f}" if entry.bytes else "",
    ]


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"


@contextmanager
def profile() -> Iterator[Profile]:
    """Time what is batched within, forward and backward, in this thread.

    >>> import torch, foldloom as fl
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> with fl.profile() as profile:
    ...     loss = torch.stack(fl.batch(lambda x: (x * weight).sum())(torch.ones(3, 2))).sum()
    ...     loss.backward()
    >>> [entry.name for entry in sorted(profile.operations, key=lambda entry: entry.name)]
    ['mul', 'sum']
    """
    made = Profile()
    start = perf_counter()
    try:
        with observed_by(made.timer):
            yield made
    finally:
        made.seconds = perf_counter() - start
