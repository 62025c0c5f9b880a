"""Blocks one after the other, side by side, and wired."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from foldloom import blocks as fb
from tests.blocks.checking import check, pair, scalars

negative = fb.Function(torch.neg)


def test_pipe() -> None:
    check(fb.Pipe(fb.Scalar(), fb.Function(torch.neg), fb.Function(torch.exp)), (0, 1), depths=[2])
    assert fb.Pipe().eval("anything") == "anything"
    assert repr(fb.Identity() >> fb.Scalar() >> fb.Identity()) == "Scalar()"
    assert repr(fb.Pipe()) == "Pipe()"
    long: fb.Block = fb.Scalar()
    for _ in range(7):
        long = long >> torch.neg
    check(long, (2, -2), depths=[7])


def test_what_may_stand_for_a_block() -> None:
    check(fb.Scalar() >> torch.neg, (1, -1))
    check({"a": fb.Scalar()} >> fb.GetItem(0), ({"a": 1}, 1))
    check((fb.Scalar(), fb.Scalar()) >> fb.Function(torch.add), ((1, 2), 3))
    check([fb.Scalar(), fb.Scalar()] >> fb.Function(torch.add), ((1, 2), 3))
    check(fb.Void() >> torch.ones(2), (None, [1, 1]))
    check(torch.ones(2) >> fb.Function(torch.neg), (None, [-1, -1]))
    check(np.ones(2, "float32") >> fb.Function(torch.neg), (None, [-1, -1]))
    with pytest.raises(fb.BlockTypeError, match=r"3 \(int\) is not a block, nor a module, function, tensor or record"):
        fb.Scalar() >> 3
    with pytest.raises(fb.BlockTypeError, match=r"not a block"):
        fb.Map(dict)  # a class is nobody's function over tensors


def test_record_of_fields() -> None:
    block = fb.Record({"b": fb.Scalar(), "a": fb.Vector(2)})
    assert block.output_type == fb.TupleType(fb.TensorType([2]), fb.TensorType([]))
    check(block, ({"b": 1, "a": [2, 3]}, ([2, 3], 1)), depths=[0])
    in_order = fb.Record(OrderedDict([("b", fb.Scalar()), ("a", fb.Vector(2))]))
    check(in_order, ({"b": 1, "a": [2, 3]}, (1, [2, 3])))
    check(fb.Record([("b", fb.Scalar()), ("a", fb.Vector(2))]), ({"b": 1, "a": [2, 3]}, (1, [2, 3])))


def test_record_of_positions() -> None:
    check(fb.Record((fb.Scalar(), fb.Scalar(), fb.Scalar())), ((1, 2, 3), (1, 2, 3)), ([4, 5, 6, 7], (4, 5, 6)))
    check(fb.Record([(2, fb.Scalar()), (0, fb.Scalar())]), ([1, 2, 3], (3, 1)))
    check(fb.Record([(slice(1, None), fb.Map(fb.Scalar()) >> fb.Sum())]), ([1, 2, 3], (5,)), ([], (0,)))


def test_record_of_tuples() -> None:
    check(pair() >> fb.Record((fb.Function(torch.neg), fb.Identity())), ((1, 2), (-1, 2)), depths=[1])
    check(fb.Record((fb.Scalar(),) * 3) >> fb.Record([(slice(0, 2), fb.Function(torch.add))]), ((1, 2, 4), (3,)))
    with pytest.raises(
        fb.BlockTypeError, match=r"Record.* gives TupleType\(.*, but Record\({'a': Identity\(\)}\) takes PyObjectType"
    ):
        pair() >> fb.Record({"a": fb.Identity()})
    with pytest.raises(fb.BlockTypeError, match=r"takes item 2 of .*, which has 2"):
        pair() >> fb.Record((fb.Identity(),) * 3)
    with pytest.raises(fb.BlockTypeError, match=r"takes a Python object or a tuple, not TensorType"):
        fb.Scalar() >> fb.Record((fb.Identity(),))


def test_record_says_which_field_is_missing() -> None:
    block = fb.Record({"left": fb.Scalar(), "right": fb.Scalar()})
    with pytest.raises(
        fb.MissingKeyError, match=r"a record of the example has no field 'right' \(it has 'left', 'up'\)"
    ):
        block.eval({"left": 1, "up": 2})
    with pytest.raises(fb.MissingKeyError, match=r"a sequence of 1 has no item 1"):
        fb.Record((fb.Scalar(), fb.Scalar())).eval([1])
    with pytest.raises(fb.MissingKeyError, match=r"5 \(int\) has no field 'a', which"):
        fb.Record({"a": fb.Scalar()}).eval(5)
    with pytest.raises(fb.MissingKeyError, match=r"write fb.InputTransform\(operator.attrgetter\('imag'\)\)"):
        fb.Record({"imag": fb.Scalar()}).eval(5)


def test_record_of_names_that_cannot_be_sorted() -> None:
    with pytest.raises(fb.WiringError, match=r"cannot be compared: 'a', 1. Give a list of pairs"):
        fb.Record({"a": fb.Scalar(), 1: fb.Scalar()})


def test_all_of() -> None:
    check(fb.AllOf(fb.Scalar(), fb.Scalar("int64"), fb.Zeros(2)), (3, (3, 3, [0, 0])), depths=[0])
    check(fb.Scalar() >> fb.AllOf(torch.neg, torch.exp), (0, (0, 1)), depths=[1])
    assert fb.AllOf().eval(3) is None
    assert fb.AllOf().output_type == fb.VoidType()
    with pytest.raises(fb.BlockTypeError, match=r"get one input: others take PyObjectType"):
        fb.AllOf(fb.Scalar(), fb.Function(torch.neg).set_input_type(2))


def test_composition() -> None:
    composition = fb.Composition()
    with composition.scope():
        number = fb.Scalar().reads(composition.input)
        square = fb.Function(torch.mul).reads(number, number)
        composition.output.reads(square, number)
    assert composition.output_type == fb.TupleType(fb.TensorType([]), fb.TensorType([]))
    check(composition, (3, (9, 3)), (-1, (1, -1)), depths=[1, 1])


def test_composition_with_wires() -> None:
    composition = fb.Composition()
    with composition.scope():
        record = fb.Record({"a": fb.Scalar(), "b": fb.Scalar(), "c": fb.Scalar()}).reads(composition.input)
        difference = fb.Function(torch.sub).reads(record["c"], record["a"])
        total = fb.Function(torch.add).reads(record[1:])
        composition.output.reads(difference, total, record[0])
    check(composition, ({"a": 1, "b": 2, "c": 4}, (3, 6, 1)), depths=[1])
    nested = fb.Composition()
    with nested.scope():
        both = fb.AllOf(pair(), fb.GetItem(0) >> fb.Scalar()).reads(nested.input)
        nested.output.reads(both[0][1], both[1])
    check(nested, ((1, 2), (2, 1)))


def test_composition_of_python_objects() -> None:
    composition = fb.Composition()
    with composition.scope():
        composition.output.reads(fb.Scalar().reads(composition.input["x"]))
    check(composition, ({"x": 4}, 4))


def test_composition_with_connect_and_children() -> None:
    zeros, number, add = fb.FromTensor(torch.tensor(5.0)), fb.Scalar(), fb.Function(torch.add)
    composition = fb.Composition([zeros, number, add])
    composition.connect(composition.input, number)
    composition.connect((zeros, number), add)
    composition.connect(add, composition.output)
    check(composition, (1, 6), (2, 7), depths=[1, 1])


def test_composition_that_is_wired_backwards() -> None:
    first, second = fb.Scalar(), fb.Function(torch.neg)
    composition = fb.Composition()
    with composition.scope():
        composition.output.reads(second)
        second.reads(first)
        first.reads(composition.input)
    check(composition, (1, -1))


def test_composition_without_output_gives_nothing() -> None:
    composition = fb.Composition()
    with composition.scope():
        fb.Metric("seen").reads(fb.Scalar().reads(composition.input))
    assert composition.eval(3) == (None, {"seen": [torch.tensor(3.0)]})


def test_one_block_twice_in_a_composition() -> None:
    double = fb.Function(nn.Linear(1, 1))
    composition = fb.Composition()
    with composition.scope():
        once = double.reads(fb.Vector(1).reads(composition.input))
        twice = fb.Pipe(double).reads(once)
        composition.output.reads(once, twice)
    model = fb.compile(composition)
    assert len(list(model.parameters())) == 2
    assert model.max_depth([1]) == 2
    with composition.scope(), pytest.raises(fb.WiringError, match=r"reads something already.*fb.Pipe"):
        double.reads(composition.input)


def test_composition_says_what_is_wrong() -> None:
    with pytest.raises(
        fb.WiringError, match=r"reads other blocks, which only a composition allows(.|\n)*test_composition.py"
    ):
        fb.Scalar().reads(fb.Identity())
    unused = fb.Composition()
    unused.connect(unused.input, fb.Scalar("int64"))
    with pytest.raises(
        fb.WiringError, match=r"nobody reads Scalar\('int64'\), which gives TensorType\(\[\], 'int64'\)"
    ):
        fb.compile(unused)
    circle, one, other = fb.Composition(), fb.Function(torch.neg), fb.Function(torch.exp)
    circle.connect(other, one)
    with pytest.raises(fb.WiringError, match=r"would read itself, directly or through other blocks"):
        circle.connect(one, other)
    loose = fb.Composition()
    with loose.scope():
        loose.output.reads(fb.Scalar())
    with pytest.raises(
        fb.BlockTypeError, match=r"Scalar\(\) takes PyObjectType\(\), but reads nothing in its composition"
    ):
        fb.compile(loose)
    mistyped = fb.Composition()
    with mistyped.scope():
        number = fb.Scalar().reads(mistyped.input)
        with pytest.raises(
            fb.BlockTypeError,
            match=r"Scalar\(\) gives TensorType\(\[\], 'float32'\), but Scalar\(\) takes PyObjectType",
        ):
            fb.Scalar().reads(number)
        mistyped.output.reads(number)
    other_things = fb.Composition()
    with other_things.scope():
        with pytest.raises(fb.WiringError, match=r"3 \(int\) cannot be read"):
            fb.Scalar().reads(3)
        with pytest.raises(fb.WiringError, match=r"output of a composition cannot be read"):
            fb.Scalar().reads(other_things.output)
        with pytest.raises(fb.WiringError, match=r"input of a composition reads nothing"):
            other_things.input.reads(fb.Scalar())
        with pytest.raises(fb.WiringError, match=r"has no field 'z'; it has 'a'"):
            fb.Identity().reads(fb.Record({"a": fb.Scalar()})["z"])


def test_what_nobody_reads_is_told_where_the_scope_ends() -> None:
    composition = fb.Composition()
    scope = composition.scope()
    with pytest.raises(fb.WiringError, match=r"nobody reads Scalar(.|\n)*at .*test_composition.py"), scope:
        fb.Scalar().reads(composition.input)


def test_sequences_are_not_unpacked_by_mistake() -> None:
    with pytest.raises(TypeError, match=r"is a block, not a sequence"):
        _, _ = scalars()


def test_identity_and_void() -> None:
    check(fb.Scalar() >> fb.Identity(), (1, 1), depths=[0])
    assert fb.Void().eval(3) is None
    assert fb.Void().output_type == fb.VoidType()
    check(fb.AllOf(fb.Scalar(), fb.Void()) >> fb.GetItem(0), (1, 1))
    check(fb.AllOf(fb.Scalar(), fb.Void()), (1, (1, None)))
