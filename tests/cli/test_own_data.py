"""The command line on data of one's own: what may be set, what is said of bad values, and five commands from a file to ONNX."""

from __future__ import annotations

import dataclasses
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foldloom
from foldloom.cli import entry
from foldloom.cli.commands import main
from foldloom.tasks import TASKS
from foldloom.tasks.settings import types_of

every_task = pytest.mark.parametrize("name", TASKS)

BAD = {
    int: ["", "x", "1.5", "-1", "nan", "inf", "1e3", "9" * 30, "9" * 5000, "-" + "9" * 30, "0x10", "1 2", "\n", "٣.٤"],
    float: ["", "x", "-1", "nan", "inf", "-inf", "1e999", "1,5", "--1", "\0"],
    bool: ["", "1", "0", "yes", "True", "TRUE", "2", " true"],
}
BAD_TEXTS = {
    "model": ["", "lstm", "Tree-LSTM", "\n"],
    "targets": ["", ",", "a,,b", "a,a", '"', " "],
    "vectors": ["/nowhere", "a\0b", "x" * 5000, "\n"],
    "smiles": ["no such column"],
}


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Said in one line, with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2, arguments
    output = capsys.readouterr()
    assert output.out == ""
    *_, last = output.err.splitlines()
    assert last.startswith("foldloom"), output.err
    assert "Traceback" not in output.err
    assert len(last) < 700
    return last


