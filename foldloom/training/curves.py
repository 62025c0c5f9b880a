"""How loss and scores went, as a table and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from foldloom.data.reading import installed
from foldloom.training import tensorboard
from foldloom.training.run import Run

COLUMNS = ("step", "epoch", "examples", "seconds", "loss")
Row = dict[str, Any]
"""``COLUMNS``, and after an epoch the scores of the development data."""


def save_curves(run: Run, rows: Sequence[Row]) -> None:
    scores = list(dict.fromkeys(name for row in rows for name in row if name not in COLUMNS))
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, (*COLUMNS, *scores), restval="")
    table.writeheader()
    table.writerows(rows)
    run.save("curves.csv", text.getvalue().encode())
    run.save(tensorboard.NAME, tensorboard.events_of(rows, COLUMNS[:-1]))
    picture = io.BytesIO()
    _draw(run.task.name, rows, scores).savefig(picture, format="png", dpi=120)
    run.save("curves.png", picture.getvalue())


def _draw(title: str, rows: Sequence[Row], scores: Sequence[str]) -> Any:
    figure = installed("matplotlib.figure", extra="train", to="draw learning curves").Figure(
        figsize=(9, 3.5), layout="constrained"
    )
    of_loss, of_scores = figure.subplots(1, 2)
    of_loss.plot([row["examples"] for row in rows], [row["loss"] for row in rows], linewidth=1)
    of_loss.set(title=title, xlabel="examples", ylabel="training loss")
    for name in scores:
        scored = [row for row in rows if name in row]
        of_scores.plot([row["epoch"] for row in scored], [row[name] for row in scored], marker=".", label=name)
    of_scores.set(title="development data", xlabel="epoch")
    if scores:
        of_scores.legend()
    return figure
