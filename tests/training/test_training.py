"""Every task is trained, evaluated and asked, on small made data; and what a run folder has."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foldloom.cli import commands as cli
from foldloom.cli import entry
from foldloom.data import TaggedSentence
from foldloom.errors import ArgumentError, DataError, RunError
from foldloom.planning.schedulers import ByAgenda
from foldloom.tasks import TASKS, Data
from foldloom.training import Run, train
from foldloom.training.batches import batches_of_epoch
from foldloom.training.comparing import loss_by, loss_one_by_one
from foldloom.training.evaluating import evaluate, predictions
from tests.training.small import curve, small_run, trained

every_task = pytest.mark.parametrize("name", TASKS)

LINES = {
    "sentiment": ("(3 (2 a) (4 superb))", "(3 (2 a)", "is not closed"),
    "code": ("n % 2 == 0", "n %", "expected a Python program"),
    "tagging": ("the dog sleeps", "", "expected the words of a sentence"),
    "parsing": ("the|DET dog|NOUN sees|VERB", "the dog", "expected tokens such as word|TAG"),
    "molecules": ("CCO", "C(", "expected a molecule in SMILES notation"),
    "arithmetic": ("( - ( 1 10 ) )", "( - ( 1 x ) )", "expected a whole number, not 'x'"),
    "adding": ("[[0.1, -1], [0.5, 1], [-0.3, 1]]", "[1]", "expected a sequence of numbers"),
}
"""A line to predict from, a malformed one, and what is said of it."""


@every_task
def test_a_quick_training_of_every_task(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path / "run")
    cli.main(["train", name, "--quick", "--folder", folder, "--device", "cpu"])
    *told, last = capsys.readouterr().out.splitlines()
    assert last == f"finished: the best model is in {folder}"
    epochs = TASKS[name].defaults(quick=True).epochs
    assert len(told) == epochs
    assert told[0].startswith(f"epoch 1/{epochs}: loss ")
    assert told[0].endswith(" examples/s, the best so far")
    rows = curve(Path(folder))
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert (Path(folder) / "curves.png").read_bytes().startswith(b"\x89PNG")

    cli.main(["eval", "--run", folder, "--part", "dev"])
    scores = json.loads(capsys.readouterr().out)
    kept = json.loads((Path(folder) / "scores.json").read_text())["dev"]
    assert {score: scores[score] for score in kept} == pytest.approx(kept, rel=1e-5)

    good, malformed, problem = LINES[name]
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{good}\n{malformed}\n{good}\n"))
    entry.main(["predict", "--run", folder])
    first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
    assert first.keys() == {"result"}
    assert second["line"] == 2
    assert problem in second["error"]
    assert third == first

    (tmp_path / "lines").write_text(f"{malformed}\n{good}\n{good}\n")
    entry.main(["predict", "--run", folder, "--batch", "3", str(tmp_path / "lines")])
    together = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer.keys() for answer in together] == [{"error", "line"}, {"result"}, {"result"}]


@every_task
def test_tasks_learn_batched_what_they_learn_one_by_one(name: str) -> None:
    settings = TASKS[name].defaults(quick=True)
    data = TASKS[name].made_data(8, settings)
    task = TASKS[name].fitted(data, settings)
    model = task.model().eval()
    task.begin(model, data)
    examples = [task.example(item) for item in data.train]
    alone = loss_one_by_one(model, examples)
    torch.testing.assert_close(model.loss(examples), alone)
    torch.testing.assert_close(loss_by(ByAgenda(), model, examples), alone)
    alone.backward()
    assert all(weights.grad is not None for weights in model.parameters())


@every_task
def test_tasks_are_the_same_after_a_round_through_json(name: str) -> None:
    settings = TASKS[name].defaults(quick=True)
    data = TASKS[name].made_data(8, settings)
    task = TASKS[name].fitted(data, settings)
    again = TASKS[name].restored(json.loads(json.dumps(task.to_json())))
    assert again.settings == task.settings
    assert again.to_json() == task.to_json()
    model, other = task.model().eval(), again.model().eval()
    other.load_state_dict(model.state_dict())
    answers = [
        [of.answer(item, given) for item, given in zip(data.dev, predictions(m, [of.example(i) for i in data.dev]), strict=True)]
        for of, m in ((task, model), (again, other))
    ]  # fmt: skip
    assert json.loads(json.dumps(answers[0])) == answers[1]


@every_task
def test_tasks_make_the_same_items_again(name: str) -> None:
    def shown(seed: int) -> list[str]:
        with np.printoptions(threshold=sys.maxsize):
            return [repr(item) for item in TASKS[name].made(3, seed)]

    assert shown(1) == shown(1) != shown(2)


def test_the_best_weights_are_kept(tmp_path: Path) -> None:
    """By the task's quality: of errors the smallest."""
    run = trained(tmp_path, "molecules", {"learning_rate": "0.1", "epochs": "5"})
    errors = [float(row["RMSE"]) for row in curve(tmp_path) if row["RMSE"]]
    kept = json.loads((tmp_path / "scores.json").read_text())
    assert (kept["epoch"], kept["dev"]["RMSE"]) == (1 + errors.index(min(errors)), min(errors))
    assert evaluate(Run.at(run.folder), "dev")["RMSE"] == pytest.approx(min(errors), rel=1e-5)


