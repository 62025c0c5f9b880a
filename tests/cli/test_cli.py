"""The command line: what it shows of tasks, and what it says when it is told wrong things. Training has tests of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest

from foldloom.cli.commands import main
from foldloom.tasks import TASKS

ROOT = Path(__file__).parents[2]
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
    steps = int(output.out.splitlines()[0].split()[-2].replace(",", ""))
    assert len(root.findall(f"{namespace}rect")) >= steps
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
    for task in ("parsing", "molecules"):
        steps = {}
        for name in ("by-depth", "by-agenda", "one-by-one"):
            main(["explain", task, "--examples", "3", "--schedule", name])
            steps[name] = int(capsys.readouterr().out.split(" steps")[0].split()[-1].replace(",", ""))
        assert steps["by-agenda"] <= steps["by-depth"] < steps["one-by-one"]


@every_task
def test_bench(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["bench", name, "--quick", "--rounds", "1", "--set", "batch=4"])
    said = capsys.readouterr().out
    assert said.startswith(f"{name}, batches of 4: one by one ")
    assert said.endswith(" times as many\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "weather"], "invalid choice: 'weather'"),
        (["train", "sentiment", "--set", "hidden"], "expected a setting such as epochs=3 after --set, not 'hidden'"),
        (["train", "sentiment", "--set", "hide=3"], "there is no setting 'hide'; there are seed, epochs, batch, "),
        (["train", "parsing", "--set", "explore=1"], "expected true or false for the setting 'explore', not '1'"),
        (
            ["train", "tagging", "--set", "epochs=1.5"],
            "expected a whole number from 1 to 1,000,000 for the setting 'epochs', not '1.5'",
        ),
        (["train", "sentiment"], "sentiment needs data: give a folder with train.txt, dev.txt and test.txt of the "),
        (["train", "sentiment", "--data", "nowhere"], "nowhere: expected a folder with files with train, dev, test in"),
        (["train", "sentiment", "--resume", "nowhere"], "nowhere is not the folder of a training: it has no config"),
        (
            ["train", "sentiment", "--resume", "run", "--seed", "1"],
            "a training goes on with its own settings: leave out",
        ),
        (["eval", "--run", "nowhere"], "nowhere is not the folder of a training"),
        (["predict", "--run", "nowhere"], "nowhere is not the folder of a training"),
        (["predict"], "one of the arguments --run --model is required"),
        (["predict", "--run", "run", "--allow", "os"], "are for models that were exported; leave them out with --run"),
    ],
)
def test_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert said in f"{ended.value.code}\n{capsys.readouterr().err}"


def test_as_a_module_and_as_a_command() -> None:
    help = subprocess.run(
        [sys.executable, "-m", "foldloom", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert all(command in help.stdout for command in ("train", "eval", "predict", "bench", "explain", "profile"))
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"foldloom": "foldloom.cli.entry:main"}
