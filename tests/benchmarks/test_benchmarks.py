"""Small runs of the benchmarks: that they work, and that what they compare is the same model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import foldloom as fl
from benchmarks.tree_lstm_models import TreeLSTM, flatten, loss_by_hand, plan_by_hand
from benchmarks.trees import random_trees, read_treebank
from tests.law import assert_same

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("FOLDLOOM_DATA", ROOT.parent / "shared" / "data"))


def benchmark(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_by_hand_is_the_same_model() -> None:
    trees = random_trees(20, vocabulary=50)
    model = TreeLSTM(50, 6, 4).double()
    model.leaf.embed.sparse = False
    parameters = list(model.parameters())
    hand = loss_by_hand(model, plan_by_hand([flatten(tree) for tree in trees]))
    batched = model.batched_loss(fl.batch(model, stack=True)(trees))
    alone = model.batched_loss(fl.one_by_one(model, stack=True)(trees))
    assert_same((hand, batched), (alone, alone))
    expected = torch.autograd.grad(alone, parameters)
    assert_same(torch.autograd.grad(hand, parameters), expected)
    assert_same(torch.autograd.grad(batched, parameters), expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="compiled cells take a C++ compiler, g++")
def test_tree_lstm_reports_everything() -> None:
    small = ("--hidden", "8", "--embedding", "8", "--batch", "8", "--rounds", "2", "--json")
    report = json.loads(benchmark("tree-lstm", *small))
    assert set(report["ratios"]) >= {"foldloom / by hand", "foldloom / one by one", "foldloom / matrix products alone"}
    assert set(report["milliseconds of a step"]) >= {"recording", "planning", "forward", "backward"}
    assert set(report["peak memory, MB"]) == {"by hand", "foldloom"}
    assert all(value > 0 for value in report["trees/s"].values())


def test_the_other_benchmarks_run() -> None:
    assert "microseconds a node" in benchmark("cost-per-node", "--hidden", "2", "--most", "10000")
    small = ("--hidden", "4", "--embedding", "4", "--batch", "8", "--rounds", "2")
    assert "without a limit" in benchmark("step-size", *small)


def test_treebank_trees_are_read(tmp_path: Path) -> None:
    (tmp_path / "trees.txt").write_text("(3 (2 a) (1 (2 b\u00a0c) (0 a)))\n(4 d)\n", encoding="utf-8")
    (first, second), words = read_treebank(tmp_path / "trees.txt")
    assert words == 3
    assert [(node.label, node.word) for node in first] == [(2, 0), (2, 1), (0, 0), (1, -1), (3, -1)]
    assert (second.label, second.word) == (4, 2)


@pytest.mark.skipif(
    not (DATA / "sst").exists(), reason=f"no treebank at {DATA / 'sst'}: set FOLDLOOM_DATA to its folder"
)
def test_law_on_treebank_trees() -> None:
    trees, vocabulary = read_treebank(DATA / "sst" / "dev.txt")
    assert len(trees) == 1101
    model = TreeLSTM(vocabulary, 6, 4).double()
    batched, alone = (run(model, stack=True)(trees[:40]) for run in (fl.batch, fl.one_by_one))
    assert_same(batched[0], alone[0])


def test_small_batches_reports_every_program() -> None:
    small = ("--hidden", "4", "--batch", "1", "3", "--rounds", "1", "--json")
    report = json.loads(benchmark("small-batches", *small))
    for program in ("tree-lstm", "halting", "greedy-decoding", "early-exit"):
        for mode in ("training", "inference"):
            assert set(report[f"{program}, {mode}, 3"]) == {"plain", "cells"}