@every_task
def test_every_bad_value_of_every_setting(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Out of its range, or of another kind."""
    kind = TASKS[name]
    types = types_of(type(kind.defaults()))
    table = tmp_path / "table.csv"
    table.write_text("smiles,y\n" + "CCO,1\n" * 20)
    data = {"molecules": ["--data", str(table)]}.get(name, [])
    tried = 0
    for field in dataclasses.fields(kind.defaults()):
        values = list(BAD.get(types[field.name], BAD_TEXTS.get(field.name, [])))
        limits: Any = field.metadata.get("range")
        if limits is not None and types[field.name] is not str:
            values += [str(limit - 1) for limit in (limits.at_least,) if limit is not None]
            values += [str(limit + 1) for limit in (limits.at_most,) if limit is not None]
            values += [str(limit) for limit in (limits.above, limits.below) if limit is not None]
        assert values, f"nothing bad is known of {field.name}"
        for value in values:
            said = refused(
                ["train", name, "--quick", *data, "--folder", str(tmp_path / "run"), "--set", f"{field.name}={value}"],
                capsys,
            )
            assert field.name in said or "column" in said or field.name in ("vectors", "smiles")
            tried += 1
    assert tried > 50
    assert not (tmp_path / "run").exists()


@every_task
def test_settings_are_listed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["settings", name])
    told = capsys.readouterr().out
    for setting, value, wanted, meaning in TASKS[name].defaults().described():
        assert f"  {setting}={value}\n      {wanted}. {meaning}\n" in told
        assert meaning


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "adding", "--threads", "0"], "argument --threads: expected a whole number from 1 to 1,024, not '0'"),
        (["train", "adding", "--seed", "-1"], "argument --seed: expected a whole number from 0 to 4,294,967,295"),
        (["train", "adding", "--checkpoint-every", "0"], "expected a whole number from 1 on, not '0'"),
        (["train", "adding", "--device", "nonsense"], "there is no nonsense here"),
        (["train"], "expected a task, of sentiment, code, "),
        (["train", "weather"], "invalid choice: 'weather'"),
        (["train", "adding", "--set", "longest=5"], "expected 'longest' to be no less than 'shortest'"),
        (["train", "molecules", "--data", "/nowhere.csv"], "/nowhere.csv: expected a file, and there is none"),
        (["bench", "adding", "--rounds", "0"], "expected a whole number from 1 on"),
        (["explain", "adding", "--examples", "0"], "expected a whole number from 1 to 100,000"),
        (["explain"], "expected a task, of sentiment, "),
        (["profile", "--run", "/nowhere"], "/nowhere is not the folder of a training"),
        (["export", "--run", "/nowhere", "model.onnx"], "/nowhere is not the folder of a training"),
        (["predict", "--model", "/nowhere.onnx"], "there is no file /nowhere.onnx"),
        (["predict", "--model", "m.onnx", "--threads", "0"], "expected a whole number from 1 on, not '0'"),
        (["predict", "--model", "m.onnx", "--batch", "-1"], "expected a whole number from 1 on, not '-1'"),
        (["settings"], "the following arguments are required: TASK"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(arguments, capsys)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"foldloom {foldloom.__version__}\n"


def table(folder: Path) -> list[str]:
    """As a spreadsheet saves it: a byte order mark, semicolons, a column whose name holds a comma, rows that are spoiled."""
    draw = random.Random(0)
    rows = [f"m{n};{'C' * draw.randint(1, 9)}O;{draw.random():.3f};{n % 2}\r\n" for n in range(60)]
    text = 'name;SMILES;"log P, measured";toxic\r\n' + "".join(rows) + "bad;C(;1;1\r\nbad;CC;x;0\r\n"
    (folder / "own.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    return ["--data", str(folder / "own.csv"), "--set", "smiles=SMILES", "--set", 'targets="log P, measured",toxic']


def treebank(folder: Path) -> list[str]:
    for part, count in (("train", 40), ("dev", 10), ("test", 10)):
        trees = TASKS["sentiment"].made(count, seed=count)
        (folder / f"my-{part}.txt").write_text("".join(f"{tree}\n" for tree in trees))
    return ["--data", str(folder)]


def tagged(folder: Path) -> list[str]:
    for part, count in (("train", 40), ("dev", 10), ("test", 10)):
        lines = [
            " ".join(map("|".join, zip(s.words, s.tags, strict=True))) for s in TASKS["tagging"].made(count, count)
        ]
        (folder / f"{part}.txt").write_text("".join(f"{line}\n" for line in lines))
    return ["--data", str(folder)]


def parsed(folder: Path) -> list[str]:
    for part, count in (("train", 40), ("dev", 10), ("test", 10)):
        sentences = [
            "".join(
                f"{number}\t{word}\t_\t{tag}\t_\t_\t{head + 1}\t{relation}\t_\t_\n"
                for number, (word, tag, head, relation) in enumerate(
                    zip(s.words, s.tags, s.heads, s.relations, strict=True), 1
                )
            )
            for s in TASKS["parsing"].made(count, count)
        ]
        (folder / f"own-{part}.conllu").write_text("".join(f"{sentence}\n" for sentence in sentences))
    return ["--data", str(folder)]


@pytest.mark.parametrize(
    ("task", "make", "small", "line"),
    [
        ("molecules", table, ["size=8", "summary=8", "epochs=2"], "CCO"),
        ("sentiment", treebank, ["hidden=8", "embedding=8", "epochs=2"], "(3 (2 a) (4 superb))"),
        ("tagging", tagged, ["hidden=8", "embedding=8", "spelling=4", "epochs=2"], "the dog sleeps"),
        (
            "parsing",
            parsed,
            ["hidden=8", "embedding=8", "scorer=8", "epochs=2"],
            "the|DET dog|NOUN sees|VERB a|DET cat|NOUN",
        ),
    ],
)
def test_from_a_file_to_onnx_in_five_commands(
    task: str, make: Any, small: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime", reason="exported files are run by ONNX Runtime: pip install 'foldloom[runtime]'")
    pytest.importorskip("onnxscript", reason="files are written with onnxscript: pip install 'foldloom[export]'")
    (tmp_path / "data").mkdir()
    (tmp_path / "lines").write_text(f"{line}\n{line}\n")
    run, file, lines = str(tmp_path / "run"), str(tmp_path / "model.onnx"), str(tmp_path / "lines")
    settings = [part for each in small for part in ("--set", each)]
    main(["train", task, *make(tmp_path / "data"), *settings, "--folder", run, "--device", "cpu"])
    output = capsys.readouterr()
    assert "reading " in output.err
    assert "examples: " in output.err
    assert ("2 rows left out; the first: " in output.err) == (task == "molecules")
    main(["eval", "--run", run])
    assert json.loads(capsys.readouterr().out)["examples"] > 0
    entry.main(["predict", "--run", run, lines])
    answers = [json.loads(each)["result"] for each in capsys.readouterr().out.splitlines()]
    main(["export", "--run", run, file])
    assert capsys.readouterr().err.endswith(f"wrote {file}\n")
    entry.main(["predict", "--model", file, lines])
    exported = [json.loads(each)["result"] for each in capsys.readouterr().out.splitlines()]
    assert len(exported) == len(answers) == 2
    for one, other in zip(answers, exported, strict=True):
        assert one.keys() == other.keys()
        for value, again in zip(one.values(), other.values(), strict=True):
            assert value == (pytest.approx(again, rel=1e-4) if isinstance(value, dict | float) else again)
    main(["explain", "--run", run, "--examples", "4"])
    assert capsys.readouterr().out.startswith("4 examples, ")


def test_a_column_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lipo.csv").write_text("id,exp,smiles\nx,3.54,CCO\n")
    said = refused(["train", "molecules", "--data", str(tmp_path / "lipo.csv")], capsys)
    assert said.endswith("but there are id, exp, smiles: write --set targets=exp")


def test_lines_to_predict_are_read_as_data_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a byte order mark, lines that end as on Windows, one that is no UTF-8, and gzipped."""
    arguments = ["--set", "hidden=8", "--set", "embedding=8", "--set", "spelling=4", "--set", "epochs=1"]
    (tmp_path / "data").mkdir()
    main(["train", "tagging", *tagged(tmp_path / "data"), *arguments, "--folder", str(tmp_path / "run")])
    capsys.readouterr()
    text = b"\xef\xbb\xbfthe dog\r\ncaf\xe9\r\n\r\n"
    (tmp_path / "lines").write_bytes(text)
    (tmp_path / "lines.gz").write_bytes(gzip.compress(text))
    for name in ("lines", "lines.gz"):
        entry.main(["predict", "--run", str(tmp_path / "run"), str(tmp_path / name)])
        first, second, third = map(json.loads, capsys.readouterr().out.splitlines())
        assert first["result"]["words"] == ["the", "dog"]
        assert second == {"error": "expected text in UTF-8, but character 4 of the line is the byte 0xe9", "line": 2}
        assert third["error"].startswith("expected the words of a sentence")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(text)[:-12])
    for name, problem in (
        ("cut.gz", "expected a gzipped file that is complete"),
        ("", "expected a file, not a folder"),
    ):
        with pytest.raises(SystemExit) as ended:
            entry.main(["predict", "--run", str(tmp_path / "run"), str(tmp_path / name)])
        assert ended.value.code == 2
        assert problem in capsys.readouterr().err.splitlines()[-1]


