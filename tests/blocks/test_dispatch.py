"""One of several blocks, and blocks that contain themselves."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from foldloom import blocks as fb
from tests.blocks.checking import check, pair


def test_one_of() -> None:
    block = fb.OneOf(lambda x: x < 0, {True: fb.Scalar() >> torch.neg, False: fb.Scalar()})
    assert block.input_type == fb.PyObjectType()
    assert block.output_type == fb.TensorType([])
    check(block, (-3, 3), (4, 4), depths=[1, 0])
    check(fb.OneOf(lambda x: x < 0, [fb.Scalar(), fb.Scalar() >> torch.neg]), (-3, 3), (4, 4))
    check(fb.OneOf(len, {1: fb.Length()}), ([7], 1))


def test_one_of_with_blocks_for_keys() -> None:
    cases = {"n": fb.Function(torch.neg), "e": fb.Function(torch.exp)}
    record = fb.Record((fb.Scalar(), fb.Identity()))
    block = record >> fb.OneOf(fb.GetItem(1), cases, pre_block=fb.GetItem(0))
    check(block, ((1, "n"), -1), ((0, "e"), 1), depths=[1, 1])
    from_objects = fb.OneOf(fb.GetItem("kind"), cases, pre_block=fb.GetItem("x") >> fb.Scalar())
    check(from_objects, ({"kind": "n", "x": 2}, -2))


def test_one_of_says_what_is_wrong() -> None:
    with pytest.raises(fb.WiringError, match=r"fb.OneOf has no cases to choose from(.|\n)*test_dispatch.py"):
        fb.OneOf(len, {})
    with pytest.raises(
        fb.BlockTypeError,
        match=r"all cases of .* must give one type: others give TensorType\(\[\], 'float32'\), case 1 gives TensorType\(\[\], 'int64'\)",
    ):
        fb.OneOf(len, {0: fb.Scalar(), 1: fb.Scalar("int64")})
    with pytest.raises(fb.BlockTypeError, match=r"get PyObjectType\(\), but case 1 takes TensorType"):
        fb.OneOf(len, {0: fb.Scalar(), 1: fb.Function(torch.neg).set_input_type([])})
    with pytest.raises(fb.BlockTypeError, match=r"the key of .* is a Python object, but .* gives TensorType"):
        fb.OneOf(fb.Scalar(), {0: fb.Scalar()})
    block = fb.OneOf(lambda x: x, {"a": fb.Length(), "b": fb.Length()})
    with pytest.raises(
        fb.MissingKeyError,
        match=r"has no case for the key 'c'; it has 'a', 'b'\n  in OneOf.*made at .*test_dispatch.py",
    ):
        block.eval("c")
    with pytest.raises(fb.MissingKeyError, match=r"has no case for the key \[1\]"):
        block.eval([1])


def tree_sum(declaration: fb.ForwardDeclaration) -> fb.Block:
    node = fb.Record((declaration(), declaration())) >> fb.Function(torch.add)
    block = fb.OneOf(lambda x: isinstance(x, int), {True: fb.Scalar(), False: node})
    declaration.resolve_to(block)
    return block


TREES = ((5, 5), ((1, 2), 3), (((1, 2), (3, (4, 5))), 15), ((1, (2, (3, 4))), 10))


@pytest.mark.parametrize("types", [(), (fb.PyObjectType(),), (fb.PyObjectType(), fb.TensorType([]))])
def test_forward_declaration(types: tuple[Any, ...]) -> None:
    check(tree_sum(fb.ForwardDeclaration(*types)), *TREES, depths=[0, 1, 3, 3])


def test_forward_declaration_says_what_is_wrong() -> None:
    unresolved = fb.ForwardDeclaration(output_type="float32")
    with pytest.raises(
        fb.WiringError,
        match=r"ForwardDeclaration\(.*, made at .*test_dispatch.py:\d+, was never resolved: write `declaration.resolve_to",
    ):
        fb.compile(fb.Record((unresolved(),)) >> fb.GetItem(0))
    resolved = fb.ForwardDeclaration()
    tree_sum(resolved)
    with pytest.raises(ValueError, match=r"is resolved already: use the block it was resolved to"):
        resolved()
    with pytest.raises(ValueError, match=r"is resolved already, to OneOf"):
        resolved.resolve_to(fb.Scalar())
    with pytest.raises(
        fb.BlockTypeError, match=r"gives TensorType\(\[2\], 'float32'\), but is resolved to Scalar\(\), which gives"
    ):
        fb.ForwardDeclaration(fb.PyObjectType(), 2).resolve_to(fb.Scalar())
    with pytest.raises(
        fb.BlockTypeError, match=r"takes TensorType\(\[2\], 'float32'\), but is resolved to Scalar\(\), which takes"
    ):
        fb.ForwardDeclaration(2).resolve_to(fb.Scalar())


def test_blocks_that_would_never_end_are_refused() -> None:
    endless = fb.ForwardDeclaration()
    with pytest.raises(fb.WiringError, match=r"needs itself whatever the input is: it would never end"):
        endless.resolve_to(fb.Identity() >> fb.GetItem(0) >> endless())
    cases = fb.ForwardDeclaration()
    with pytest.raises(fb.WiringError, match=r"it would never end"):
        cases.resolve_to(fb.OneOf(len, {0: cases(), 1: fb.GetItem(0) >> cases()}))
    first, second = fb.ForwardDeclaration(), fb.ForwardDeclaration()
    use_of_first = first()
    first.resolve_to(fb.GetItem(0) >> second())
    with pytest.raises(fb.WiringError, match=r"it would never end"):
        second.resolve_to(fb.Record((use_of_first, fb.Identity())) >> fb.GetItem(0))


def test_two_declarations_that_need_each_other() -> None:
    even, odd = fb.ForwardDeclaration(output_type="float32"), fb.ForwardDeclaration(output_type="float32")
    odd_block = fb.GetItem(0) >> even() >> torch.neg
    even_block = fb.OneOf(
        lambda x: x is None, {True: fb.Void() >> fb.FromTensor(torch.tensor(1.0)), False: fb.GetItem(0) >> odd()}
    )
    even.resolve_to(even_block)
    odd.resolve_to(odd_block)
    check(even_block, (None, 1), ([[None]], -1), ([[[[None]]]], 1), depths=[0, 1, 2])


def test_trees_deeper_than_pythons_stack() -> None:
    tree: Any = 1
    for _ in range(3000):
        tree = (tree, 1)
    block = tree_sum(fb.ForwardDeclaration())
    limit = sys.getrecursionlimit()
    assert fb.compile(block)([tree, 7]).tolist() == [3001, 7]
    assert block.max_depth(tree) == 3000
    assert sys.getrecursionlimit() == limit


def test_examples_that_contain_themselves_are_refused() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    with pytest.raises(fb.BlockInputError, match=r"nested more deeply than Python can follow, or contains itself"):
        fb.compile(tree_sum(fb.ForwardDeclaration()))([endless])


def test_copies_have_weights_of_their_own() -> None:
    declaration = fb.ForwardDeclaration(fb.PyObjectType(), 2)
    merge = nn.Linear(4, 2)
    node = fb.Record((declaration(), declaration())) >> fb.Concat() >> merge
    block = fb.OneOf(lambda x: isinstance(x, int), {True: fb.Scalar("int64") >> nn.Embedding(5, 2), False: node})
    declaration.resolve_to(block)
    copy = block.copy()
    shared, own = fb.compile(fb.AllOf(block, block)), fb.compile(fb.AllOf(block, copy))
    assert len(list(shared.parameters())) == 3
    assert len(list(own.parameters())) == 6
    tree = ((1, 2), 3)
    same, other = own([tree])
    assert not torch.equal(same, other)
    for one, two in zip(shared([tree]), (same, same), strict=True):
        torch.testing.assert_close(one, two)
    assert repr(copy) == repr(block)


def test_copies_of_declarations_keep_their_types() -> None:
    node = fb.ForwardDeclaration(output_type=2)
    block = fb.Map(node()) >> fb.Sum()
    node.resolve_to(block)
    assert block.copy().output_type == fb.TensorType([2])
    assert repr(block.copy()) == repr(block) == "Map(ForwardDeclaration(output_type=2)()) >> Sum()"


def test_copies_of_compositions() -> None:
    composition = fb.Composition()
    with composition.scope():
        vector = fb.Vector(2).reads(composition.input)
        linear = fb.Function(nn.Linear(2, 2)).reads(vector)
        composition.output.reads(fb.Concat().reads(linear, vector))
    copy = composition.copy()
    assert copy.output_type == fb.TensorType([4])
    one, other = fb.compile(fb.AllOf(composition, copy))([[1, 2]])
    assert one[0, 2:].tolist() == other[0, 2:].tolist() == [1, 2]
    assert not torch.equal(one, other)


def test_pairs_of_pairs() -> None:
    check(fb.Record((pair(), pair())) >> fb.Record((fb.GetItem(0), fb.GetItem(1))), (((1, 2), (3, 4)), (1, 4)))
