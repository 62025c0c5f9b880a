"""The comparison with peers: that programs are the same model, that whoever is not gets no figure, and what becomes of figures."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.peers import environments, goals, readme, report
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.measuring import CANNOT, DIFFERENT, FAILED, MEASURED, UNWRITTEN, Field, Row, differs, turns_of
from benchmarks.peers.protocol import Given, Program
from benchmarks.peers.tasks import SETUPS, Files, write
from benchmarks.peers.workers.torch_ways import WAYS
from benchmarks.trees import as_arrays, from_arrays, random_trees

TASKS = ("tree-lstm", "tree-lstm-root", "tagger", "tagger-characters", "parser", "weave")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Files]:
    """A few made-up examples of a task, in files."""
    folder = tmp_path_factory.mktemp("tasks")
    made: dict[str, Files] = {}

    def files(name: str) -> Files:
        if name not in made:
            made[name] = write(dataclasses.replace(SETUPS[name], count=6), folder / "no data here", folder)
        return made[name]

    return files


def losses(program: Callable[[Given], Program], files: Files) -> list[float]:
    with np.load(files.data) as data, np.load(files.weights) as weights:
        started = program(Given(files.made.sizes, dict(data), dict(weights), threads=1))
    return [started.loss([0, 1, 2, 3], train=True) for _ in range(2)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # torch's own, where it compiles
@pytest.mark.parametrize("name", TASKS)
def test_every_way_is_the_same_model(name: str, written: Callable[[str], Files]) -> None:
    files = written(name)
    ways = {
        way: program for way, program in WAYS[files.setup.task].items() if "compiled" not in way or shutil.which("g++")
    }
    expected = losses(ways.pop("one-by-one"), files)
    assert expected[1] < expected[0]
    assert {way: differs(losses(program, files), expected) for way, program in ways.items()} == dict.fromkeys(ways, "")


def test_another_model_is_told_by_its_losses() -> None:
    assert differs([100.0, 90.0], [100.001, 90.1]) == ""
    assert "its first loss is 100.1" in differs([100.1, 90.1], [100.0, 90.0])
    assert "its second loss is 95" in differs([100.0, 95.0], [100.0, 90.0])
    assert differs([float("nan"), 1.0], [1.0, 1.0])


def test_a_field_of_peers(written: Callable[[str], Files]) -> None:
    absent = Peer("absent", "Absent", "no_such_module", "anyhow")
    unable = Peer("unable", "Unable", "torch_ways", "by-hand", cannot={"tree-lstm": "no trees"})
    single = Peer("single", "Single", "torch_ways", "by-hand", threads=0)
    peers = [PEERS["by-hand"], PEERS["by-hand-packed"], absent, unable, single]
    with Field(threads=1, rounds=2, progress=lambda _: None) as field:
        rows = field.measure(written("tree-lstm"), 2, [True, False], peers)
    assert [(row.peer, row.train) for row in rows] == [(p.name, train) for train in (True, False) for p in peers]
    by_hand, packed, failed, cannot, threadless = rows[:5]
    assert (by_hand.status, len(by_hand.seconds)) == (MEASURED, 2)
    assert by_hand.rate > 0
    assert by_hand.losses[1] < by_hand.losses[0]
    assert packed.status == UNWRITTEN
    assert failed.status == FAILED
    assert "no_such_module" in failed.reason
    assert (cannot.status, cannot.reason) == (CANNOT, "no trees")
    assert (threadless.status, threadless.reason) == (CANNOT, "it has 0 thread")
    table = report.table(written("tree-lstm"), [by_hand, packed, Row("tree-lstm", "jax", 2, 1, True, DIFFERENT, "why")])
    assert "not written" in table
    assert "not the same model: why" in table


def test_what_cannot_be_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environments.REQUIREMENTS, "jax", ("./nowhere",))
    with pytest.raises(environments.EnvironmentMissingError, match=r"cannot install \./nowhere"):
        environments.python_of("jax", tmp_path)
    assert not (tmp_path / "jax").exists()


def test_turns_cover_what_is_asked(written: Callable[[str], Files]) -> None:
    files = written("tree-lstm")
    assert turns_of(PEERS["by-hand"], files, 3, 2) == [[[0, 1, 2], [3, 4, 5]] * 5] * 2
    slow = turns_of(dataclasses.replace(PEERS["by-hand"], slow=True), files, 6, 2)
    assert slow == [[[0, 1, 2, 3, 4, 5]]] * 2


def test_trees_come_back_from_arrays() -> None:
    trees = random_trees(5, vocabulary=9)
    assert from_arrays(as_arrays(trees)) == trees


def seen(peer: str, rate: float, goal: goals.Goal) -> Row:
    row = Row(goal.setup, peer, goal.batch, goal.threads, goal.train, MEASURED, rate=rate)
    row.seconds = [1 / rate, 1 / rate]
    return row


def test_goals_take_the_fastest_of_both_sides() -> None:
    goal = goals.Goal(("foldloom-cells", "foldloom-blocks"), goals.DYNET, "tree-lstm", 64, must=1.4, aim=1.8)
    rows = [
        seen("foldloom-cells", 900, goal),
        seen("foldloom-blocks", 800, goal),
        seen("dynet-depth", 300, goal),
        seen("dynet-agenda", 600, goal),
    ]
    found = goals.outcome(goal, rows)
    assert found.seen == pytest.approx(1.5)
    assert found.verdict == "must"
    assert goals.outcome(goal, rows[:2]).verdict == "not measured"
    assert goals.outcome(dataclasses.replace(goal, must=1.6), rows).verdict == "missed"
    assert goals.outcome(dataclasses.replace(goal, aim=1.5), rows).verdict == "aim"


def test_every_goal_names_what_exists() -> None:
    for goal in goals.GOALS:
        assert goal.setup in SETUPS
        assert goals.peers_of([goal])
        assert set(goal.ours + goal.theirs) <= set(PEERS)
        assert goal.must <= goal.aim


def test_figures_go_into_the_documents(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install '.[bench]'")
    results = tmp_path / "results"
    results.mkdir()
    machine = {"cores": 2, "processor": "x", "python": "3", "torch": "2", "commit": "abc", "load average": 0.0}
    rows = [seen(peer, 123.0, goal) for goal in goals.GOALS for peer in (*goal.ours, *goal.theirs)]
    content = json.dumps({"machine": machine, "rows": [dataclasses.asdict(row) for row in rows]})
    (results / "peers.json").write_text(content)
    (results / "peers-goals.json").write_text(content)
    costs = [{"nodes": n, "record": 1.0, "plan": 1.0, "run": 1.0, "total": 3.0} for n in (1000, 10000)]
    (results / "cost-per-node.json").write_text(json.dumps(costs))
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- peers: begin -->\nstale\n<!-- peers: end -->\nafter\n")
    marks = "".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in ("goals", "rates"))
    (tmp_path / "docs" / "peers.md").write_text(marks)
    readme.write_all(results, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| Foldloom with cells |" in text
    assert (tmp_path / "docs" / "peers.md").read_text().count("| 1.00 |") == len(goals.GOALS)
    drawn = {path.name for path in (tmp_path / "docs" / "peers").iterdir()}
    assert {"throughput-tree-lstm.svg", "throughput-tree-lstm.png", "limit-tree-lstm-256.svg"} <= drawn
    assert {"cost-per-node.svg", "cost-per-node.png"} <= drawn


def test_a_document_without_a_place_says_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(ValueError, match="<!-- peers: begin -->"):
        readme.fill(tmp_path / "README.md", "peers", "text")


def test_what_was_kept_can_be_read_again(tmp_path: Path) -> None:
    rows = [Row("tree-lstm", peer, 64, 1, True, MEASURED, rate=1.0, seconds=[1.0, 2.0]) for peer in ("jax", "by-hand")]
    report.keep(tmp_path / "kept.json", rows, {})
    assert report.kept(tmp_path / "kept.json") == rows
    assert {row.job for row in rows} == {("tree-lstm", 64, 1, True)}