def test_names_of_files_in_capitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tagged(tmp_path)
    (tmp_path / "train.txt").rename(tmp_path / "My TRAIN.TXT")
    main(["explain", "tagging", "--data", str(tmp_path), "--set", "hidden=8", "--examples", "3"])
    capsys.readouterr()
    (tmp_path / "dev.txt").rename(tmp_path / "valid.txt")
    said = refused(["train", "tagging", "--data", str(tmp_path), "--folder", str(tmp_path / "run")], capsys)
    assert said.endswith("but there is none for dev: there is My TRAIN.TXT, test.txt, valid.txt")


def test_examples_that_are_made_up_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.txt").write_text("".join(f"( - ( {n} 10 ) )\n" for n in range(40)))
    arguments = [
        "--data",
        str(tmp_path / "own.txt"),
        "--set",
        "epochs=1",
        "--set",
        "hidden=4",
        "--folder",
        str(tmp_path / "run"),
    ]
    main(["train", "arithmetic", *arguments, "--set", "made=50"])
    assert "50 expressions were made up to learn from (none with --set made=0)" in capsys.readouterr().err


def test_views_of_own_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = treebank(tmp_path)
    main(["explain", "sentiment", *data, "--set", "hidden=8", "--threads", "1", "--examples", "3"])
    assert capsys.readouterr().out.startswith("3 examples, ")
    main(["profile", "sentiment", *data, "--set", "hidden=8", "--examples", "3"])
    assert capsys.readouterr().out.startswith("1 batch: ")
