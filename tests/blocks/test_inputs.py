"""From Python objects to tensors: values, types, depth, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from foldloom import blocks as fb
from tests.blocks.checking import check


def test_tensor() -> None:
    check(
        fb.Tensor([2, 2]),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        (np.eye(2), [[1, 0], [0, 1]]),
        depths=[0, 0],
    )
    check(fb.Tensor([1]), ([3], [3]), (torch.ones(1), [1]))
    check(fb.Record((fb.Tensor([1]), fb.Scalar())), ((torch.ones(1), torch.tensor(2.0)), ([1], 2)), depths=[0])
    assert fb.Tensor([2, 2]).output_type == fb.TensorType([2, 2], "float32")
    assert fb.Tensor([2, 2]).input_type == fb.PyObjectType()
    check(fb.Tensor([0]), ([], []), depths=[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8", "bool"])
def test_scalar(dtype: str) -> None:
    block = fb.Scalar(dtype)
    assert block.output_type == fb.TensorType([], dtype)
    assert block.eval(1).dtype == getattr(torch, dtype)
    assert fb.compile(block)([1, 0, 1]).dtype == getattr(torch, dtype)
    check(block, (1, 1), (0, 0), (np.float32(1) if dtype.startswith("float") else np.int64(1), 1), depths=[0, 0, 0])


def test_bfloat16() -> None:
    assert fb.compile(fb.Vector(2, torch.bfloat16))([[1, 2]]).dtype == torch.bfloat16
    assert fb.Scalar("bfloat16").eval(2).dtype == torch.bfloat16


def test_vector() -> None:
    check(fb.Vector(3), ([1, 2, 3], [1, 2, 3]), ((4, 5, 6), [4, 5, 6]), depths=[0, 0])
    assert fb.Vector(3, "int32").output_type == fb.TensorType([3], "int32")


def test_gradients_flow_into_given_tensors() -> None:
    given = torch.ones(2, requires_grad=True)
    fb.compile(fb.Vector(2) >> fb.Function(torch.exp))([given]).sum().backward()
    assert given.grad is not None
    number = torch.tensor(2.0, requires_grad=True)
    fb.compile(fb.Map(fb.Scalar()) >> fb.Sum())([[number, 3]]).sum().backward()
    assert number.grad is not None


def test_input_transform() -> None:
    check(
        fb.InputTransform(str.split) >> fb.InputTransform(len) >> fb.Scalar("int64"),
        ("a b c", 3),
        ("", 0),
        depths=[0, 0],
    )
    assert fb.InputTransform(len).eval([1, 2]) == 2
    with pytest.raises(fb.WiringError, match=r"takes a function, not 3"):
        fb.InputTransform(3)  # type: ignore[arg-type]


def test_what_the_users_function_raises_is_raised_as_it_is() -> None:
    model = fb.compile(fb.InputTransform({"a": 1}.__getitem__) >> fb.Scalar())
    for use in (model, model.plan):
        with pytest.raises(KeyError) as caught:
            use(["a", "b"])
        assert type(caught.value) is KeyError
        assert any("example 1" in note for note in caught.value.__notes__)


def test_one_hot() -> None:
    check(fb.OneHot(3), (0, [1, 0, 0]), (2, [0, 0, 1]), depths=[0, 0])
    check(fb.OneHot(5, 8), (5, [1, 0, 0]), (7, [0, 0, 1]))
    assert fb.OneHot(3, dtype="int64").output_type == fb.TensorType([3], "int64")
    for wrong in (-1, 3, "1"):
        with pytest.raises(KeyError, match=r"none of its 3 elements"):
            fb.OneHot(3).eval(wrong)


def test_one_hot_from_list() -> None:
    check(fb.OneHotFromList(["a", "b"]), ("b", [0, 1]), ("a", [1, 0]), depths=[0, 0])
    check(fb.OneHotFromList(["a", "b"], strict=False), ("b", [0, 1]), ("z", [0, 0]))
    with pytest.raises(
        KeyError,
        match=r"was given 'z', which is none of its 2 elements\n  in OneHotFromList.* made at .*test_inputs.py",
    ):
        fb.OneHotFromList(["a", "b"]).eval("z")
    with pytest.raises(fb.WiringError, match=r"'a' is twice among the elements"):
        fb.OneHotFromList(["a", "b", "a"])


@pytest.mark.parametrize(
    ("block", "wrong", "message"),
    [
        (
            fb.Scalar(),
            None,
            r"Scalar\(\) was given None \(NoneType\), of which it cannot make TensorType\(\[\], 'float32'\)",
        ),
        (fb.Scalar("int64"), 1.5, "was given 1.5"),
        (fb.Scalar("int64"), "x", "was given 'x'"),
        (fb.Scalar("int32"), "x", "was given 'x'"),
        (fb.Vector(2), [1, None], r"was given \[1, None\]"),
        (fb.Vector(2), [[1, 2], [3]], "of which it cannot make"),
        (fb.Vector(2), [1, 2, 3], r"of shape \[3\]; it takes shape \[2\]"),
        (fb.Tensor([1, 1]), 4, r"of shape \[\]; it takes shape \[1, 1\]"),
    ],
)
def test_what_is_no_such_tensor_is_refused(block: fb.Block, wrong: object, message: str) -> None:
    with pytest.raises(fb.BlockInputError, match=message):
        block.eval(wrong)
    with pytest.raises(fb.BlockInputError, match=message) as caught:
        fb.compile(block).plan([wrong])
    assert "in example 0 of the batch" in caught.value.__notes__


def test_nested_records_from_json() -> None:
    person = {
        "name": fb.InputTransform(len) >> fb.Scalar(),
        "scores": fb.Map(fb.Scalar()) >> fb.Sum(),
        "address": fb.Optional({"number": fb.Scalar()}),
    }
    block = fb.InputTransform(json.loads) >> person
    check(
        block,
        ('{"name": "Ann", "scores": [1, 2], "address": {"number": 7}}', ((7,), 3, 3)),
        ('{"name": "", "scores": [], "address": null}', ((0,), 0, 0)),
        depths=[1, 0],
    )


def test_optional() -> None:
    assert fb.Optional(fb.Vector(2)).output_type == fb.TensorType([2])
    check(fb.Optional(fb.Vector(2)), ([1, 2], [1, 2]), (None, [0, 0]), depths=[0, 0])
    check(fb.Optional(fb.Scalar(), fb.FromTensor(torch.tensor(9.0))), (1, 1), (None, 9))
    check(fb.Optional(fb.Scalar() >> fb.Function(torch.neg)), (1, -1), (None, 0), depths=[1, 0])
    check(fb.Optional(fb.Map(fb.Scalar())) >> fb.Sum(), ([1, 2], 3), (None, 0), ([], 0), depths=[1, 0, 0])
    with pytest.raises(fb.BlockTypeError, match=r"for None it would give TensorType"):
        fb.Optional(fb.Scalar(), fb.Zeros(3))
    with pytest.raises(fb.BlockTypeError, match=r"stands where there is no input, but takes PyObjectType\(\)"):
        fb.Optional(fb.Scalar(), fb.Scalar())
    with pytest.raises(fb.BlockTypeError, match=r"passes on a Python object, but Zeros\(2\) takes VoidType"):
        fb.Optional(fb.Zeros(2))
    with pytest.raises(fb.BlockTypeError, match=r"not PyObjectType(.|\n)*in Optional.some_case > Linear"):
        fb.Optional(nn.Linear(2, 2))


def test_protobuf_messages() -> None:
    pytest.importorskip("google.protobuf", reason="protobuf is not installed")
    from google.protobuf import descriptor_pb2

    message = descriptor_pb2.DescriptorProto(name="Tree")
    message.field.add(name="label", number=1, type=descriptor_pb2.FieldDescriptorProto.TYPE_INT32)
    block = fb.SerializedMessageToTree(descriptor_pb2.DescriptorProto)
    tree = block.eval(message.SerializeToString())
    assert tree["name"] == "Tree"
    assert tree["options"] is None
    assert tree["nested_type"] == []
    assert tree["field"][0]["type"] == {"name": "TYPE_INT32", "index": 4, "number": 5}
    count = block >> fb.GetItem("field") >> fb.Length()
    check(count, (message.SerializeToString(), 1), (b"", 0))
    with pytest.raises(fb.BlockInputError, match=r"is not a serialized google.protobuf.DescriptorProto"):
        block.eval(b"\xff")
