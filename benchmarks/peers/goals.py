"""What Foldloom should reach beside its peers, and what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.measuring import MEASURED, Row
from benchmarks.peers.tasks import SETUPS
from benchmarks.timing import median_ratio

AFRESH = ("foldloom-cells", "foldloom-compiled", "foldloom-blocks")
"""Trees are recorded and planned as they come."""
KEPT = ("foldloom-cells-kept", "foldloom-compiled-kept", "foldloom-blocks-kept")
"""Recorded once, as the code by hand makes them arrays once; planned as they come."""
DYNET = ("dynet-depth", "dynet-agenda", "dynet-unbatched")
TAGGERS = ("foldloom-cells", "foldloom-sequences")


@dataclass(frozen=True)
class Goal:
    """Of several peers on either side the fastest counts."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    setup: str
    batch: int
    must: float
    aim: float
    train: bool = True
    threads: int = 1

    @property
    def key(self) -> tuple[int, str, int]:
        """What is measured together."""
        return self.threads, self.setup, self.batch


GOALS = (
    *[
        Goal(ours, theirs, "tree-lstm", batch, must, 1.15)
        for batch, must in ((25, 1.0), (64, 1.0), (256, 1.05))
        for ours, theirs in ((KEPT, ("by-hand", "by-hand-compiled")), (AFRESH, ("by-hand-from-objects",)))
    ],
    Goal(TAGGERS, ("by-hand", "by-hand-packed"), "tagger", 64, 0.8, 1.0),
    Goal(AFRESH, ("one-by-one",), "tree-lstm", 256, 25, 40),
    *[
        Goal(AFRESH, DYNET, setup, batch, 1.4, 1.8)
        for setup in ("tree-lstm-root", "tree-lstm-root-256")
        for batch in (64, 256)
    ],
    *[Goal(TAGGERS, DYNET, setup, 64, 1.5, 3) for setup in ("tagger-characters", "tagger-characters-256")],
    Goal(("foldloom-on-the-fly",), DYNET, "tree-lstm-root", 64, 0.5, 1.0),
    Goal(AFRESH, ("geometric",), "tree-lstm", 256, 1.7, 2),
    Goal(AFRESH, ("jax",), "tree-lstm", 256, 4, 5),
    Goal(AFRESH, ("torchfold",), "tree-lstm", 256, 2.5, 3),
    Goal(AFRESH, ("products",), "tree-lstm-256", 256, 0.70, 0.85),
    Goal(AFRESH, ("by-hand",), "iclr-different", 256, 1.0, 1.2, train=False),
    Goal(KEPT, ("by-hand",), "tree-lstm", 1, 1.0, 2.3),
    *[
        Goal(ours, (theirs,), "tree-lstm", 256, 1.05, 1.15, threads=2)
        for ours, theirs in ((KEPT, "by-hand"), (AFRESH, "by-hand-from-objects"))
    ],
)


def peers_of(goals: Iterable[Goal]) -> list[str]:
    """Who has to be measured for some goals, in the order of the catalogue."""
    named = {name for goal in goals for name in (*goal.ours, *goal.theirs)}
    return [name for name in PEERS if name in named]


@dataclass(frozen=True)
class Outcome:
    goal: Goal
    ours: Row | None
    theirs: Row | None

    @property
    def seen(self) -> float | None:
        """How many times as fast as theirs: the median over rounds. None where either was not measured."""
        if self.ours is None or self.theirs is None:
            return None
        return median_ratio(self.theirs.seconds, self.ours.seconds)

    @property
    def verdict(self) -> str:
        if self.seen is None:
            return "not measured"
        return "aim" if self.seen >= self.goal.aim else "must" if self.seen >= self.goal.must else "missed"


def outcome(goal: Goal, rows: Sequence[Row]) -> Outcome:
    same = [
        row
        for row in rows
        if (row.threads, row.setup, row.batch) == goal.key and row.train is goal.train and row.status == MEASURED
    ]

    def fastest(names: tuple[str, ...]) -> Row | None:
        return max((row for row in same if row.peer in names), key=lambda row: row.rate, default=None)

    return Outcome(goal, fastest(goal.ours), fastest(goal.theirs))


def table(rows: Sequence[Row]) -> str:
    """All goals, as a table in Markdown."""
    lines = [
        "| against | Foldloom | task | batch | threads | must | aim | seen | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for found in (outcome(goal, rows) for goal in GOALS):
        goal = found.goal
        theirs = PEERS[found.theirs.peer if found.theirs else goal.theirs[0]].title
        ours = PEERS[found.ours.peer if found.ours else goal.ours[0]].title.removeprefix("Foldloom ")
        mode = "" if goal.train else ", inference"
        seen = "" if found.seen is None else f"{found.seen:.2f}"
        lines.append(
            f"| {theirs} | {ours} | {SETUPS[goal.setup].title}{mode} | {goal.batch} | {goal.threads} "
            f"| {goal.must:g} | {goal.aim:g} | {seen} | {found.verdict} |"
        )
    return "\n".join(lines)