def test_batches_of_an_epoch() -> None:
    batches = batches_of_epoch(103, 10, seed=1, epoch=2)
    assert sorted(number for batch in batches for number in batch) == list(range(103))
    assert {len(batch) for batch in batches} == {9, 10}
    assert batches == batches_of_epoch(103, 10, seed=1, epoch=2)
    assert batches != batches_of_epoch(103, 10, seed=1, epoch=3) != batches_of_epoch(103, 10, seed=2, epoch=3)


def test_data_of_ones_own(tmp_path: Path) -> None:
    """A quick training takes the first examples of what is given; an evaluation may look at other data."""
    for part, count in (("train", 300), ("dev", 5), ("test", 7)):
        trees = TASKS["sentiment"].made(count, seed=count)
        (tmp_path / f"{part}.txt").write_text("".join(f"{tree}\n" for tree in trees))
    run = Run.new(tmp_path / "run", "sentiment", source=tmp_path, quick=True)
    assert run.data.counts == {"train": 200, "dev": 5, "test": 7}
    assert train(run, device="cpu", progress=False)
    (tmp_path / "test.txt").write_text("(3 (2 a) (4 superb))\n")
    assert evaluate(Run.at(run.folder), "test")["examples"] == 1
    with pytest.raises(
        RunError, match="has changed: it had 200 to train, 5 to dev, 7 to test examples, and has 200 to"
    ):
        train(Run.at(run.folder), resume=True, device="cpu", progress=False)


def test_data_that_lacks_a_part(tmp_path: Path) -> None:
    for part, text in (("train", "the|DET dog|NOUN\n"), ("dev", "")):
        (tmp_path / f"{part}.txt").write_text(text)
    with pytest.raises(DataError, match=r"expected examples to learn .* not 1 to train, 0 to dev, 0 to test"):
        Run.new(tmp_path / "run", "tagging", source=tmp_path)
    (tmp_path / "dev.txt").write_text("the|DET cat|NOUN\n")
    run = Run.new(tmp_path / "run", "tagging", source=tmp_path, quick=True)
    assert train(run, device="cpu", progress=False)
    with pytest.raises(ArgumentError, match="has nothing for test: ask for --part train, --part dev"):
        evaluate(run)
    (tmp_path / "dev.conllu").write_text("")
    with pytest.raises(DataError, match=r"expected one file for dev, not dev.conllu, dev.txt"):
        Run.new(tmp_path / "run", "tagging", source=tmp_path)


