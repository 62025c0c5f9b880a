"""Blocks that compute on tensors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from tests.blocks.checking import check, pair


def test_function() -> None:
    check(pair() >> fb.Function(torch.add), ((1, 2), 3), ((4, 5), 9), depths=[1, 1])
    check(fb.Vector(2) >> fb.Function(lambda x: x.sum(-1)), ([1, 2], 3), depths=[1])
    check(fb.Scalar() >> fb.Function(lambda x: (x, (x + 1, [x + 2]))), (1, (1, (2, (3,)))))


def test_function_of_nested_tuples() -> None:
    def merge(left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return left[0] * right[1] - left[1] * right[0]

    block = fb.Record((pair(), pair())) >> fb.Function(merge)
    check(block, (((1, 2), (3, 4)), -2), (((0, 1), (1, 0)), -1), depths=[1, 1])
    uneven = fb.Record((pair(), fb.Scalar())) >> fb.Function(lambda pair, number: pair[0] * pair[1] + number)
    check(uneven, (((2, 3), 4), 10))


def test_cells_may_be_blocks_too() -> None:
    merge = fl.cell(lambda left, right: left[0] - right[1])
    check(fb.Record((pair(), pair())) >> merge, (((5, 2), (3, 4)), 1), depths=[1])
    add = fl.cell(torch.add)
    model = fb.compile(pair() >> add)
    assert model.cells["add"] is add


def test_functions_of_one_module_run_together() -> None:
    linear = nn.Linear(1, 1)
    block = fb.Record((fb.Vector(1) >> linear, fb.Vector(1) >> linear))
    model = fb.compile(block)
    assert model.plan([([1], [2]), ([3], [4])]).statistics().steps == 1
    assert len(list(model.parameters())) == 2


def test_output_type_that_is_said() -> None:
    block = fb.Function(torch.neg, infer_output_type=False)
    block.set_io_types(2, 2)
    check(fb.Vector(2) >> block, ([1, 2], [-1, -2]))
    with pytest.raises(fb.BlockTypeError, match=r"it cannot be inferred what Function.* gives"):
        fb.compile(fb.Scalar() >> fb.Function(torch.neg, infer_output_type=False))


def test_function_says_what_it_cannot_take() -> None:
    with pytest.raises(
        fb.BlockTypeError,
        match=r"Linear.* cannot take TensorType\(\[2\], 'float32'\)(.|\n)*in Pipe\[1\] > Linear(.|\n)*test_computing.py",
    ):
        fb.Vector(2) >> nn.Linear(3, 4)
    with pytest.raises(
        fb.BlockTypeError,
        match=r"takes tensors and tuples of tensors, not PyObjectType\(\). Python objects become tensors",
    ):
        fb.GetItem("x") >> nn.Linear(3, 4)
    with pytest.raises(
        fb.BlockTypeError,
        match=r"not SequenceType\(TensorType\(\[\], 'float32'\)\). To apply it to every element write fb.Map",
    ):
        fb.InputTransform(list) >> fb.Map(fb.Scalar()) >> torch.neg
    with pytest.raises(fb.BlockTypeError, match=r"gives a dict of tensors; let it return a tuple"):
        fb.Scalar() >> fb.Function(lambda x: {"x": x})
    with pytest.raises(
        fb.BlockTypeError,
        match=r"Linear.* gives TensorType\(\[4\], 'float32'\), but Linear.*cannot|Linear.* cannot take",
    ):
        fb.Vector(3) >> nn.Linear(3, 4) >> nn.Linear(3, 4)


def test_concat() -> None:
    check(fb.Record((fb.Scalar(), fb.Vector(2))) >> fb.Concat(), ((1, [2, 3]), [1, 2, 3]), depths=[1])
    matrices = fb.Record((fb.Tensor([1, 2]), fb.Tensor([1, 2])))
    check(matrices >> fb.Concat(1), (([[1, 2]], [[3, 4]]), [[1, 2, 3, 4]]))
    check(matrices >> fb.Concat(), (([[1, 2]], [[3, 4]]), [[1, 2], [3, 4]]))
    nested = fb.Record((pair(), fb.Scalar()))
    check(nested >> fb.Concat(flatten=True), (((1, 2), 3), [1, 2, 3]), depths=[1])
    with pytest.raises(fb.BlockTypeError, match=r"write fb.Concat\(flatten=True\)"):
        nested >> fb.Concat()
    with pytest.raises(fb.BlockTypeError, match=r"takes tensors of one dtype, not float32 and int64"):
        fb.Record((fb.Scalar(), fb.Scalar("int64"))) >> fb.Concat()
    with pytest.raises(fb.BlockTypeError, match=r"takes a tuple of at least one tensor"):
        fb.Vector(2) >> fb.Concat()
    two = fb.Record((pair() >> fb.Concat(), pair() >> fb.Concat()))
    assert fb.compile(two).plan([((1, 2), (3, 4))]).statistics().steps == 1


def test_zeros() -> None:
    check(fb.Void() >> fb.Zeros(2), (None, [0, 0]), depths=[0])
    check(fb.Void() >> fb.Zeros((2, "int64")), (None, ([0, 0], 0)))
    check(fb.Void() >> fb.Zeros(fb.SequenceType(2)), (None, []), (None, []))
    assert fb.Zeros([3, "int32"]).eval(None).dtype == torch.int32
    with pytest.raises(fb.BlockTypeError, match=r"there is no zero of PyObjectType"):
        fb.Zeros(fb.PyObjectType())


def test_constants_are_nobodys_to_change() -> None:
    block = fb.Void() >> fb.Zeros(2)
    model = fb.compile(block)
    for use in (model.one_example, lambda _: model([None])):
        use(None).add_(1)
        assert model.one_example(None).tolist() == [0, 0]


def test_from_tensor() -> None:
    check(fb.Void() >> fb.FromTensor(np.arange(2.0)), (None, [0, 1]), (None, [0, 1]), depths=[0, 0])
    assert fb.FromTensor(torch.ones(2, 3, dtype=torch.int32)).output_type == fb.TensorType([2, 3], "int32")
    parameter = nn.Parameter(torch.ones(2))
    block = fb.AllOf(fb.Vector(2), fb.FromTensor(parameter)) >> fb.Function(torch.mul)
    model = fb.compile(block)
    assert list(model.parameters()) == [parameter]
    assert model.max_depth([1, 2]) == 2
    model([[1, 2], [3, 4]]).sum().backward()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [4, 6]
    check(block, ([1, 2], [1, 2]))


def test_gradients_flow_into_any_tensor() -> None:
    weight = torch.ones(2, requires_grad=True)
    fb.compile(fb.Void() >> fb.FromTensor(2 * weight))([None, None]).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [4, 4]


class Power(nn.Module):
    """Doubles as often as it is told: a loop over Python data around a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.double_it = fl.cell(nn.Linear(1, 1, bias=False))

    def forward(self, x: torch.Tensor, times: int) -> torch.Tensor:
        for _ in range(times):
            x = self.double_it(x)
        return x


