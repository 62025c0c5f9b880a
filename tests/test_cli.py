"""The command line, and the tasks that it knows."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from foldloom import blocks as fb
from foldloom.cli import main
from foldloom.tasks import TASKS

ROOT = Path(__file__).parent.parent
every_task = pytest.mark.parametrize("name", TASKS)


@every_task
def test_explain(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    main(["explain", name, "--examples", "4", "--html", str(page), "--picture", str(picture)])
    output = capsys.readouterr()
    assert output.out.startswith("4 examples, ")
    assert output.err == f"wrote {page}\nwrote {picture}\n"
    assert f"<title>{name} · Foldloom</title>" in page.read_text()
    root = ElementTree.fromstring(picture.read_text())
    namespace = "{http://www.w3.org/2000/svg}"
    steps = [int(line.split()[3]) for line in output.out.splitlines()[3:4] for _ in (0,) if line.split()[3].isdigit()]
    assert len(root.findall(f"{namespace}rect")) >= 2 * sum(steps)
    assert root.findall(f"{namespace}circle")


@every_task
def test_profile(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    main(["profile", name, "--examples", "4", "--html", str(page), "--trace", str(trace)])
    output = capsys.readouterr().out
    assert output.startswith("1 batch: ")
    assert "\nChange first: " in output
    assert json.loads(trace.read_text())["traceEvents"]
    assert "Change first" in page.read_text()


def test_schedulers(capsys: pytest.CaptureFixture[str]) -> None:
    steps = {}
    for name in ("by-depth", "by-agenda", "one-by-one"):
        for task in ("tagger", "molecule"):
            main(["explain", task, "--examples", "3", "--schedule", name])
            steps[task, name] = int(capsys.readouterr().out.split(" steps")[0].split()[-1].replace(",", ""))
    for task in ("tagger", "molecule"):
        assert steps[task, "by-agenda"] < steps[task, "by-depth"] < steps[task, "one-by-one"]


def test_unknown_task(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "weather"])
    assert "invalid choice: 'weather'" in capsys.readouterr().err


def test_as_a_module_and_as_a_command() -> None:
    help = subprocess.run(
        [sys.executable, "-m", "foldloom", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "explain" in help.stdout
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"foldloom": "foldloom.entry:main"}


@every_task
def test_tasks_learn(name: str) -> None:
    """A few steps on a few examples make the loss smaller: every weight is reached."""
    task = TASKS[name]
    model, examples = task.model(), task.made_examples(6, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = task.loss(model, examples)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(weights.grad is not None for weights in model.parameters())


@every_task
def test_tasks_make_the_same_examples_again(name: str) -> None:
    made = TASKS[name].made_examples
    assert made(3, 1) == made(3, 1) != made(3, 2)


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if not isinstance(task.model(), fb.Model)])
def test_tasks_give_what_one_by_one_gives(name: str) -> None:
    task = TASKS[name]
    model, examples = task.model().double(), task.made_examples(5, 0)
    torch.set_default_dtype(torch.float64)
    try:
        alone = torch.stack([model(example) for example in examples]).mean()
        torch.testing.assert_close(task.loss(model, examples), alone)
    finally:
        torch.set_default_dtype(torch.float32)