def test_names_in_text() -> None:
    """Where tags mark names, whole names are counted, before words."""
    sentence = TaggedSentence(("Ada", "Lovelace", "in", "London"), ("I-PER", "I-PER", "O", "I-LOC"))
    task: Any = TASKS["tagging"].fitted(Data([sentence], [sentence]), TASKS["tagging"].defaults())
    given = [task.tags[tag] for tag in ("I-PER", "O", "O", "I-LOC")]
    assert task.scores([given], [sentence]) == {"F1": 0.5, "accuracy": 0.75}


def test_classes_of_molecules() -> None:
    """Targets that are all 0 or 1 are classes; those that are not known count for nothing."""
    kind: Any = TASKS["molecules"]
    molecules = [replace(m, targets={"toxic": float(n % 2)} if n else {}) for n, m in enumerate(kind.made(7, seed=0))]
    task = kind.fitted(Data(molecules, molecules), kind.defaults().changed({"targets": "toxic"}))
    assert task.classes
    given = [torch.tensor([0.5 + 0.1 * (n % 2)]) for n in range(7)]
    assert task.scores(given, molecules) == {"ROC-AUC": 1.0}
    assert task.quality({"ROC-AUC": 0.7}) == 0.7
    assert not kind.fitted(kind.made_data(8, kind.defaults()), kind.defaults()).classes
    with pytest.raises(DataError, match="expected a number of each of toxic,other for some molecule at least"):
        kind.fitted(Data(molecules, molecules), kind.defaults().changed({"targets": "toxic,other"}))


def test_vectors_that_were_trained_elsewhere(tmp_path: Path) -> None:
    """Words that only the development data has are known if they have a vector."""
    (tmp_path / "vocab.txt").write_text("fine\nmarvellous\n")
    np.save(tmp_path / "vectors.npy", np.array([[1.0, 2.0], [3.0, 4.0]], np.float16))
    for part, word in (("train", "fine"), ("dev", "marvellous")):
        (tmp_path / f"{part}.txt").write_text(f"(3 (2 a) (3 {word}))\n")
    settings = TASKS["sentiment"].defaults(quick=True).changed({"vectors": str(tmp_path), "embedding": "2"})
    (tmp_path / "data").mkdir()
    for part in ("train", "dev"):
        (tmp_path / f"{part}.txt").rename(tmp_path / "data" / f"{part}.txt")
    run = Run.new(tmp_path / "run", "sentiment", source=tmp_path / "data", settings=settings)
    task: Any = run.task
    assert task.words.names == ["<unknown>", "a", "fine", "marvellous"]
    model = task.model()
    task.begin(model, run.data)
    [table] = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    assert table.weight[2:].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_what_a_run_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path)
    with pytest.raises(RunError, match=r"has no model\.safetensors: the training ended before its first epoch did"):
        run.model()
    assert train(run, device="cpu", progress=False)
    with pytest.raises(RunError, match="has a training already: go on with it by `--resume"):
        train(small_run(tmp_path), device="cpu", progress=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "tagging", "--resume", str(tmp_path)])
    assert ended.value.code == 2
    assert "is a training of sentiment, not of tagging" in capsys.readouterr().err
    with pytest.raises(ArgumentError, match="there is no cuda here, but cpu"):
        train(small_run(tmp_path / "other"), device="cuda")
    with pytest.raises(ArgumentError, match="there is no task 'weather'; there are sentiment, "):
        Run.new(tmp_path / "other", "weather")
    (tmp_path / "config.json").write_text('{"task": "sentiment"}')
    with pytest.raises(RunError, match=r"config.json is not what a training of this version wrote: it lacks 'source'"):
        Run.at(tmp_path)


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    run = small_run(tmp_path, "molecules")
    run.data.train[0].atoms[0] = np.nan
    with pytest.raises(RunError, match=r"the loss of step \d+ is nan: a smaller learning rate may help"):
        train(run, device="cpu", progress=False)


@pytest.mark.parametrize("package", ["accelerate", "tqdm", "matplotlib.figure", "safetensors.torch"])
def test_what_is_missing_is_said(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    name = package.partition(".")[0]
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "adding", "--quick", "--folder", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{name} is needed: pip install 'foldloom[train]'" in capsys.readouterr().err
