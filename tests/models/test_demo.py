"""What ``make demo`` runs, on few expressions and with a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import hidden_operators
from foldloom.data import ExpressionReader
from foldloom.tasks.code import CodeTask, HiddenOperator


def hidden(*lines: str) -> list[HiddenOperator]:
    return [HiddenOperator(expression, 0) for expression in ExpressionReader().parse("\n".join(lines))]


def test_baselines() -> None:
    data = hidden("a + b", "a + c", "a - b", "a < b", "not a")
    assert hidden_operators.most_frequent(data, hidden("x + y", "x < y", "not x", "-x")) == (0.25, 0.75)
    assert [hidden_operators.operation_of(item) for item in hidden("a + b < c", "f(a or b)")] == ["BinOp", "BoolOp"]


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = CodeTask.defaults(quick=True)
    monkeypatch.setattr(CodeTask, "defaults", lambda: small)
    for number in (1, 2):
        hidden_operators.main(["--expressions", "600", "--epochs", "1", "--runs", str(tmp_path)])
        printed = capsys.readouterr().out
        folder = tmp_path / f"demo-{number}"
        assert f"learning curve: {folder / 'curves.png'}" in printed
        assert f"how a batch is scheduled: {folder / 'schedule.svg'}" in printed
        assert (folder / "curves.png").stat().st_size > 1_000
        assert (folder / "schedule.svg").read_text().startswith("<svg")
    assert printed.count("▢") == 6
    assert printed.count(" was ") == 5
    assert "the most frequent operator would be" in printed
    assert "times as many" in printed