def test_on_the_fly_functions_are_blocks() -> None:
    power = Power()
    nn.init.constant_(power.double_it.weight, 2)
    block = fb.Record((fb.Vector(1), fb.Identity())) >> fb.OnTheFly(
        power, (fb.TensorType([1]), fb.PyObjectType()), fb.TensorType([1])
    )
    check(block, (([1], 3), [8]), (([5], 0), [5]), depths=[3, 0])
    model = fb.compile(block)
    assert list(model.state_dict()) == ["modules_on_the_fly.Power.double_it.weight"]
    kept = model.record(([1], 2))
    twin = fb.compile(block.copy())
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin([kept]), model([([1], 2)]))
    elsewhere = pickle.loads(pickle.dumps(model.plan))
    torch.testing.assert_close(model(elsewhere([([1], 2), ([3], 1)])), model([([1], 2), ([3], 1)]))


def test_on_the_fly_functions_branch_on_computed_values() -> None:
    double = fl.cell(lambda x: 2 * x)

    def until_large(x: torch.Tensor) -> torch.Tensor:
        while x.sum() < 10:
            x = double(x)
        return x

    model = fb.compile(fb.Vector(2) >> fb.OnTheFly(until_large, 2, 2) >> torch.neg)
    assert model([[1, 1], [4, 0], [20, 1]]).tolist() == [[-8, -8], [-16, 0], [-20, -1]]
    with pytest.raises(fl.errors.ValueNotReadyError, match=r"asks for a value that is not computed yet"):
        model.plan([[1, 1]])


class AttendOnTheFly(nn.Module):
    """Attention in plain PyTorch, for one sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2, 1)

    def forward(self, states: list[torch.Tensor]) -> torch.Tensor:
        stacked = torch.stack(states)
        return (torch.softmax(self.score(stacked), 0) * stacked).sum(0)


def test_plain_code_over_a_sequence_is_a_block() -> None:
    attend = AttendOnTheFly()
    tanh = fb.Map(fb.Vector(2) >> fb.Function(torch.tanh))
    model = fb.compile(tanh >> fb.OnTheFly(attend, fb.SequenceType(2), 2)).double()
    examples = [[[1, 2]], [[1, 2], [3, 4], [0, 1]], [[0, 0], [1, 1]]]
    expected = [attend([torch.tanh(torch.tensor(x, dtype=torch.float64)) for x in example]) for example in examples]
    torch.testing.assert_close(model(examples), torch.stack(expected))
    torch.testing.assert_close(model(model.plan(examples)), torch.stack(expected))
    elsewhere = pickle.loads(pickle.dumps(model.plan))
    torch.testing.assert_close(model(elsewhere(examples)), torch.stack(expected))
    assert list(model.state_dict()) == [
        f"modules_on_the_fly.AttendOnTheFly.score.{name}" for name in ("weight", "bias")
    ]
