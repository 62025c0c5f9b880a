"""Recordings and plans on disk: arrays and JSON, and what they give when they come back."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.errors import ArgumentError, RecordingError
from tests.exporting.programs import PlainChildSum, dependency_tree
from tests.law import assert_same
from tests.tree_lstm import TreeLSTM, random_trees


def came_back(what: Any, folder: Path) -> Any:
    fl.save(what, folder / "kept")
    return fl.load(folder / "kept")


def test_recordings_run_with_a_later_model(tmp_path: Path) -> None:
    model, trees = TreeLSTM(), random_trees(5)
    later = TreeLSTM()
    later.load_state_dict(model.state_dict())
    recordings = came_back(fl.record_each(model, trees), tmp_path)
    assert_same(fl.batch(later).run(fl.plan(recordings)), fl.one_by_one(model)(trees))
    planned = came_back(fl.plan(recordings), tmp_path)
    assert_same(fl.batch(later).run(planned), fl.one_by_one(model)(trees))


def test_functions_of_torch_and_rows_of_any_number(tmp_path: Path) -> None:
    import random

    model, trees = PlainChildSum().double(), [dependency_tree(random.Random(seed)) for seed in range(4)]
    recordings = came_back(fl.record_each(model, trees), tmp_path)
    assert_same(fl.batch(model).run(fl.plan(recordings)), fl.one_by_one(model)(trees))


def test_settings_and_results_of_many_kinds(tmp_path: Path) -> None:
    layer = nn.Linear(3, 3)

    def function(x: torch.Tensor) -> Any:
        y = torch.cat([layer(x), x], dim=0)[1:5].to(torch.float64).view(2, -1)
        total = y.sum(dim=0, keepdim=True, dtype=torch.float32)
        return {"a": total, 3: [y * 2.5, (total, None, "text", 0.1)], "empty": [], "numbers": [1, 2.5]}

    inputs = [torch.randn(3) for _ in range(2)]
    recording = fl.record(function, inputs[0])
    again = came_back(recording, tmp_path)
    assert isinstance(again, fl.Recording)
    assert_same(fl.batch(function).run(fl.plan([again])), [function(inputs[0])])
    for dtype in (torch.bfloat16, torch.int32, torch.bool):
        given = torch.ones(2).to(dtype)
        again = came_back(fl.record(lambda x: (x, x.sum()), given), tmp_path)
        (found,) = fl.batch(lambda x: (x, x.sum())).run(fl.plan([again]))
        assert found[0].dtype == dtype
        assert torch.equal(found[0], given)


def test_what_a_file_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"a result holds .*OrderedDict.*return tensors, numbers and texts"):
        fl.save(fl.record(lambda x: OrderedDict(a=x * 2), torch.ones(2)), tmp_path / "kept")
    with pytest.raises(RecordingError, match="needs gradients"):
        fl.save(fl.record(lambda x: x * 2, torch.ones(2, requires_grad=True)), tmp_path / "kept")
    with pytest.raises(ArgumentError, match=r"fl\.save takes recordings"):
        fl.save([1], tmp_path / "kept")  # type: ignore[list-item]
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_there_or_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"none cannot be loaded: No such file"):
        fl.load(tmp_path / "none")
    fl.save(fl.record(lambda x: x * 2, torch.ones(2)), tmp_path / "kept")
    data = (tmp_path / "kept").read_bytes()
    for wrong in (data[: len(data) // 2], data.replace(b"float32", b"float64"), b"", b"hello"):
        (tmp_path / "wrong").write_bytes(wrong)
        with pytest.raises(RecordingError, match=r"wrong cannot be loaded"):
            fl.load(tmp_path / "wrong")
