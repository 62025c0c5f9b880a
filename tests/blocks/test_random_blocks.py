"""The law on random blocks over random nested lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from foldloom import blocks as fb
from foldloom.models import feed_forward_attention
from foldloom.models.hierarchical import last_state
from tests.law import assert_same, check_law

SIZE = 2


def merge() -> fb.Block:
    return fb.Concat() >> nn.Linear(2 * SIZE, SIZE) >> torch.tanh


def weighted() -> fb.Block:
    """Each element scaled by the mean of all."""
    return fb.AllOf(fb.Identity(), fb.Mean() >> fb.Broadcast()) >> fb.ZipWith(fb.Function(torch.mul)) >> fb.Sum()


def neighbours() -> fb.Block:
    return fb.NGrams(2) >> fb.Map(merge()) >> fb.Max()


ENDS: tuple[Callable[[], Any], ...] = (
    fb.Sum,
    fb.Min,
    fb.Mean,
    weighted,
    neighbours,
    lambda: fb.Reduce(merge()),
    lambda: fb.Fold(merge(), fb.Zeros(SIZE)),
    lambda: fb.Slice(step=-1) >> fb.Fold(merge(), fb.FromTensor(nn.Parameter(torch.ones(SIZE)))),
    lambda: last_state(SIZE, SIZE),
    lambda: feed_forward_attention(SIZE, hidden=3),
    lambda: fb.AllOf(fb.Sum(), fb.Max()) >> fb.Record((nn.Linear(SIZE, SIZE), fb.Identity())) >> fb.Function(torch.add),
)
"""From a sequence of vectors to one."""

LEAVES: tuple[Callable[[], Any], ...] = (
    lambda: fb.Scalar("int64") >> nn.Embedding(5, SIZE),
    lambda: fb.OneHot(5) >> nn.Linear(5, SIZE),
    lambda: fb.OneOf(lambda x: x % 2, [fb.OneHot(5) >> fb.FC(SIZE), fb.Scalar("int64") >> nn.Embedding(5, SIZE)]),
)
"""From a number below five to a vector."""


def block_of(leaf: int, ends: list[int]) -> fb.Block:
    """From lists nested as deep as there are ends to a vector."""
    block: Any = LEAVES[leaf]()
    for end in ends:
        block = fb.Optional(fb.Map(block) >> ENDS[end]())
    return fb.convert_to_block(block)


def nested_lists(depth: int) -> st.SearchStrategy[Any]:
    numbers: st.SearchStrategy[Any] = st.integers(0, 4)
    for _ in range(depth):
        numbers = st.one_of(st.none(), st.lists(numbers, max_size=4))
    return numbers


@st.composite
def programs(draw: st.DrawFn) -> tuple[fb.Block, list[Any]]:
    ends = draw(st.lists(st.integers(0, len(ENDS) - 1), max_size=3))
    block = block_of(draw(st.integers(0, len(LEAVES) - 1)), ends)
    return block, draw(st.lists(nested_lists(len(ends)), min_size=1, max_size=4))


@settings(max_examples=settings().max_examples // 2)
@given(programs())
def test_law_on_random_blocks(program: tuple[fb.Block, list[Any]]) -> None:
    block, examples = program
    model = fb.compile(block).double()
    check_law(model.one_example, examples, sources=list(model.parameters()))
    expected = torch.stack([model.one_example(example) for example in examples])
    assert_same(model(examples), expected)
    assert_same(model(model.plan(examples)), expected)
