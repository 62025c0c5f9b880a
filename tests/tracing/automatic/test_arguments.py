"""Automatic cells are right whatever they are given, return and are used for: types, containers, views, gradients, numbers, errors."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foldloom.tracing import fast_path
from tests.tracing.automatic.guards import Block, Make, check_guards

pytestmark = [
    pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts"),
    pytest.mark.usefixtures("captured_at_once"),
]


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def programs() -> dict[str, Make]:
    made: dict[str, Make] = {}

    def program(make: Make) -> None:
        made[make.__name__] = make

    @program
    def settings_of_calls(block: Block) -> Any:
        def power(v: Tensor, exponent: float, flag: bool | None = None) -> Tensor:
            y = v.abs() ** exponent + v
            return y if flag is None else y * 2 if flag else y * 3

        return lambda x: power(x, 1) + power(x, 1.0) + power(x, True) + power(x, 2, True) + power(x, 2, False)

    @program
    def one_value_twice(block: Block) -> Any:
        def mixed(a: Tensor, b: Tensor) -> Tensor:
            return torch.tanh(a) * 2 + b

        return lambda x: mixed(x, x) + mixed(x, x * 2) + mixed(x * 3, x)

    @program
    def lists_of_many_lengths(block: Block) -> Any:
        def total(values: list[Tensor], weights: tuple[float, ...]) -> Tensor:
            result = values[0].tanh()
            for value, weight in zip(values, weights, strict=False):
                result = result + value * weight
            return result * len(values)

        return lambda x: (
            total([x], (1.0,)) + total([x, x * 2], (2.0, 3.0)) + total([x, x], (2.0, 3.0)) + total([x], (4.0,))
        )

    @program
    def returns_what_it_was_given(block: Block) -> Any:
        def both(v: Tensor, pair: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
            return v, v.tanh() * 2, pair

        def run(x: Tensor) -> Any:
            pair = [x, x * 2]
            for _ in range(2):
                v, squashed, same = both(x, pair)
                assert v is x
                assert same is pair
            return squashed

        return run

    @program
    def returns_containers(block: Block) -> Any:
        def split(v: Tensor) -> dict[str, Any]:
            y = torch.tanh(v) + 1
            return {"pair": Pair(y, y * 2), "list": [y, 3, None], "y": y}

        def run(x: Tensor) -> Any:
            first, second = split(x), split(x * 2)
            first["list"].append(4)
            return first, second, split(x), type(second["pair"]).__name__

        return run

    @program
    def changed_in_place_afterwards(block: Block) -> Any:
        def halves(v: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.tanh(v) * 2
            return y[:2], v * 3

        def run(x: Tensor) -> Any:
            total = x * 0
            for scale in (1.0, 2.0):
                a, b = halves(x * scale)
                a = a.clone()
                a[0] = 7.0
                b += 1
                total = total + b + a.sum()
            return total

        return run

    @program
    def argument_changed_in_place(block: Block) -> Any:
        def grow(v: Tensor) -> Tensor:
            v += 1
            return v * 2

        def run(x: Tensor) -> Any:
            y = x * 1
            grow(y)
            grow(y)
            return y

        return run

    @program
    def view_of_an_argument(block: Block) -> Any:
        def front(v: Tensor) -> Tensor:
            torch.tanh(v) + 1
            return v[:2]

        def run(x: Tensor) -> Any:
            y = x * 1
            a = front(y)
            b = front(y)
            a += 1
            return y, b

        return run

    @program
    def constants(block: Block) -> Any:
        def with_zeros(v: Tensor, state: Tensor | None = None) -> Tensor:
            if state is None:
                state = torch.zeros(3, dtype=torch.float64)
            return torch.tanh(state + v) + torch.ones(3, dtype=torch.float64) * torch.tensor(0.5)

        def run(x: Tensor) -> Any:
            state = torch.zeros(3, dtype=torch.float64)
            return (
                with_zeros(x) + with_zeros(x, state) + with_zeros(x * 2, x) + with_zeros(x, state + 1) + with_zeros(x)
            )

        return run

    @program
    def derived_weights(block: Block) -> Any:
        def project(v: Tensor) -> Tensor:
            return torch.tanh(v @ block.layer.weight.t()) + block.weight.softmax(0)

        return lambda x: project(project(x)) + project(x * 2)

    @program
    def numbers(block: Block) -> Any:
        table = nn.Embedding(5, 3, dtype=torch.float64)

        def look_up(number: int, v: Tensor) -> Tensor:
            return table(torch.tensor(number)) * v + 1

        def run(x: Tensor) -> Any:
            total = x
            for number in range(5):
                total = total + look_up(number, x)
            return total

        return run

    @program
    def branch_on_a_value(block: Block) -> Any:
        def chosen(v: Tensor) -> Tensor:
            return v * 2 + 1 if v.sum() > 0 else v * 3 - 1

        return lambda x: chosen(x) + chosen(-x)

    @program
    def partly_used(block: Block) -> Any:
        def roots(v: Tensor) -> tuple[Tensor, Tensor]:
            return (v * 0).sqrt() + v, v.tanh() * 2

        def run(x: Tensor) -> Any:
            _, b = roots(x)
            c, _ = roots(x * 2)
            return b, c if x[0] > 0 else b

        return run

    @program
    def unused(block: Block) -> Any:
        def root(v: Tensor) -> Tensor:
            (v * 0).sqrt()
            return block.layer(v).tanh()

        def run(x: Tensor) -> Any:
            root(x * 5)
            return root(x)

        return run

    @program
    def not_a_number(block: Block) -> Any:
        def inverse(v: Tensor) -> Tensor:
            return block.layer(1 / v).tanh()

        def run(x: Tensor) -> Any:
            inverse(x * 0)
            return inverse(x)

        return run

    @program
    def detached(block: Block) -> Any:
        def cut(v: Tensor) -> tuple[Tensor, Tensor]:
            y = block.layer(v).tanh()
            return y.detach() * 2, y.argmax()

        return lambda x: (*cut(x), *cut(x * 2))

    @program
    def without_gradients(block: Block) -> Any:
        def layered(v: Tensor) -> Tensor:
            return block.layer(v).tanh() * block.weight

        def run(x: Tensor) -> Any:
            y = layered(x)
            with torch.no_grad():
                z = layered(x)
            return y, z, layered(z)

        return run

    @program
    def another_dtype(block: Block) -> Any:
        def squashed(v: Tensor) -> Tensor:
            return torch.tanh(v * 2) + 1

        return lambda x: (squashed(x), squashed(x.float()), squashed(x[:2]), squashed(x))

    @program
    def frozen_weights(block: Block) -> Any:
        def layered(v: Tensor) -> Tensor:
            return F.linear(v, block.layer.weight).tanh() * 2

        def run(x: Tensor) -> Any:
            y = layered(x)
            return y, layered(x.detach())

        return run

    @program
    def errors_that_are_caught(block: Block) -> Any:
        table = nn.Embedding(3, 3, dtype=torch.float64)

        def look_up(number: int, v: Tensor) -> Tensor:
            return table(torch.tensor(number)) * v + 1

        def run(x: Tensor) -> Any:
            total = look_up(0, x)
            for number in (1, 7, 2):
                try:
                    total = total + look_up(number, x)
                except IndexError:
                    total = total * 2
            return total

        return run

    @program
    def comprehensions(block: Block) -> Any:
        def mixed(values: list[Tensor], count: int) -> Tensor:
            shifted = [value + number for number, value in enumerate(values)]
            squashed = sum([value.tanh() for value in shifted for _ in range(count)])
            apply_twice = lambda v: v * 2 + count  # noqa: E731
            return apply_twice(squashed)

        return lambda x: mixed([x, x * 2], 1) + mixed([x], 2) + mixed([x, x, x], 1) + mixed([x * 2, x], 1)

    return made


PROGRAMS = programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments_and_results(name: str) -> None:
    check_guards(PROGRAMS[name])
