"""Blocks over sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foldloom import blocks as fb
from tests.blocks.checking import check, pair, scalars

S = fb.SequenceType


def test_map() -> None:
    block = scalars() >> fb.Map(torch.neg)
    assert block.output_type == S(fb.TensorType([]))
    check(block, ([1, 2], [-1, -2]), ([], []), ((3,), [-3]), depths=[1, 0, 1])
    check(fb.Map(fb.Scalar()), ([], []), ([], []), depths=[0, 0])
    check(pair() >> fb.Map(torch.neg), ((1, 2), [-1, -2]), depths=[1])
    check(fb.Map(pair()), ([(1, 2), (3, 4)], [(1, 2), (3, 4)]), ([], []))
    with pytest.raises(fb.BlockTypeError, match=r"elements of one type, but this tuple has TensorType.*'int64'"):
        fb.Record((fb.Scalar(), fb.Scalar("int64"))) >> fb.Map(torch.neg)
    with pytest.raises(fb.BlockTypeError, match=r"takes a sequence, a tuple or a Python object, not TensorType"):
        fb.Scalar() >> fb.Map(torch.neg)
    with pytest.raises(
        fb.BlockTypeError, match=r"Map\(Scalar\(\)\) gives SequenceType\(.*, but Map\(Scalar\(\)\) takes PyObjectType"
    ):
        scalars() >> fb.Map(fb.Scalar())
    with pytest.raises(
        fb.BlockTypeError, match=r"gets elements of TensorType\(\[\], 'float32'\), but .* takes TensorType\(\[2\]"
    ):
        scalars() >> fb.Map(fb.Function(torch.neg).set_input_type(2))


def test_fold() -> None:
    block = scalars() >> fb.Fold(fb.Function(lambda state, x: 2 * state + x), fb.FromTensor(torch.tensor(1.0)))
    assert block.output_type == fb.TensorType([])
    check(block, ([], 1), ([5], 7), ([1, 2, 3], 19), depths=[0, 1, 3])
    on_objects = fb.Fold(fb.Record((fb.Identity(), fb.Scalar())) >> fb.Function(torch.add), fb.Zeros([]))
    check(on_objects, ([1, 2], 3), ([], 0))
    check(
        fb.Record((fb.Scalar(), fb.Scalar())) >> fb.Fold(fb.Function(torch.sub), fb.Zeros([])), ((1, 2), -3), depths=[2]
    )
    with pytest.raises(fb.BlockTypeError, match=r"stands where there is no input, but takes"):
        fb.Fold(fb.Function(torch.add), fb.Scalar())
    with pytest.raises(
        fb.BlockTypeError,
        match=r"Function\(.*\) gives TensorType\(\[\], 'float64'\), but TensorType\(\[\], 'float32'\) is wanted of it",
    ):
        scalars() >> fb.Fold(fb.Function(lambda s, x: (s + x).double()), fb.Zeros([]))


def test_reduce() -> None:
    block = scalars() >> fb.Reduce(fb.Function(torch.sub))
    # ((8 - 4) - (2 - 1)) - 16: neighbours pair by pair, the odd one carried up
    check(block, ([8, 4, 2, 1, 16], -13), ([8, 4, 2], 2), ([7], 7), ([], 0), depths=[3, 2, 0, 0])
    default = scalars() >> fb.Reduce(fb.Function(torch.sub), fb.FromTensor(torch.tensor(9.0)))
    check(default, ([], 9), ([1, 2], -1))
    check(pair() >> fb.Reduce(fb.Function(torch.add)), ((1, 2), 3), depths=[1])
    many = list(range(100))
    check(scalars() >> fb.Sum(), (many, sum(many)), depths=[7])
    with pytest.raises(
        fb.BlockTypeError,
        match=r"gets elements of TensorType\(\[\], 'float32'\), but combines them to TensorType\(\[2\]",
    ):
        scalars() >> fb.Reduce(fb.Function(torch.add), fb.Zeros(2))
    with pytest.raises(fb.BlockTypeError, match=r"its default is TensorType\(\[2\], 'float32'\)"):
        fb.Reduce(fb.Function(torch.add).set_output_type([]), fb.Zeros(2))
    with pytest.raises(fb.BlockTypeError, match=r"wanted of it"):
        scalars() >> fb.Reduce(fb.Function(lambda a, b: torch.stack((a, b), 1)))


def test_reduce_of_pairs() -> None:
    merge = fb.Function(lambda one, other: (one[0] + other[0], one[1] * other[1]))
    check(fb.Map(pair()) >> fb.Reduce(merge), ([(1, 2), (3, 4), (5, 6)], (9, 48)), ([], (0, 0)), depths=[2, 0])


def test_sum_min_max_mean() -> None:
    vectors = fb.Map(fb.Vector(2))
    check(vectors >> fb.Sum(), ([[1, 2], [3, 4]], [4, 6]), ([], [0, 0]), depths=[1, 0])
    check(vectors >> fb.Min(), ([[1, 5], [3, 4], [2, 9]], [1, 4]), ([], [0, 0]), depths=[2, 0])
    check(vectors >> fb.Max(), ([[1, 5], [3, 4], [2, 9]], [3, 9]), ([], [0, 0]), depths=[2, 0])
    check(vectors >> fb.Mean(), ([[1, 2], [3, 4]], [2, 3]), ([], [0, 0]), ([[1, 1]], [1, 1]), depths=[2, 1, 1])
    check(scalars() >> fb.Mean(), ([1, 2, 6], 3))
    check(fb.Map(fb.Scalar("int64")) >> fb.Max(), ([1, 7, 3], 7))
    with pytest.raises(fb.BlockTypeError, match=r"not TupleType"):
        fb.compile(fb.InputTransform(list) >> fb.Sum())


def counting_cell() -> fb.Block:
    """Takes (element, state), gives (ten times the element, their sum)."""
    return fb.Function(lambda x, state: (x * 10, state + x)).set_input_type(([], []))


def test_rnn() -> None:
    block = scalars() >> fb.RNN(counting_cell())
    assert block.output_type == fb.TupleType(S(fb.TensorType([])), fb.TensorType([]))
    check(block, ([1, 2], ([10, 20], 3)), ([], ([], 0)), ([5], ([50], 5)), depths=[2, 0, 1])
    started = scalars() >> fb.RNN(fb.Function(lambda x, s: (x * 10, s + x)), fb.FromTensor(torch.tensor(1.0)))
    check(started, ([1, 2], ([10, 20], 4)), ([], ([], 1)), depths=[2, 0])
    from_input = fb.Record((scalars(), fb.Scalar())) >> fb.RNN(counting_cell(), initial_state_from_input=True)
    check(from_input, (([1, 2], 7), ([10, 20], 10)), (([], 7), ([], 7)), depths=[2, 0])
    on_objects = fb.RNN(fb.Record((fb.Scalar(), fb.Identity())) >> counting_cell())
    check(on_objects, ([1, 2], ([10, 20], 3)), ([], ([], 0)))


def test_rnn_says_what_is_wrong() -> None:
    with pytest.raises(
        fb.BlockTypeError, match=r"what the state of RNN.* is, because its cell both takes and gives it.*initial_state"
    ):
        fb.compile(scalars() >> fb.RNN(fb.Function(lambda x, state: (x, state))))
    with pytest.raises(fb.WiringError, match=r"has an initial state and is to read one from its input"):
        fb.RNN(counting_cell(), fb.Zeros([]), initial_state_from_input=True)
    with pytest.raises(fb.BlockTypeError, match=r"starts with TensorType\(\[2\], 'float32'\)"):
        fb.RNN(counting_cell(), fb.Zeros(2))
    with pytest.raises(fb.BlockTypeError, match=r"is wanted of it|needs \(output, state\)"):
        fb.RNN(fb.Function(torch.add), fb.Zeros([])).set_input_type(S([]))


def test_bidirectional_rnn() -> None:
    forward = fb.RNN(counting_cell()) >> fb.GetItem(0)
    backward = (
        fb.Slice(step=-1)
        >> fb.RNN(fb.Function(lambda x, s: (x + s, s + x)), fb.Zeros([]))
        >> fb.GetItem(0)
        >> fb.Slice(step=-1)
    )
    both = scalars() >> fb.AllOf(forward, backward) >> fb.ZipWith(fb.Concat())
    check(both, ([1, 2, 3], [[10, 6], [20, 5], [30, 3]]), ([], []), depths=[4, 0])


def test_zip() -> None:
    block = fb.Record((scalars(), fb.Map(fb.Scalar("int64")))) >> fb.Zip()
    assert block.output_type == S(fb.TupleType([], "int64"))
    check(block, (([1, 2, 3], [4, 5]), [(1, 4), (2, 5)]), (([], [1]), []), depths=[0, 0])
    check(fb.Zip() >> fb.Map(pair()), (([1, 2], [3, 4]), [(1, 3), (2, 4)]))
    with pytest.raises(fb.BlockTypeError, match=r"takes a tuple of sequences, not TensorType"):
        fb.Scalar() >> fb.Zip()
    with pytest.raises(fb.BlockTypeError, match=r"takes a sequence, a tuple or a Python object, not TensorType"):
        pair() >> fb.Zip()


def test_zip_with_and_broadcast() -> None:
    add = fb.Record((scalars(), fb.Scalar() >> fb.Broadcast())) >> fb.ZipWith(fb.Function(torch.add))
    check(add, (([1, 2], 10), [11, 12]), (([], 10), []), depths=[1, 0])
    endless = fb.Scalar() >> fb.Broadcast()
    assert endless.output_type == fb.BroadcastSequenceType([])
    mapped = fb.Record((scalars(), endless >> fb.Map(torch.neg))) >> fb.ZipWith(fb.Function(torch.add))
    check(mapped, (([1, 2], 10), [-9, -8]), depths=[2])
    both = fb.Record((endless, endless)) >> fb.Zip()
    assert both.output_type == fb.BroadcastSequenceType(([], []))
    check(
        fb.Record((scalars(), both)) >> fb.ZipWith(fb.Concat(flatten=True)), (([1, 2], (3, 4)), [[1, 3, 4], [2, 3, 4]])
    )
    check(endless >> fb.GetItem(5), (3, 3))
    check(fb.Record((endless, fb.Identity())) >> fb.Nth(), ((3, 1000), 3))
    assert repr(fb.ZipWith(torch.add)) == "ZipWith(add)"
    with pytest.raises(
        fb.BlockTypeError, match=r"Make the tensor first and repeat it then: fb.Scalar\(\) >> fb.Broadcast\(\)"
    ):
        fb.Broadcast() >> fb.Map(fb.Scalar())


@pytest.mark.parametrize(
    "block",
    [fb.Length(), fb.NGrams(2), fb.Slice(stop=1), fb.Sum(), fb.Fold(torch.add, fb.Zeros([])), fb.RNN(counting_cell())],
)
def test_what_never_ends_is_refused(block: fb.Block) -> None:
    with pytest.raises(
        fb.BlockTypeError, match=r"would never end on BroadcastSequenceType\(.*, which has no last element"
    ):
        fb.Scalar() >> fb.Broadcast() >> block


def test_n_grams() -> None:
    block = scalars() >> fb.NGrams(2)
    assert block.output_type == S(fb.TupleType([], []))
    check(block, ([1, 2, 3], [(1, 2), (2, 3)]), ([1], []), ([], []), depths=[0, 0, 0])
    check(fb.NGrams(3) >> fb.Map(fb.Map(fb.Scalar()) >> fb.Sum()), ([1, 2, 3, 4], [6, 9]), ([], []))
    with pytest.raises(fb.WiringError, match=r"NGrams\(0\)"):
        fb.NGrams(0)


def test_nth() -> None:
    block = fb.Record((scalars(), fb.Identity())) >> fb.Nth()
    check(block, (([1, 2, 3], 1), 2), (([1, 2, 3], -1), 3), depths=[0, 0])
    check(fb.Nth() >> fb.Scalar(), (([4, 5], 0), 4))
    with pytest.raises(fb.MissingKeyError, match=r"a sequence of 2 has no item 5"):
        block.eval(([1, 2], 5))
    with pytest.raises(fb.BlockTypeError, match=r"PyObjectType"):
        pair() >> fb.Nth()


def test_get_item() -> None:
    check(fb.GetItem("a") >> fb.Scalar(), ({"a": 1}, 1), depths=[0])
    check(pair() >> fb.GetItem(1), ((1, 2), 2))
    check(pair() >> fb.GetItem(-1), ((1, 2), 2))
    check(scalars() >> fb.GetItem(0), ([7, 8], 7))
    check(scalars() >> fb.GetItem(slice(1, None)), ([7, 8], [8]), ([], []))
    check(fb.Record((fb.Scalar(),) * 3) >> fb.GetItem(slice(0, 2)), ((1, 2, 3), (1, 2)))
    with pytest.raises(fb.MissingKeyError, match=r"a sequence of 0 has no item 0"):
        (scalars() >> fb.GetItem(0)).eval([])
    with pytest.raises(fb.BlockTypeError, match=r"looks for item 2 of .*, which has 2"):
        pair() >> fb.GetItem(2)
    with pytest.raises(fb.BlockTypeError, match=r"gives TupleType\(.*\), but GetItem\('a'\) takes PyObjectType"):
        pair() >> fb.GetItem("a")
    with pytest.raises(fb.BlockTypeError, match=r"cannot look into TensorType.*, which has no items"):
        fb.Scalar() >> fb.GetItem(0)


def test_slice() -> None:
    check(scalars() >> fb.Slice(step=-1), ([1, 2, 3], [3, 2, 1]), ([], []), depths=[0, 0])
    check(scalars() >> fb.Slice(start=1, stop=3), ([1, 2, 3, 4], [2, 3]), ([1], []))
    check(fb.Slice(stop=1) >> fb.Map(fb.Scalar()), ([1, 2], [1]))
    check(fb.Record((fb.Scalar(),) * 3) >> fb.Slice(stop=2), ((1, 2, 3), (1, 2)))
    with pytest.raises(TypeError):
        fb.Slice(1)  # type: ignore[call-arg]
    with pytest.raises(fb.BlockTypeError, match=r"takes a sequence, a tuple or a Python object, not TensorType"):
        fb.Scalar() >> fb.Slice(stop=2)


def test_length() -> None:
    check(fb.Length(), ([1, 2], 2), ("", 0), depths=[0, 0])
    check(scalars() >> fb.Length("int64"), ([1, 2], 2), ([], 0))
    assert fb.Length("int64").output_type == fb.TensorType([], "int64")
    assert fb.Length("int64").eval([1]).dtype == torch.int64


def test_child_sum() -> None:
    """Any number of children."""
    node = fb.ForwardDeclaration(output_type="float32")
    children = fb.GetItem("children") >> fb.Map(node()) >> fb.Sum()
    block = fb.AllOf(fb.GetItem("value") >> fb.Scalar(), children) >> fb.Function(lambda x, below: 2 * x + below)
    node.resolve_to(block)
    leaf = {"value": 1, "children": []}
    check(
        block, ({"value": 1, "children": [leaf, leaf, {"value": 5, "children": [leaf]}]}, 18), (leaf, 2), depths=[4, 1]
    )


def test_attention_over_the_nodes_of_a_tree() -> None:
    """Every node's state, kept as a sequence, and a softmax over all of them."""
    score = nn.Linear(2, 1)
    weigh = fb.AllOf(fb.Function(score) >> fb.Function(torch.exp), fb.Identity()) >> fb.Function(
        lambda weight, state: (weight.squeeze(1), weight * state)
    )
    total = fb.Map(weigh) >> fb.Reduce(fb.Function(lambda a, b: (a[0] + b[0], a[1] + b[1])))
    block = fb.Map(fb.Vector(2)) >> total >> fb.Function(lambda weight, state: state / weight.unsqueeze(1))
    states = [[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]
    weights = torch.softmax(score(torch.tensor(states)), 0)
    torch.testing.assert_close(block.eval(states), (weights * torch.tensor(states)).sum(0))
    check(block, (states, (weights * torch.tensor(states)).sum(0).detach()), (states[:1], states[0]))


class Attend(nn.Module):
    """A softmax over the rows of a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(2, 1)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(self.score(states), 1) * states).sum(1)


def test_stack() -> None:
    block = fb.Map(fb.Vector(2)) >> fb.Stack()
    assert block.output_type == fb.TensorType([None, 2])
    assert block.eval([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert block.eval([]).shape == (0, 2)
    check(block, ([[1, 2], [3, 4]], [[1, 2], [3, 4]]), ([[0, 0], [1, 1]], [[0, 0], [1, 1]]), depths=[1, 1])
    check(pair() >> fb.Stack(), ((1, 2), [1, 2]))
    with pytest.raises(fb.BlockTypeError, match=r"takes a sequence of tensors, not of TupleType"):
        fb.Map(pair()) >> fb.Stack()


def test_attention_over_a_stack() -> None:
    attend = Attend()
    block = fb.Map(fb.Vector(2)) >> fb.Stack() >> fb.AllOf(attend, fb.Function(lambda x: x.cumsum(1)))
    assert block.output_type == fb.TupleType(2, fb.TensorType([None, 2]))
    weights = torch.softmax(attend.score(torch.ones(3, 2)), 0)
    torch.testing.assert_close(block.eval([[1, 1]] * 3)[0], (weights * torch.ones(3, 2)).sum(0))
    check(
        fb.Map(fb.Vector(2)) >> fb.Stack() >> Attend(),
        ([[1, 2]], [1, 2]),
        ([[1, 1]] * 3, [1, 1]),
        ([], [0, 0]),
        depths=[2, 2, 1],
    )
