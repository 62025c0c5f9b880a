"""Record once, merge many: in this process, in DataLoader workers, and from disk."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import foldloom as fl
from foldloom.execution import run_one_by_one
from foldloom.execution.engine import column_to_tensor
from foldloom.graph.recording import merge_recordings
from foldloom.planning.native import planning
from foldloom.tracing.cells.lookup import find_cell
from tests.law import assert_same, gradients
from tests.tree_lstm import TreeLSTM, random_trees

TREES = random_trees(12)


@pytest.fixture
def model() -> TreeLSTM:
    return TreeLSTM()


def test_recordings_run_in_any_order(model: TreeLSTM) -> None:
    recordings = [fl.record(model, tree) for tree in TREES]
    batched = fl.batch(model)
    for order in (range(12), reversed(range(12)), [5, 5, 2]):
        numbers = list(order)
        actual = batched.run(fl.plan([recordings[n] for n in numbers]))
        expected = fl.one_by_one(model)([TREES[n] for n in numbers])
        assert_same(actual, expected)
        assert_same(gradients(actual, list(model.parameters())), gradients(expected, list(model.parameters())))


@pytest.mark.skipif(
    planning is None, reason="C is off (FOLDLOOM_NO_C=1), or there was no compiler: Python goes over the nodes"
)
def test_merging_runs_no_python_for_a_node(model: TreeLSTM) -> None:
    """The number of Python calls that planning makes does not grow with the size of the trees."""
    import sys

    def calls(recordings: list[fl.Recording]) -> int:
        count = 0

        def tick(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        fl.plan(recordings)
        sys.setprofile(tick)
        try:
            fl.plan(recordings)
        finally:
            sys.setprofile(None)
        return count

    words = itertools.count()

    def full(levels: int) -> Any:
        return next(words) if levels == 0 else (full(levels - 1), full(levels - 1))

    small, large = ([fl.record(model, full(levels)) for _ in range(8)] for levels in (2, 9))
    assert large[0].graph.node_count > 100 * small[0].graph.node_count
    # Each step costs a few calls, and there are some steps more; but nodes, there are 128 times as many.
    assert calls(large) < 1.5 * calls(small)


def test_recordings_pickle_without_weights(model: TreeLSTM) -> None:
    big = TreeLSTM(vocabulary=5000, hidden=32)
    recording = fl.record(big, TREES[0])
    assert len(pickle.dumps(recording)) < 5000
    planned = pickle.loads(pickle.dumps(fl.plan([recording])))
    assert_same(fl.batch(big).run(planned), fl.one_by_one(big)(TREES[:1]))


def test_recordings_from_disk_run_with_a_new_model(model: TreeLSTM, tmp_path: Path) -> None:
    """A later process has other cells under the same paths; names are what counts."""
    (tmp_path / "recordings").write_bytes(pickle.dumps([fl.record(model, tree) for tree in TREES]))
    later = TreeLSTM()
    later.load_state_dict(model.state_dict())
    recordings = pickle.loads((tmp_path / "recordings").read_bytes())
    assert_same(fl.batch(later).run(fl.plan(recordings)), fl.one_by_one(model)(TREES))


class RecordingCollator:
    """Records and plans in the worker."""

    def __init__(self, model: TreeLSTM) -> None:
        self.model = model

    def __call__(self, trees: list[Any]) -> fl.Planned:
        return fl.plan([fl.record(self.model, tree) for tree in trees])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_plans_made_in_workers(model: TreeLSTM, context: str) -> None:
    expected = fl.one_by_one(model)(TREES)
    recordings = [fl.record(model, tree) for tree in TREES]
    for data, collate in ((recordings, fl.plan), (TREES, RecordingCollator(model))):
        loader: Any = DataLoader(data, batch_size=5, collate_fn=collate, num_workers=2, multiprocessing_context=context)  # type: ignore[arg-type]
        actual = [result for planned in loader for result in fl.batch(model).run(planned)]
        assert_same(actual, expected)


def test_the_oracle_runs_recordings_node_by_node(model: TreeLSTM) -> None:
    merged = merge_recordings([fl.record(model, tree) for tree in TREES])
    kernels = [None if op.is_input else find_cell(op.key, model).kernel(op) for op in merged.graph.ops]
    given = [op for op in merged.graph.ops if op.is_input]
    inputs = [
        column_to_tensor(op, column, torch.device("cpu")) for op, column in zip(given, merged.inputs, strict=True)
    ]
    outputs = run_one_by_one(merged.graph, inputs, kernels)
    expected = [tensor for result in fl.one_by_one(model)(TREES) for tensor in result]
    assert_same(outputs, expected)


def test_inputs_of_every_kind_come_along() -> None:
    join = fl.cell(lambda a, b, c, d: a + b + c + d.sum(-1))
    tensor = torch.ones(2, requires_grad=True)

    def function(integer: int) -> Any:
        return join(integer, 0.5, np.float32(2), tensor)

    recording = fl.record(function, 7)
    assert [str(op.outputs[0]) for op in recording.graph.ops if op.is_input] == ["int64[]", "float32[]", "float32[2]"]
    (result,) = fl.batch(function).run(fl.plan([recording]))
    assert result.item() == 7 + 0.5 + 2 + 2
    result.backward()
    assert tensor.grad is not None


def test_cells_of_a_plain_function_are_found_in_this_process() -> None:
    cells = [fl.cell(lambda x: 2 * x)]
    recording = pickle.loads(pickle.dumps(fl.record(lambda x: cells[0](cells[0](x)), 3)))
    replayed: Any = fl.batch(lambda x: None)
    assert replayed.run(fl.plan([recording]))[0].item() == 12
    planned = fl.plan([recording])
    cells.clear()
    with pytest.raises(fl.errors.CellMismatchError, match="that this process does not have"):
        fl.batch(lambda x: None).run(planned)


def test_recording_each_is_recording_one_by_one(model: TreeLSTM) -> None:
    each = fl.record_each(model, TREES)
    alone = [fl.record(model, tree) for tree in TREES]
    for one, other in zip(each, alone, strict=True):
        for name in ("op_of_node", "operands", "depth_of_node", "nodes_of_example", "outputs", "lengths"):
            assert getattr(one.graph, name).tolist() == getattr(other.graph, name).tolist()
        assert (one.graph.ops, one.graph.value_count) == (other.graph.ops, other.graph.value_count)
        assert [column.tolist() for column in one.inputs] == [column.tolist() for column in other.inputs]
    assert_same(fl.batch(model).run(fl.plan(each[::-1])), fl.one_by_one(model)(TREES[::-1]))
    assert fl.record_each(model, []) == []


def test_recording_each_of_examples_that_are_unlike() -> None:
    table, shared = torch.nn.Embedding(9, 3), torch.ones(3)

    def function(kind: str, words: list[int]) -> Any:
        if kind == "sum":
            return torch.stack([table(torch.tensor(word)) for word in words]).sum(0) + fl.lift(shared)
        return torch.tanh(table(torch.tensor(words)).mean(0)) * 2.0 if kind == "mean" else fl.lift(shared) * len(words)

    columns = ["sum", "mean", "none", "sum", "mean"], [[1, 2, 3], [4, 5], [1], [2], [7, 7, 7]]
    each = fl.record_each(function, *columns)
    expected = fl.one_by_one(function)(*columns)
    assert_same(fl.batch(function).run(fl.plan(each)), expected)
    for recording, result in zip(each, expected, strict=True):
        assert_same(fl.batch(function).run(fl.plan([recording])), [result])


def test_recording_each_says_which_example_failed(model: TreeLSTM) -> None:
    with pytest.raises(TypeError) as caught:
        fl.record_each(model, [TREES[0], None])
    assert "in example 1 of the batch" in caught.value.__notes__
