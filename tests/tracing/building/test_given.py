"""What is given several times is one value, unless it has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom.tracing.mutation.outside import OutsideError

double = fl.cell(lambda x: x * 2)


def inputs_of(recording: Any) -> int:
    return int(np.count_nonzero(recording.graph.depth_of_node == 0))


def test_an_array_that_is_given_again_is_one_value() -> None:
    def twice(array: Any) -> Any:
        return double(array) + double(array)

    array = np.array([1.0, 2.0], np.float32)
    recording = fl.record(twice, array)
    assert inputs_of(recording) == 1
    [found] = fl.batch(twice).run(fl.plan([recording]))
    assert found.tolist() == [4.0, 8.0]


def test_an_array_that_has_changed_is_another_value() -> None:
    def changed(array: Any) -> Any:
        before = double(array)
        array[0] = 5.0
        middle = double(array)
        array.shape = (1, 2)
        return before, middle, double(array)

    expected = changed(np.array([1.0, 2.0], np.float32))
    [found] = fl.batch(changed)([np.array([1.0, 2.0], np.float32)])
    assert [value.tolist() for value in found] == [np.asarray(value).tolist() for value in expected]


def test_rows_of_a_given_tensor_are_one_input_of_a_recording() -> None:
    def total(rows: torch.Tensor) -> Any:
        return sum(double(row) for row in rows)

    rows = torch.arange(8.0).reshape(4, 2)
    recording = fl.record(total, rows)
    assert inputs_of(recording) == 1
    [found] = fl.batch(total).run(fl.plan([recording]))
    torch.testing.assert_close(found, 2 * rows.sum(0))


def test_a_row_of_a_given_tensor_cannot_be_changed_by_a_recording() -> None:
    def spoil(rows: torch.Tensor) -> Any:
        for row in rows:
            row.add_(1)
        return rows

    rows = torch.zeros(2, 2)
    with pytest.raises(OutsideError, match="a tensor that was made outside is changed in place"):
        fl.batch(spoil).run(fl.plan([fl.record(spoil, rows)]))
    assert not rows.any()
