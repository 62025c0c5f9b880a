"""The mistakes one makes most: each has a message of its own, which says where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from foldloom import blocks as fb


def composed(wire: Callable[[fb.Composition], Any]) -> fb.Block:
    composition = fb.Composition()
    with composition.scope():
        wire(composition)
    return composition


def circle(composition: fb.Composition) -> None:
    one, other = fb.Function(torch.neg), fb.Function(torch.exp)
    one.reads(other)
    other.reads(one)


def endless() -> None:
    declaration = fb.ForwardDeclaration()
    declaration.resolve_to(fb.GetItem(0) >> declaration())


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a wrong shape": (
        lambda: fb.Vector(2) >> nn.Linear(3, 1),
        fb.BlockTypeError,
        r"Linear.* cannot take TensorType\(\[2\], 'float32'\)",
    ),
    "two types that differ": (
        lambda: fb.Vector(2) >> fb.Identity().set_input_type(3),
        fb.BlockTypeError,
        r"Vector\(2\) gives TensorType\(\[2\], 'float32'\), but Identity\(\) takes TensorType\(\[3\], 'float32'\)",
    ),
    "an object where tensors are wanted": (
        lambda: fb.GetItem("x") >> nn.Linear(3, 1),
        fb.BlockTypeError,
        r"not PyObjectType\(\). Python objects become tensors through",
    ),
    "a wrong shape in the data": (
        lambda: fb.compile(fb.Vector(2))([[1, 2, 3]]),
        fb.BlockInputError,
        r"of shape \[3\]; it takes shape \[2\]",
    ),
    "a wrong key": (
        lambda: fb.compile(fb.OneOf(len, {1: fb.Length()}))([[1, 2]]),
        fb.MissingKeyError,
        r"has no case for the key 2; it has 1",
    ),
    "a missing field": (
        lambda: fb.compile(fb.Record({"x": fb.Scalar()}))([{"y": 1}]),
        fb.MissingKeyError,
        r"a record of the example has no field 'x' \(it has 'y'\)",
    ),
    "an unresolved declaration": (
        lambda: fb.compile(fb.ForwardDeclaration(fb.PyObjectType(), 2)()),
        fb.WiringError,
        r"was never resolved: write `declaration.resolve_to\(block\)`",
    ),
    "an unused output": (
        lambda: composed(lambda c: fb.Scalar().reads(c.input)),
        fb.WiringError,
        r"nobody reads Scalar\(\), which gives TensorType",
    ),
    "a circle": (lambda: composed(circle), fb.WiringError, r"would read itself, directly or through other blocks"),
    "a recursion without end": (endless, fb.WiringError, r"needs itself whatever the input is: it would never end"),
    "an empty dispatch": (lambda: fb.OneOf(len, []), fb.WiringError, r"fb.OneOf has no cases to choose from"),
    "two types under one metric name": (
        lambda: fb.compile(fb.AllOf(fb.Scalar() >> fb.Metric("m"), fb.Vector(1) >> fb.Metric("m"))),
        fb.BlockTypeError,
        r"metric 'm' collects TensorType\(.*\) in one place and TensorType\(.*\) in another",
    ),
    "an endless sequence at the root": (
        lambda: fb.compile(fb.Scalar() >> fb.Broadcast()),
        fb.BlockTypeError,
        r"has an endless sequence in it. End it with",
    ),
    "an endless sequence summed": (
        lambda: fb.Scalar() >> fb.Broadcast() >> fb.Sum(),
        fb.BlockTypeError,
        r"would never end on BroadcastSequenceType",
    ),
    "objects at the root": (lambda: fb.compile(fb.GetItem("x")), fb.BlockTypeError, r"has Python objects in it"),
    "nothing at the root": (lambda: fb.compile(fb.Void()), fb.BlockTypeError, r"gives nothing and has no fb.Metric"),
    "reading outside a scope": (
        lambda: fb.Scalar().reads(fb.Identity()),
        fb.WiringError,
        r"reads other blocks, which only a composition allows",
    ),
    "no block at all": (lambda: fb.Scalar() >> "x", fb.BlockTypeError, r"'x' \(str\) is not a block"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_apart(mistake: str) -> None:
    make, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "test_mistakes.py:" in str(caught.value)
    others = [other for name, (_, _, other) in MISTAKES.items() if name != mistake]
    for other in others:
        with pytest.raises(AssertionError):
            caught.match(other)
