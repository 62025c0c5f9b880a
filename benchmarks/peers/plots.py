"""What was seen, as pictures: PNG for wherever SVG is not shown, SVG for everything else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.peers.catalogue import PEERS
from benchmarks.peers.measuring import MEASURED, Row
from benchmarks.peers.tasks import SETUPS

SHOWN = {
    "foldloom-cells": ("tab:blue", "-"),
    "foldloom-cells-kept": ("tab:blue", "--"),
    "foldloom-compiled": ("navy", "-"),
    "foldloom-compiled-kept": ("navy", "--"),
    "foldloom-blocks": ("tab:cyan", "-"),
    "foldloom-sequences": ("tab:cyan", "-"),
    "foldloom-sequences-kept": ("tab:cyan", "--"),
    "foldloom-on-the-fly": ("tab:blue", ":"),
    "by-hand": ("black", "-"),
    "by-hand-packed": ("black", "--"),
    "one-by-one": ("tab:gray", "-"),
    "dynet-agenda": ("tab:orange", "-"),
    "dynet-depth": ("tab:orange", "--"),
    "geometric": ("tab:green", "-"),
    "torchfold": ("tab:red", "-"),
    "jax": ("tab:purple", "-"),
}
"""Colour and line of each peer that is drawn: others differ too little from one of these."""

LIMIT = "products"


def draw_rates(rows: Sequence[Row], folder: Path) -> None:
    """Throughput against batch size, and the fraction of what the matrix products alone would take."""
    one_thread = [row for row in rows if row.threads == 1 and row.status == MEASURED]
    for setup in dict.fromkeys(row.setup for row in one_thread):
        of_setup = [row for row in one_thread if row.setup == setup]
        _save(_throughput(setup, of_setup), folder / f"throughput-{setup}")
        if any(row.peer == LIMIT and row.train for row in of_setup):
            _save(_fraction_of_limit(setup, of_setup), folder / f"limit-{setup}")


def draw_costs(costs: Sequence[Mapping[str, float]], folder: Path) -> None:
    """Cost per node against the number of nodes."""
    _save(_cost_per_node(costs), folder / "cost-per-node")


def _save(figure: Figure, stem: Path) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    # The same figures give the same file.
    with matplotlib.rc_context({"svg.hashsalt": "foldloom"}):
        figure.savefig(stem.with_suffix(".png"), dpi=120, metadata={"Software": None})
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def _throughput(setup: str, rows: Sequence[Row]) -> Figure:
    modes = [train for train in (True, False) if any(row.train is train for row in rows)]
    figure = Figure(figsize=(2 + 5 * len(modes), 4.5), layout="constrained")
    axes = figure.subplots(1, len(modes), squeeze=False, sharey=True)[0]
    for axis, train in zip(axes, modes, strict=True):
        _lines(axis, {(row.peer, row.batch): row.rate for row in rows if row.train is train})
        axis.set(title="training" if train else "inference", yscale="log", ylabel="examples a second")
    axes[-1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle(f"{SETUPS[setup].title}, one thread")
    return figure


def _fraction_of_limit(setup: str, rows: Sequence[Row]) -> Figure:
    training = {(row.peer, row.batch): row.rate for row in rows if row.train}
    fractions = {
        (peer, batch): rate / training[LIMIT, batch]
        for (peer, batch), rate in training.items()
        if (LIMIT, batch) in training and peer != LIMIT
    }
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.subplots()
    _lines(axis, fractions)
    axis.set(title=f"{SETUPS[setup].title}\ntraining, one thread", ylim=(0, 1))
    axis.set_ylabel("of the rate of the matrix products alone")
    axis.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _lines(axis: Any, values: Mapping[tuple[str, int], float]) -> None:
    for peer, (colour, line) in SHOWN.items():
        points = sorted((batch, value) for (name, batch), value in values.items() if name == peer)
        if points:
            axis.plot(*zip(*points, strict=True), marker=".", color=colour, linestyle=line, label=PEERS[peer].title)
    batches = sorted({batch for _, batch in values})
    axis.set_xscale("log", base=2)
    axis.set_xticks(batches, [str(batch) for batch in batches])
    axis.set_xlabel("batch")
    axis.grid(alpha=0.3)


def _cost_per_node(costs: Sequence[Mapping[str, float]]) -> Figure:
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    nodes = [cost["nodes"] for cost in costs]
    for part in ("record", "plan", "run", "total"):
        axis.plot(nodes, [cost[part] for cost in costs], marker=".", label=part)
    axis.set(title="Foldloom, training step of a Tree-LSTM", xscale="log", xlabel="nodes", ylim=(0, None))
    axis.set_ylabel("microseconds a node")
    axis.grid(alpha=0.3)
    axis.legend()
    return figure
