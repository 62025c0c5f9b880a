"""`fl.explain`: what will be batched, in words and a table of steps."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from foldloom.graph import Op
from foldloom.planning.schedulers import Scheduler
from foldloom.tracing import Batched
from foldloom.tracing.automatic.capture import refused
from foldloom.tracing.automatic.segments import divisions
from foldloom.tracing.cells.bodies import body_of, is_automatic
from foldloom.views.asking import ops_without_rule, survey_of
from foldloom.views.reasons import Reason, reasons_of
from foldloom.views.survey import Place, StepView, Survey
from foldloom.views.text import FAINT, NAME, WARNING, Column, Line, Piece, Table, Text, counted, heading, plain

_FOLD_FROM = 20
"""Plans of more steps than this are told in ranges."""

_MOST_ROWS, _FIRST_ROWS, _LAST_ROWS = 60, 40, 8
"""Where even ranges are many, those in the middle are counted."""

_OFTEN = 64
"""How many nodes a function records that is worth a word."""

_MOST_LINES = 6
"""How many lines of a function are named that no automatic cell begins with."""

_LONGEST_ROUND = 60
"""How many steps may repeat as one round."""


def explain(target: Any, *columns: Sequence[Any], scheduler: Scheduler | None = None) -> Text:
    """What `fl.batch` would make of a function and its examples, as text: printed, plain; `.print()` colours it on a terminal.

    Takes a function or module of one example with lists of arguments as `fl.batch` does, what `fl.batch` or `fb.compile` made, or
    a plan, a graph, a recording or several. Nothing runs, unless the function asks for values on the way.

    >>> import foldloom as fl
    >>> double = fl.cell(lambda x: 2 * x)
    >>> print(fl.explain(lambda n: double(double(n)), [1, 2, 3]))  # doctest: +ELLIPSIS
    3 examples, 6 nodes in 2 steps
      mean batch 3.0, largest 3; at most 3.0 times as fast as one by one (nodes / steps)
    ...
    """
    text = explanation_of(survey_of(target, columns, scheduler))
    paces = target.paces.in_words() if isinstance(target, Batched) else []
    return Text([text.lines[0], *[(Piece(f"  {words}", WARNING),) for words in paces], *text.lines[1:]])


def explanation_of(survey: Survey) -> Text:
    reasons = reasons_of(survey, survey.chosen, ops_without_rule(survey.ops))
    return Text([*_summary(survey), *_automatic(survey), *_unbatched(reasons), plain(""), *_steps(survey).lines()])


def _automatic(survey: Survey) -> Iterator[Line]:
    """Functions that became automatic cells, and those that record much and did not."""
    calls = Counter(survey.op_of_node.tolist())
    for number, op in enumerate(survey.ops):
        if is_automatic(op):
            size = counted(len(body_of(op).nodes), "operation")
            yield plain(f"  automatic cell {op.label}: {size} as one, {counted(calls[number], 'call')}")
    nodes = Counter([(os.path.abspath(place.file), place.function) for place in survey.places if place is not None])
    for code, reason in sorted(refused.items(), key=lambda item: item[0].co_firstlineno):
        if nodes[os.path.abspath(code.co_filename), code.co_qualname] >= _OFTEN:
            where = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"
            yield (Piece(f"  no automatic cell: {code.co_qualname} ({where}), because {reason}", FAINT),)
            division = divisions.get(code)
            for line, why in list({} if division is None else division.reasons().items())[:_MOST_LINES]:
                yield (Piece(f"    nor a part of it from line {line} on: {why}", FAINT),)


def _summary(survey: Survey) -> Iterator[Line]:
    chosen = survey.chosen
    parts = f", {survey.part_count} parts" if survey.part_count > 1 else ""
    yield heading(
        f"{counted(survey.example_count, 'example')}, {counted(chosen.node_count, 'node')} in "
        f"{counted(len(chosen.steps), 'step')}{parts}"
    )
    yield plain(
        f"  mean batch {chosen.mean_batch:.1f}, largest {chosen.largest_batch:,}; at most {chosen.mean_batch:.1f} times as fast as "
        "one by one (nodes / steps)"
    )
    yield plain(f"  {rows_in_words(chosen.rows_copied, chosen.rows_in_place)}")
    if len(survey.schedules) > 1:
        counts = ", ".join(f"{schedule.name} {len(schedule.steps):,}" for schedule in survey.schedules)
        yield plain(f"  steps by scheduler: {counts}")
    for place, count in Counter([place for place in survey.demands if place is not None]).most_common():
        yield (
            Piece(f"  a value is asked for at {place}", WARNING),
            Piece(f": ends {counted(count, 'part')}, and what comes later waits for them"),
        )


def rows_in_words(copied: int, in_place: int) -> str:
    share = in_place / max(1, copied + in_place)
    return f"{copied:,} rows copied, {in_place:,} used in place ({share:.0%})"


def _unbatched(reasons: Sequence[Reason]) -> Iterator[Line]:
    if not reasons:
        return
    yield plain("")
    yield heading("Could not be batched")
    for reason in reasons:
        yield Piece(f"  {reason.what} ", WARNING), Piece(reason.detail)
        follows = f"so do {', '.join(reason.follows)}, which it hands its lengths to" if reason.follows else ""
        notes = [note for note in (f"at {reason.place}" if reason.place else "", follows) if note]
        if notes:
            yield plain(f"    {'; '.join(notes)}", FAINT)


class _Row(NamedTuple):
    """One line of the table: a step, or the same step of several rounds."""

    first: int
    last: int
    steps: tuple[StepView, ...]


def _steps(survey: Survey) -> Table:
    steps = survey.chosen.steps
    columns = [
        Column("step", to_the_right=True),
        Column("operation", style=NAME),
        Column("batch", to_the_right=True),
        Column("copied", to_the_right=True),
        Column("in place", to_the_right=True),
        Column("shapes"),
        Column("where", style=FAINT),
    ]
    if len(steps) <= _FOLD_FROM:
        return Table(columns, [_cells(survey, _Row(n, n, (step,))) for n, step in enumerate(steps)])
    rows = _folded(survey, steps)
    if len(rows) <= _MOST_ROWS:
        return Table(columns, [_cells(survey, row) for row in rows])
    middle = rows[_FIRST_ROWS:-_LAST_ROWS]
    return Table(
        columns,
        [
            *[_cells(survey, row) for row in rows[:_FIRST_ROWS]],
            _middle_in_words(survey, middle),
            *[_cells(survey, row) for row in rows[-_LAST_ROWS:]],
        ],
    )


def _cells(survey: Survey, row: _Row) -> list[str]:
    ops = list(dict.fromkeys([step.op for step in row.steps]))
    places = list(dict.fromkeys([place for op in ops for place in survey.places_of_op.get(op, [])]))
    return [
        str(row.first) if row.first == row.last else f"{row.first}-{row.last}",
        name_of_op(survey.ops[ops[0]]) + (f" x {len(row.steps)}" if len(row.steps) > 1 else ""),
        _range([step.size for step in row.steps]),
        _range([step.rows_copied for step in row.steps]),
        _range([step.rows_in_place for step in row.steps]),
        shapes_of(survey.ops[ops[0]]) + (f" and {len(ops) - 1} more" if len(ops) > 1 else ""),
        _where(places),
    ]


def _middle_in_words(survey: Survey, rows: Sequence[_Row]) -> list[str]:
    counts = Counter([name_of_op(survey.ops[step.op]) for row in rows for step in row.steps])
    words = ", ".join(f"{name} x {count}" for name, count in counts.most_common())
    sizes = [step.size for row in rows for step in row.steps]
    return [f"{rows[0].first}-{rows[-1].last}", "...", f"{min(sizes):,} .. {max(sizes):,}", "", "", words, ""]


def name_of_op(op: Op) -> str:
    return op.label or op.key


def shapes_of(op: Op) -> str:
    """Types of operands and results, repeated ones counted."""
    sides = []
    for types in (op.inputs, op.outputs):
        counts = Counter(types)
        sides.append(", ".join(f"{count} x {type}" if count > 1 else str(type) for type, count in counts.items()))
    return " -> ".join(sides)


def _where(places: Sequence[Place]) -> str:
    if not places:
        return ""
    return str(places[0]) + (f" and {len(places) - 1} more" if len(places) > 1 else "")


def _range(numbers: Sequence[int]) -> str:
    """All of them if they are alike, else from the first to the last, by way of the largest if that is neither."""
    if len(set(numbers)) == 1:
        return f"{numbers[0]:,}" if numbers[0] else ""
    ends = [numbers[0], max(numbers), numbers[-1]]
    path = [number for n, number in enumerate(ends) if n == 0 or number != ends[n - 1]]
    if max(numbers) in (numbers[0], numbers[-1]):
        path = [numbers[0], numbers[-1]]
    return " .. ".join(f"{number:,}" for number in path)


def _folded(survey: Survey, steps: Sequence[StepView]) -> list[_Row]:
    """Steps of a loop or a recursion come in rounds: the same operations in the same order. Three rounds and more are told as one."""
    names = [survey.ops[step.op].key for step in steps]
    rows: list[_Row] = []
    at = 0
    while at < len(names):
        length, rounds = _rounds(names, at)
        last = at + length * rounds - 1
        for offset in range(length):
            members = tuple([steps[at + offset + length * number] for number in range(rounds)])
            rows.append(_Row(at + offset, last - length + 1 + offset, members))
        at = last + 1
    return rows


def _rounds(ops: Sequence[str], at: int) -> tuple[int, int]:
    """The length of a round that begins here, and how often it comes: the one that covers most, of these the shortest."""
    best = (1, 1)
    for length in range(1, min(_LONGEST_ROUND, (len(ops) - at) // 3) + 1):
        pattern = ops[at : at + length]
        rounds = 1
        while ops[at + rounds * length : at + (rounds + 1) * length] == pattern:
            rounds += 1
        if rounds >= 3 and length * rounds > best[0] * best[1]:
            best = (length, rounds)
    return best
