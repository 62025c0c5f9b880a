"""A survey as a picture (SVG) that stands on its own: a few examples above, the looms of its schedulers below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from foldloom.graph import Ints
from foldloom.views.page import kinds_of
from foldloom.views.survey import Schedule, Survey

WIDTH, MARGIN, LOOM_HEIGHT, EXAMPLES_HEIGHT = 960, 24, 110, 180
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a900", "#8c8c8c")
VIRIDIS = ("#440154", "#482878", "#3e4a89", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725")
_STYLE = """
  svg { background: #fffefb } text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #5c646e }
  .name { font-weight: 600; fill: #1d2126 } .edge { stroke: #c9c5ba } .line { stroke: #dedbd2 }
  @media (prefers-color-scheme: dark) {
    svg { background: #1c2026 } text { fill: #9aa3ad } .name { fill: #eceae4 } .edge { stroke: #434b55 }
    .line { stroke: #2e343c }
  }
"""


def picture_of(survey: Survey, most_examples: int = 5) -> str:
    kinds = list(kinds_of(survey))
    body, bottom = _examples(survey, most_examples)
    longest = max((len(schedule.steps) for schedule in survey.schedules), default=1)
    for schedule in survey.schedules:
        body += _loom(survey, schedule, kinds, bottom, longest)
        bottom += LOOM_HEIGHT + 52
    body += _legend(kinds, bottom)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 30}" role="img" '
        f'aria-label="{escape(_in_words(survey))}">\n<style>{_STYLE}</style>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _in_words(survey: Survey) -> str:
    counts = ", ".join(f"{schedule.name} {len(schedule.steps)} steps" for schedule in survey.schedules)
    return f"{survey.chosen.node_count} nodes of {survey.example_count} examples: {counts}"


def _step_colour(step: int, count: int) -> str:
    place = 0.92 * step / max(1, count - 1) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    ends = [[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in VIRIDIS[low : low + 2]]
    mixed = [round(a + (b - a) * (place - low)) for a, b in zip(*ends, strict=True)]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _loom(survey: Survey, schedule: Schedule, kinds: Sequence[str], top: int, longest: int) -> Iterator[str]:
    base = top + 24 + LOOM_HEIGHT
    pitch = (WIDTH - 2 * MARGIN) / max(1, longest)
    tallest = max(1, schedule.largest_batch)
    yield (
        f'<text x="{MARGIN}" y="{top + 14}"><tspan class="name">{escape(schedule.name)}</tspan>  {len(schedule.steps):,} steps, '
        f"mean batch {schedule.mean_batch:.1f}, {schedule.node_count:,} nodes</text>"
    )
    yield f'<path class="line" d="M{MARGIN} {base + 0.5}H{WIDTH - MARGIN}"/>'
    for number, step in enumerate(schedule.steps):
        # By the square root, so that steps of one member are seen beside steps of hundreds.
        height = max(2.0, LOOM_HEIGHT * (step.size / tallest) ** 0.5)
        op = survey.ops[step.op]
        left, width = MARGIN + number * pitch, max(0.6, pitch - (1 if pitch > 4 else 0))
        colour = COLOURS[kinds.index(op.label or op.key) % len(COLOURS)]
        yield f'<rect x="{left:.1f}" y="{base - height:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
        mark = _step_colour(number, len(schedule.steps))
        yield f'<rect x="{left:.1f}" y="{base + 4}" width="{max(0.6, pitch):.1f}" height="5" fill="{mark}"/>'


def _legend(kinds: Sequence[str], top: int) -> Iterator[str]:
    left = MARGIN
    for number, name in enumerate(kinds[: len(COLOURS)]):
        yield f'<rect x="{left}" y="{top}" width="12" height="12" rx="3" fill="{COLOURS[number]}"/>'
        yield f'<text x="{left + 18}" y="{top + 11}">{escape(name)}</text>'
        left += 42 + 8 * len(name)


def _examples(survey: Survey, most: int) -> tuple[list[str], int]:
    """The first examples side by side, and where they end."""
    numbers = np.unique(survey.example_of_node)[:most].tolist()
    shapes = [_shape(survey, np.flatnonzero(survey.example_of_node == number)) for number in numbers]
    width = sum(shape.width + 2 for shape in shapes)
    highest = max([shape.height for shape in shapes], default=0)
    unit = min((WIDTH - 2 * MARGIN) / max(1, width), EXAMPLES_HEIGHT / max(1, highest))
    base = MARGIN + highest * unit
    left = (WIDTH - width * unit) / 2 + unit
    body: list[str] = []
    for shape in shapes:
        body += shape.drawn(survey, left, base, unit)
        left += (shape.width + 2) * unit
    return body, round(base + MARGIN)


class _Shape:
    """Where the nodes of one example stand, each above what it reads. What was given is left out."""

    def __init__(self, places: dict[int, tuple[float, int]]) -> None:
        lefts = [x for x, _ in places.values()]
        lowest = min((y for _, y in places.values()), default=0)
        self.places = {node: (x - min(lefts), y - lowest) for node, (x, y) in places.items()}
        self.width = max(lefts, default=0.0) - min(lefts, default=0.0)
        self.height = max((y for _, y in self.places.values()), default=0)

    def drawn(self, survey: Survey, left: float, base: float, unit: float) -> Iterator[str]:
        at = {node: (left + x * unit, base - y * unit) for node, (x, y) in self.places.items()}
        for node, (x, y) in at.items():
            for source in _sources(survey, node):
                if source in at:
                    yield f'<path class="edge" d="M{at[source][0]:.1f} {at[source][1]:.1f}L{x:.1f} {y:.1f}"/>'
        steps = survey.chosen.step_of_node
        for node, (x, y) in at.items():
            colour = _step_colour(int(steps[node]), len(survey.chosen.steps))
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{min(unit * 0.42, 9):.1f}" fill="{colour}"/>'


def _sources(survey: Survey, node: int) -> list[int]:
    first = int(survey.first_operand_of_node[node])
    sources: list[int] = survey.operands[first : first + int(survey.arity_of_node[node])].tolist()
    return sources


def _shape(survey: Survey, nodes: Ints) -> _Shape:
    places: dict[int, tuple[float, int]] = {}
    rows: dict[int, list[int]] = {}
    free = 0
    for node in nodes[survey.chosen.step_of_node[nodes] >= 0].tolist():
        known = [places[source] for source in _sources(survey, node) if source in places]
        height = 1 + max((y for _, y in known), default=0)
        places[node] = (sum(x for x, _ in known) / len(known) if known else float(free), height)
        free += not known
        rows.setdefault(height, []).append(node)
    for row in rows.values():
        row.sort(key=lambda node: places[node][0])
        wished = sum(places[node][0] for node in row)
        for before, after in pairwise(row):
            places[after] = (max(places[after][0], places[before][0] + 1), places[after][1])
        # Neighbours make room to both sides.
        shift = (sum(places[node][0] for node in row) - wished) / len(row)
        for node in row:
            places[node] = (places[node][0] - shift, places[node][1])
    return _Shape(places)
