"""Types: what they are, how they are written in short, how they are found, how blocks print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foldloom import blocks as fb

T, Tu, S, P = fb.TensorType, fb.TupleType, fb.SequenceType, fb.PyObjectType()


@pytest.mark.parametrize(
    ("short", "type"),
    [
        (42, T([42])),
        ("int64", T([], "int64")),
        (torch.int32, T([], "int32")),
        ([3, 4], T([3, 4])),
        ([3, 4, "int32"], T([3, 4], "int32")),
        ([], T([])),
        ((2, "int64"), Tu(T([2]), T([], "int64"))),
        ((2,), Tu([T([2])])),
        ((), Tu()),
        (S(3), S(T([3]))),
    ],
)
def test_types_in_short(short: Any, type: Any) -> None:
    assert fb.convert_to_type(short) == type


@pytest.mark.parametrize("wrong", [True, 1.5, "no such dtype", [-1], [1.5], None])
def test_what_is_no_type(wrong: Any) -> None:
    with pytest.raises(fb.BlockTypeError):
        fb.convert_to_type(wrong)


def test_parts_of_types() -> None:
    type = Tu(T([2]), Tu(T([], "int64"), T([3])))
    assert type.size == 6
    assert list(type.terminal_types()) == [T([2]), T([], "int64"), T([3])]
    assert type.flatten(("a", ("b", "c"))) == ["a", "b", "c"]
    assert type.unflatten(["a", "b", "c"]) == ("a", ("b", "c"))
    met: list[Any] = []
    type.for_each_terminal(lambda terminal, value: met.append((terminal, value)), (1, (2, 3)))
    assert met == [(T([2]), 1), (T([], "int64"), 2), (T([3]), 3)]
    assert fb.VoidType().size == 0
    with pytest.raises(fb.BlockTypeError, match=r"has no fixed size"):
        _ = S(2).size


def test_dtypes() -> None:
    assert T([2]).dtype == "float32"
    assert T([2], np.int32) == T([2], "int32") == T([2], torch.int32)
    torch.set_default_dtype(torch.float64)
    try:
        assert T([2]).dtype == "float64"
    finally:
        torch.set_default_dtype(torch.float32)


def test_containers_of_python_objects_are_python_objects() -> None:
    assert fb.canonicalize_type(S(Tu(P, S(P)))) == P
    assert fb.canonicalize_type(Tu(P, 2)) == Tu(P, T([2]))
    assert fb.canonicalize_type(fb.BroadcastSequenceType(P)) == fb.BroadcastSequenceType(P)


def test_types_flow_forwards_and_backwards() -> None:
    linear = fb.Function(nn.Linear(2, 3))
    assert linear.input_type is None
    assert (fb.Vector(2) >> linear).output_type == T([3])
    first, second = fb.Identity(), fb.GetItem(0)
    fb.Pipe(first, second, fb.Scalar())
    assert first.input_type is None
    assert second.output_type == P
    mapped = fb.Map(fb.Function(torch.neg))
    before = fb.Identity()
    fb.Pipe(before, mapped).set_input_type(S(2))
    assert mapped.output_type == S(2)


def test_types_that_are_set() -> None:
    assert fb.Identity().set_input_type(3).output_type == T([3])
    assert fb.Function(torch.neg).set_io_types(3, 3).output_type == T([3])
    with pytest.raises(
        fb.BlockTypeError, match=r"Scalar\(\) gives TensorType\(\[\], 'float32'\), not TensorType\(\[2\], 'float32'\)"
    ):
        fb.Scalar().set_output_type(2)
    block = fb.Identity().set_input_type_classes(fb.TensorType, fb.TupleType)
    with pytest.raises(
        fb.BlockTypeError, match=r"takes PyObjectType\(\), but was set to be of kind TensorType or TupleType"
    ):
        fb.InputTransform(len) >> block
    assert (fb.Scalar() >> block).output_type == T([])
    with pytest.raises(fb.BlockTypeError, match=r"was set to be of kind PyObjectType"):
        fb.Scalar().set_output_type_classes(fb.PyObjectType)


def test_a_mistake_can_be_mended() -> None:
    """What failed left nothing behind: the same blocks can be used again, rightly."""
    linear, free = fb.Function(nn.Linear(2, 3)), fb.Identity()
    with pytest.raises(fb.BlockTypeError):
        fb.Pipe(fb.Vector(5), free, linear)
    assert free.input_type is None
    assert fb.Pipe(fb.Vector(2), free, linear).output_type == T([3])


def test_one_block_has_one_type() -> None:
    block = fb.Function(torch.neg)
    fb.Vector(2) >> block
    with pytest.raises(
        fb.BlockTypeError,
        match=r"Vector\(3\) gives TensorType\(\[3\], 'float32'\), but Function\(neg\) takes TensorType\(\[2\], 'float32'\)",
    ):
        fb.Vector(3) >> block
    assert (fb.Vector(3) >> block.copy()).output_type == T([3])


def test_errors_name_types_path_and_line() -> None:
    inner = fb.Record({"left": fb.Map(fb.Vector(3)), "right": fb.Scalar()})
    with pytest.raises(fb.BlockTypeError) as caught:
        inner >> fb.Record((fb.Map(nn.Linear(4, 2)), fb.Identity()))
    message = str(caught.value)
    assert "Linear(in_features=4, out_features=2, bias=True) cannot take TensorType([3], 'float32')" in message
    assert "in Pipe[1] > Record[0] > Map.element > Linear" in message
    assert "test_types.py" in message
    with pytest.raises(fb.BlockTypeError, match=r"Only the dtypes differ: int64 and float32"):
        fb.Scalar("int64") >> fb.Identity().set_input_type([])


@pytest.mark.parametrize(
    "text",
    [
        "GetItem('word') >> Scalar('int64') >> Embedding(3, 2)",
        "Map(Scalar()) >> Fold(Function(add), Zeros([]))",
        "Record({'a': Scalar(), 'b': Vector(2, dtype='int64')})",
        "AllOf(Identity(), OneHot(3), Slice(start=1, step=2))",
        "OneOf(len, {0: Length(), 1: Length('float32')})",
        "Record((Scalar(), Map(Scalar()) >> Mean()))",
        "Optional(Tensor([2, 3]), Zeros(TensorType([2, 3], 'float32')))",
        "Metric('loss')",
    ],
)
def test_blocks_print_as_the_expression_that_made_them(text: str) -> None:
    names = {name: getattr(fb, name) for name in fb.__all__} | {"Embedding": nn.Embedding, "add": torch.add}
    assert repr(eval(text, names)) == text
