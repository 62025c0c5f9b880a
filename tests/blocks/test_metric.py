"""Metrics: rows over a batch, with labels, and where each came from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from tests.law import check_law


def labelled_tree() -> tuple[fb.Block, nn.Linear]:
    """Sums a tree of (label, value) and (label, left, right); the state of every node is a metric."""
    merge = nn.Linear(2, 1)
    tree = fb.ForwardDeclaration(fb.PyObjectType(), 1)
    state = fb.OneOf(
        len, {2: fb.GetItem(1) >> fb.Vector(1), 3: fb.Record([(1, tree()), (2, tree())]) >> fb.Concat() >> merge}
    )
    composition = fb.Composition()
    with composition.scope():
        value = state.reads(composition.input)
        fb.Metric("state").reads(value, composition.input[0])
        composition.output.reads(value)
    tree.resolve_to(composition)
    return composition, merge


TREES: list[Any] = [(7, (1, [1]), (2, [2])), (3, [5]), (6, (5, (1, [1]), (2, [2])), (4, [4]))]


def test_metrics_know_where_they_came_from() -> None:
    block, merge = labelled_tree()
    model = fb.compile(block)
    output, metrics = model(TREES)
    rows = metrics["state"]
    assert rows.values.shape == (9, 1)
    assert len(rows) == 9
    assert rows.lengths.tolist() == [3, 1, 5]
    assert rows.example_of_row.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2]
    assert isinstance(rows.labels, torch.Tensor)
    assert rows.labels.tolist() == [1, 2, 7, 3, 1, 2, 5, 4, 6]  # children before parents
    torch.testing.assert_close(output, rows.values[[2, 3, 8]])
    assert [model.max_depth(tree) for tree in TREES] == [2, 1, 4]
    rows.values.sum().backward()
    assert merge.weight.grad is not None
    check_law(fb.compile(block).double().one_example, TREES, sources=list(model.parameters()))


def test_labels_may_be_anything() -> None:
    block = fb.Map(fb.Record((fb.Scalar(), fb.Identity())) >> fb.Metric("x")) >> fb.Void()
    model = fb.compile(block)
    output, metrics = model([[(1, "a"), (2, ("b", 3))], [], [(3, None)]])
    assert output is None
    assert metrics["x"].labels == ["a", ("b", 3), None]
    assert metrics["x"].values.tolist() == [1, 2, 3]
    assert model([[(1, 10**30)]])[1]["x"].labels == [10**30]
    assert block.eval([(1, "a")]) == (None, {"x": [(torch.tensor(1.0), "a")]})


def test_metrics_without_rows() -> None:
    model = fb.compile(fb.Map(fb.Vector(2) >> fb.Metric("x")) >> fb.Void())
    _, metrics = model([[], []])
    assert metrics["x"].values.shape == (0, 2)
    assert metrics["x"].labels is None
    _, metrics = model.double()([[], []])
    assert metrics["x"].values.dtype == torch.float64


def test_metrics_in_kept_recordings() -> None:
    block, _ = labelled_tree()
    model = fb.compile(block)
    kept = [model.record(tree) for tree in TREES]
    _, expected = model(TREES)
    _, metrics = model([kept[2], TREES[0], kept[1]])
    assert metrics["state"].labels.tolist() == [1, 2, 5, 4, 6, 1, 2, 7, 3]
    torch.testing.assert_close(metrics["state"].values[:5], expected["state"].values[4:])


def test_metric_takes_a_tensor_or_a_labelled_one() -> None:
    assert fb.Metric("x").output_type == fb.VoidType()
    for wrong in (fb.InputTransform(len), fb.Map(fb.Scalar()), fb.Record((fb.Scalar(), fb.Scalar()))):
        with pytest.raises(
            fb.BlockTypeError, match=r"takes a tensor, or a pair of a tensor and a Python object as its label"
        ):
            wrong >> fb.Metric("x")


def test_one_name_one_type() -> None:
    block = fb.AllOf(fb.Scalar() >> fb.Metric("x"), fb.Scalar("int64") >> fb.Metric("x"))
    with pytest.raises(
        fb.BlockTypeError,
        match=r"metric 'x' collects TensorType\(\[\], 'float32'\) in one place and TensorType\(\[\], 'int64'\) in another",
    ):
        fb.compile(block)
    labelled = fb.Scalar() >> fb.AllOf(fb.Identity(), fb.Void()) >> fb.GetItem(0)
    with pytest.raises(fb.BlockTypeError, match=r"metric 'x' collects .* in one place and TupleType"):
        fb.compile(fb.AllOf(labelled >> fb.Metric("x"), fb.AllOf(labelled, fb.Identity()) >> fb.Metric("x")))
    _, metrics = fb.AllOf(fb.Scalar() >> fb.Metric("x"), fb.Scalar() >> fb.Metric("x")).eval(3)
    assert metrics == {"x": [torch.tensor(3.0)] * 2}


def test_examples_that_wait_for_values_do_not_mix_their_metrics() -> None:
    double = fl.cell(lambda x: 2 * x)

    def until_large(x: torch.Tensor) -> torch.Tensor:
        while x < 10:
            x = double(x)
        return x

    grow = fb.Scalar() >> fb.OnTheFly(until_large, [], [])
    each = fb.AllOf(grow, fb.Identity()) >> fb.Metric("grown")
    _, metrics = fb.compile(fb.Map(each) >> fb.Void())([[1, 2], [3], [20, 5, 1]])
    rows = metrics["grown"]
    assert rows.lengths.tolist() == [2, 1, 3]
    assert rows.labels.tolist() == [1, 2, 3, 20, 5, 1]
    assert rows.values.tolist() == [16, 16, 12, 20, 10, 16]
