"""Every case three ways: one by one, in a batch of its own, and in a batch with all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import foldloom as fl
from foldloom import blocks as fb
from tests.law import check_law


def check(block: Any, *cases: tuple[Any, Any], depths: Sequence[int] | None = None) -> None:
    """Each case is an example and what the block gives of it, in numbers, tuples and lists."""
    block = fb.convert_to_block(block)
    model = fb.compile(block)
    examples = [example for example, _ in cases]
    together = model(examples)
    for number, (example, expected) in enumerate(cases):
        agree(block.eval(example), expected)
        agree(model.one_example(example), expected)
        agree(part_of(model([example]), block.output_type, 0), expected)
        agree(part_of(model([model.record(example)]), block.output_type, 0), expected)
        agree(part_of(together, block.output_type, number), expected)
    if depths is not None:
        assert [block.max_depth(example) for example in examples] == list(depths)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    check_law(
        fb.compile(block).double().one_example, examples, sources=[p for p in parameters if p.dtype.is_floating_point]
    )
    model.float()


def part_of(result: Any, type: fb.Block | Any, number: int) -> Any:
    """One example's part of a stacked result, in the structure in which it would come alone."""
    if isinstance(type, fb.TensorType):
        return result[number]
    if isinstance(type, fb.TupleType):
        return tuple(part_of(item, inner, number) for item, inner in zip(result, type.items, strict=True))
    if isinstance(type, fb.SequenceType):
        if isinstance(type.element, fb.TupleType):
            columns = [
                part_of(ragged, fb.SequenceType(inner), number)
                for ragged, inner in zip(result, type.element.items, strict=True)
            ]
            return list(zip(*columns, strict=True))
        assert isinstance(result, fl.Ragged)
        return list(list(result)[number])
    assert isinstance(type, fb.VoidType)
    assert result is None
    return None


def agree(actual: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        if isinstance(actual, torch.Tensor):
            torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=1e-5, atol=1e-5)
            return
        assert type(actual) is type(expected)
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            agree(one, other)
    elif expected is None:
        assert actual is None
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    else:
        assert isinstance(actual, torch.Tensor)
        assert actual.shape == ()
        assert abs(actual.item() - expected) < 1e-5


def scalars() -> fb.Block:
    """A list of numbers as a sequence of tensors."""
    return fb.Map(fb.Scalar())


def pair() -> fb.Block:
    return fb.Record((fb.Scalar(), fb.Scalar()))
