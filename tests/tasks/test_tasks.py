"""Tasks over programs and over sequences that are made up: what they read, ask and answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foldloom.data.python_source import HIDDEN
from foldloom.errors import ArgumentError, DataError
from foldloom.tasks.adding import AddingTask
from foldloom.tasks.code import KINDS, CodeTask

PROGRAM = "def f(x):\n    return x.{name} + 1\n\nif f(2) > 0 and not f: pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(30):
        (tmp_path / f"{number}.py").write_text(PROGRAM.format(name=f"name{number}"))
    (tmp_path / "bad.py").write_text("=")
    (tmp_path / "latin.py").write_bytes(b"# \xff")
    return tmp_path


def test_no_file_is_in_two_parts(folder: Path) -> None:
    data = CodeTask.read(folder, CodeTask.defaults())
    names = [{item.expression.name for item in items} for _, items in data]
    assert all(names)
    assert len(set.union(*names)) == sum(map(len, names)) == 30
    assert sum(data.counts.values()) == 60


def test_expressions_are_read_until_there_are_enough(folder: Path) -> None:
    settings = replace(CodeTask.defaults(), expressions=20, largest=10)
    data = CodeTask.read(folder, settings)
    assert 20 <= sum(data.counts.values()) < 22
    assert {item.expression.text[:2] for item in data.train} == {"x."}, "the other expression has more nodes"


def test_a_folder_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected a folder of Python programs"):
        CodeTask.read(tmp_path, CodeTask.defaults())


def test_the_outermost_operator_is_asked_for() -> None:
    data = CodeTask.made_data(20, CodeTask.defaults(quick=True))
    task = CodeTask.fitted(data, CodeTask.defaults(quick=True))
    item = task.parse("f(-x + 1, y[2 * z])")
    assert (str(item), item.kind) == ("f(-x ▢ 1, y[2 * z])", "Add")
    assert [node.kind for node in item.tree].count(HIDDEN) == 1
    assert task.example(item).label == KINDS["Add"]
    for line, problem in (("f(x)", "not 0 expressions"), ("a + b; c + d", "not 2 expressions"), ("a +", "invalid")):
        with pytest.raises(DataError, match=problem):
            task.parse(line)


def test_operators_that_are_written_alike_are_one_answer() -> None:
    data = CodeTask.made_data(20, CodeTask.defaults(quick=True))
    task = CodeTask.fitted(data, CodeTask.defaults(quick=True))
    predicted = torch.zeros(len(KINDS))
    predicted[[KINDS["USub"], KINDS["Sub"], KINDS["Add"]]] = torch.tensor([0.3, 0.3, 0.4])
    answer = task.answer(task.parse("a - b"), predicted)
    assert (answer["expression"], answer["operator"]) == ("a ▢ b", "-")
    assert answer["probabilities"]["-"] == pytest.approx(0.6)
    assert task.scores([predicted], [task.parse("a + b")]) == {"accuracy": 1.0}


def test_adding() -> None:
    settings = replace(AddingTask.defaults(), sequences=5, shortest=4, longest=9)
    data = AddingTask.read(None, settings)
    assert (data.counts, min(len(item.rows) for item in data.test)) == ({"train": 5, "dev": 500, "test": 1_000}, 4)
    task = AddingTask.fitted(data, settings)
    item = task.parse("[[0.1, -1], [0.5, 1], [-0.3, 1], [0.2, -1]]")
    assert np.allclose(item.rows[:, 0], [0.1, 0.5, -0.3, 0.2])
    first = data.test[0]
    marked = first.rows[first.rows[:, 1] == 1, 0].sum()
    assert task.answer(first, first.target)["sum"] == pytest.approx(marked)
    assert task.scores([first.target + 0.03, first.target + 0.05], [first, first])["solved"] == 0.5
    for line in ("[1, 2]", "a", "[[1, 2], [3]]"):
        with pytest.raises(DataError, match="expected a sequence of numbers"):
            task.parse(line)
    with pytest.raises(ArgumentError, match="needs no data"):
        AddingTask.read(Path(), settings)
