"""`fl.explain`: whole texts in golden files, and what it takes."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import foldloom as fl
from foldloom import models
from foldloom.errors import ArgumentError
from foldloom.graph.recording import merge_recordings
from foldloom.tracing.cells.core import Cell
from tests.views.programs import (
    TREES,
    Attention,
    TreeModel,
    chain,
    ragged_sentences,
    samples,
    until_small,
    with_forgotten_basis,
)

GOLDEN = Path(__file__).parent / "golden"

CASES = {
    "trees": lambda: fl.explain(TreeModel(), TREES, scheduler=fl.ByDepth()),
    "trees-by-agenda": lambda: fl.explain(TreeModel(), TREES),
    "plan": lambda: fl.explain(fl.plan([fl.record(TreeModel(), tree) for tree in TREES])),
    "attention": lambda: fl.explain(Attention(), ragged_sentences()),
    "forgotten-basis": lambda: fl.explain(with_forgotten_basis, samples(6)),
    "until-small": lambda: fl.explain(until_small, [torch.full((8,), 10.0**n) for n in range(3)]),
    "rounds": lambda: fl.explain(chain, [5, 20, 31]),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    """Run with ACCEPT=1 to write the files anew; then read the difference."""
    path = GOLDEN / f"{name}.txt"
    # Whether functions become automatic cells depends on the compiled parts.
    lines = [
        line
        for line in str(CASES[name]()).split("\n")
        if not line.startswith(("  no automatic cell", "    nor a part of it"))
    ]
    text = "\n".join(lines) + "\n"
    if os.environ.get("ACCEPT"):
        path.write_text(text)
    assert text == path.read_text()


def test_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    model = TreeModel()
    fl.explain(model, TREES)  # types are found by trying each cell once
    original = Cell.call_batched
    monkeypatch.setattr(Cell, "call_batched", lambda *args: called.append("run") or original(*args))  # type: ignore[func-returns-value]
    fl.explain(model, TREES)
    assert not called


def test_values_that_are_asked_for_are_computed() -> None:
    text = str(fl.explain(until_small, [torch.full((8,), 10.0)]))
    assert "a value is asked for at tests/views/programs.py" in text
    assert "in until_small" in text


def same_counts(text: object) -> str:
    return str(text).splitlines()[0]


def test_what_it_takes() -> None:
    model = TreeModel()
    recordings = [fl.record(model, tree) for tree in TREES]
    merged = merge_recordings(recordings)
    targets: list[tuple[Any, ...]] = [
        (model, TREES), (fl.batch(model), TREES), (recordings,), (merged,), (merged.graph,), (fl.plan(recordings),),
        (fl.plan(recordings).plan,),
    ]  # fmt: skip
    assert {same_counts(fl.explain(*target)) for target in targets} == {"3 examples, 18 nodes in 5 steps"}
    assert same_counts(fl.explain(recordings[0])) == "1 example, 6 nodes in 4 steps"


def test_compiled_block() -> None:
    model = models.TreeLSTM(10, 4, 4).states
    trees = [(0, (1, 1), (2, 2)), (1, (1, 3), (1, (0, 4), (1, 5)))]
    assert same_counts(fl.explain(model, trees)) == same_counts(fl.explain(model.plan(trees)))
    with pytest.raises(ArgumentError, match=r"fb.compile\(block, scheduler=...\)"):
        fl.explain(model, trees, scheduler=fl.ByAgenda())


def test_scheduler_of_what_is_batched_already() -> None:
    batched = fl.batch(TreeModel())
    assert str(fl.explain(batched, TREES)) != str(fl.explain(batched, TREES, scheduler=fl.OneByOne()))
    assert "18 nodes in 18 steps" in str(fl.explain(batched, TREES, scheduler=fl.OneByOne()))


def test_several_arguments() -> None:
    double = fl.cell(lambda x, y: x * y)
    assert same_counts(fl.explain(lambda x, y: double(x, y), [1, 2], [3, 4])) == "2 examples, 2 nodes in 1 step"


@pytest.mark.parametrize(
    ("target", "message"),
    [((TreeModel(),), "without examples"), ((TreeModel(), []), "no examples"), (([],), "without examples")],
)
def test_what_it_refuses(target: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fl.explain(*target)


def test_a_plan_has_its_schedule() -> None:
    planned = fl.plan([fl.record(TreeModel(), tree) for tree in TREES])
    with pytest.raises(ArgumentError, match="scheduled already"):
        fl.explain(planned, scheduler=fl.ByAgenda())


def test_run_on_demand_is_told() -> None:
    text = str(fl.explain(lambda x: (x + 1).as_strided((2,), (1,)), [torch.ones(4), torch.zeros(4)]))
    assert "`as_strided` runs its 2 members one by one: it reads the memory of the block" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_on_a_terminal_only() -> None:
    pytest.importorskip("rich", reason="colours need rich: pip install foldloom[views]")
    explanation = fl.explain(TreeModel(), TREES)
    terminal, pipe = Terminal(), io.StringIO()
    explanation.print(terminal)
    explanation.print(pipe)
    assert "\x1b[" in terminal.getvalue()
    assert pipe.getvalue() == f"{explanation}\n"


def test_plain_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    terminal = Terminal()
    fl.explain(TreeModel(), TREES).print(terminal)
    assert "\x1b[" not in terminal.getvalue()
