"""Of several examples that raise, the first one's error comes out, as from a loop; and those before it are run to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl


def waits_and_raises(x: torch.Tensor, n: int) -> Any:
    if n == 2:
        raise KeyError("at once")
    if x.sum() > -100:  # waits
        raise ValueError(f"example {n}")
    return x


def waits_twice_and_raises(x: torch.Tensor, n: int) -> Any:
    if n == 1 and x.sum() > -100:
        raise KeyError("after one value")
    if x.sum() > -100 and (x * 2).exp().sum() > 0:
        raise ValueError(f"example {n}")
    return x


def catches_and_raises(x: torch.Tensor, n: int) -> Any:
    found: Any
    try:
        found = 1 / (2 - n) + (x * 2).log()[n]
    except IndexError:
        return x
    return found["name"]


def in_a_batch_within(x: torch.Tensor, n: int) -> Any:
    def inner(y: torch.Tensor, k: int) -> Any:
        if k == 1:
            raise KeyError("inner")
        if y.sum() > -100:
            raise ValueError("inner, but earlier")
        return y

    try:
        return fl.batch(inner)([x, x], [0, 1]) if n else x
    except ValueError:
        return x * n


def error_of(run: Callable[[], Any]) -> BaseException | None:
    try:
        run()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("function", [waits_and_raises, waits_twice_and_raises, catches_and_raises])
def test_the_error_is_that_of_the_first_example(function: Callable[..., Any]) -> None:
    columns = [torch.randn(3).double() for _ in range(3)], range(3)
    alone = error_of(lambda: [function(*args) for args in zip(*columns, strict=True)])
    batched = error_of(lambda: fl.batch(function)(*columns))
    assert alone is not None
    assert (type(batched), str(batched)) == (type(alone), str(alone))


def test_the_error_of_an_inner_batch_is_that_of_its_first_example() -> None:
    columns = [torch.randn(3).double() for _ in range(3)], range(3)
    for found, x, n in zip(fl.batch(in_a_batch_within)(*columns), *columns, strict=True):
        assert torch.equal(found, x * n if n else x)


def test_examples_before_the_one_that_raises_are_run_to_their_end() -> None:
    net: Any = nn.Module()
    net.count = 0
    ended: list[int] = []

    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        if n == 2:
            raise KeyError("at once")
        try:
            if x.sum() > -100:
                net.count += 1
            return x
        finally:
            ended.append(n)

    with pytest.raises(KeyError):
        fl.batch(function)([torch.ones(3)] * 4, range(4))
    assert (net.count, ended) == (2, [0, 1])


def test_an_interrupt_does_not_wait_for_those_before_it() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        if n == 1:
            raise KeyboardInterrupt
        if x.sum() > -100:
            raise ValueError("too late")
        return x

    with pytest.raises(KeyboardInterrupt):
        fl.batch(function)([torch.ones(3)] * 3, range(3))
