"""A survey as one page of HTML, with everything that it needs in it."""

from __future__ import annotations

import html
import json
import webbrowser
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from foldloom.views.survey import Schedule, Survey

_SCRIPTS = ("colours.js", "layout.js", "drawing.js", "profile.js", "page.js")
_INLINE_HEIGHT = 760


@dataclass(frozen=True)
class Page:
    """One page that needs no network. Shows itself in a notebook. Made by `show`.

    >>> import tempfile, torch, foldloom as fl
    >>> page = fl.show(lambda x: x * 2, [torch.ones(2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = page.save(f"{folder}/page.html")
    """

    html: str

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.write_text(self.html, encoding="utf-8")
        return path

    def open(self) -> None:
        """In the browser."""
        with NamedTemporaryFile("w", suffix=".html", prefix="foldloom-", delete=False, encoding="utf-8") as file:
            file.write(self.html)
        webbrowser.open(Path(file.name).as_uri())

    def _repr_html_(self) -> str:
        # A document of its own, so that its styles and keys stay with it.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" style="width: 100%; height: {_INLINE_HEIGHT}px; border: 0" '
            'title="Foldloom"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Page of {len(self.html):,} characters: page.save(path) or page.open()"


def page_of(survey: Survey, title: str, profile: dict[str, Any] | None = None, seconds: Sequence[float] = ()) -> Page:
    """``seconds`` are those of each step of the first schedule, if it has run."""
    data = _data(survey)
    if profile is not None:
        data["profile"] = profile
        data["schedules"][0]["seconds"] = [float(f"{value:.3g}") for value in seconds]
    # "</script>" in a name must not end the script that it is data of.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    assets = files("foldloom.views") / "assets"
    parts = {
        "{{style}}": (assets / "page.css").read_text("utf-8"),
        "{{script}}": "\n".join((assets / name).read_text("utf-8") for name in _SCRIPTS),
        "{{data}}": text,
        "{{title}}": html.escape(title),
    }
    page = (assets / "page.html").read_text("utf-8")
    for mark, content in parts.items():
        page = page.replace(mark, content)
    return Page(page)


def _data(survey: Survey) -> dict[str, Any]:
    kinds = kinds_of(survey)
    number_of_kind = {name: number for number, name in enumerate(kinds)}
    places = list(dict.fromkeys([place for place in survey.places if place is not None]))
    number_of_place = {place: number for number, place in enumerate(places)}
    return {
        "examples": survey.example_count,
        "parts": survey.part_count,
        "kinds": [{"name": name, "nodes": count} for name, count in kinds.items()],
        "ops": [
            {
                "name": "given" if op.is_input else op.label or op.key,
                "given": op.is_input,
                "kind": number_of_kind.get(op.label or op.key, 0),
                "inputs": list(map(str, op.inputs)),
                "outputs": list(map(str, op.outputs)),
            }
            for op in survey.ops
        ],
        "places": list(map(str, places)),
        "nodes": {
            "op": survey.op_of_node.tolist(),
            "example": survey.example_of_node.tolist(),
            "arity": survey.arity_of_node.tolist(),
            "operands": survey.operands.tolist(),
            "place": [-1 if place is None else number_of_place[place] for place in survey.places],
        },
        "schedules": [_schedule_data(schedule) for schedule in survey.schedules],
    }


def kinds_of(survey: Survey) -> dict[str, int]:
    """The names of operations, those with most nodes first: ops that differ in shapes alone have one colour."""
    names = [op.label or op.key for op in survey.ops]
    counts = Counter([names[op] for op in survey.op_of_node.tolist() if not survey.ops[op].is_input])
    return dict(counts.most_common())


def _schedule_data(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "step": schedule.step_of_node.tolist(),
        "steps": [list(step) for step in schedule.steps],
    }
