"""Automatic cells are right whatever changes between two calls: each program here violates a guard in the middle of a batch."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import foldloom as fl
from foldloom.tracing import fast_path
from tests.never_wrong.checking import Program, check_program

pytestmark = pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts")


@pytest.fixture(autouse=True)
def _captured_at_once() -> Iterator[None]:
    before = fast_path.automatic.capture_from(0)
    yield
    fast_path.automatic.capture_from(before)


class Block(nn.Module):
    slope = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.scale = 1.0
        self.parts = nn.ModuleList([nn.Linear(3, 3, dtype=torch.float64) for _ in range(2)])
        self.activation: Any = torch.tanh

    @property
    def doubled(self) -> float:
        return self.scale * 2

    def helper(self, x: Tensor) -> Tensor:
        return self.activation(x) * self.doubled

    def forward(self, x: Tensor, shift: float = 0.5) -> Tensor:
        y = self.layer(x) * self.weight + shift
        for part in self.parts:
            y = self.helper(part(y)) * self.slope
        return y if not self.training else y * 3


GLOBAL = 1.5


def with_global(x: Tensor) -> Tensor:
    return (x * GLOBAL).tanh() + x


def double(x: Tensor) -> Tensor:
    return x * 2 + 1


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


def apply(x: Tensor, slotted: Slotted) -> Tensor:
    return torch.sigmoid(x * slotted.factor) + x


def programs() -> dict[str, Callable[[Block], Callable[[Tensor], Any]]]:
    made: dict[str, Callable[[Block], Callable[[Tensor], Any]]] = {}

    def program(make: Callable[[Block], Callable[[Tensor], Any]]) -> None:
        made[make.__name__] = make

    @program
    def nothing(block: Block) -> Any:
        return lambda x: block(block(x))

    @program
    def attribute(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.scale = 3.0
            z = block(y)
            block.scale = 1.0
            return z + y

        return run

    @program
    def float_of_another_sign(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            total = x
            for scale in (0.0, -0.0, 0, False):
                block.scale = scale
                total = total + 1 / block(x)
            block.scale = 1.0
            return total

        return run

    @program
    def class_attribute(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            Block.slope = 5.0
            z = block(y)
            Block.slope = 2.0
            return y + z

        return run

    @program
    def attribute_over_class(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.slope = 7.0
            z = block(y)
            del block.slope
            return y + z

        return run

    @program
    def method_replaced(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.helper = torch.relu  # type: ignore[method-assign, assignment]
            z = block(y)
            del block.helper
            return y + z

        return run

    @program
    def function_in_attribute(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.activation = torch.sin
            z = block(y)
            block.activation = torch.tanh
            return y + z

        return run

    @program
    def part_replaced(block: Block) -> Any:
        others = nn.Linear(3, 3, dtype=torch.float64)

        def run(x: Tensor) -> Tensor:
            y = block(x)
            before, block.parts[0] = block.parts[0], others
            z = block(y)
            block.parts[0] = before
            return y + z

        return run

    @program
    def part_added(block: Block) -> Any:
        other = nn.Linear(3, 3, dtype=torch.float64)

        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.parts.append(other)
            z = block(y)
            del block.parts[-1]
            return y + z

        return run

    @program
    def parameter_replaced(block: Block) -> Any:
        other = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def run(x: Tensor) -> Tensor:
            y = block(x)
            before, block.weight = block.weight, other
            z = block(y)
            block.weight = before
            return y + z

        return run

    @program
    def training_switched(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.train(not block.training)
            z = block(y)
            block.train(not block.training)
            return y + z

        return run

    @program
    def hook_added(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            hook = block.register_forward_hook(lambda module, args, output: output * 2)
            z = block(y)
            hook.remove()
            return y + z

        return run

    @program
    def hook_on_a_part(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            hook = block.layer.register_forward_hook(lambda module, args, output: output + 1)
            z = block(y)
            hook.remove()
            return y + z

        return run

    @program
    def forward_replaced(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            y = block(x)
            block.forward = torch.cos  # type: ignore[method-assign, assignment]
            z = block(y)
            del block.forward
            return y + z

        return run

    @program
    def global_rebound(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            global GLOBAL
            y = with_global(block(x))
            GLOBAL = 4.0
            z = with_global(y)
            GLOBAL = 1.5
            return y + z

        return run

    @program
    def function_patched(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            def calls_double(v: Tensor) -> Tensor:
                return double(v) + v

            y = calls_double(x)
            code, double.__code__ = double.__code__, (lambda x: x * 9 - 1).__code__
            z = calls_double(y)
            double.__code__ = code
            return y + z

        return run

    @program
    def torch_patched(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            def squashed(v: Tensor) -> Tensor:
                return torch.sigmoid(v) * v

            y = squashed(x)
            before, torch.sigmoid = torch.sigmoid, torch.cos
            z = squashed(y)
            torch.sigmoid = before
            return y + z

        return run

    @program
    def closure_rebound(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            factor = 2.0

            def scaled(v: Tensor) -> Tensor:
                return torch.tanh(v * factor) + v

            y = scaled(x)
            factor = 3.0
            return scaled(y) + y

        return run

    @program
    def defaults_changed(block: Block) -> Any:
        def run(x: Tensor) -> Tensor:
            def shifted(v: Tensor, by: float = 1.0, *, times: float = 2.0) -> Tensor:
                return (v + by).tanh() * times

            y = shifted(x)
            shifted.__defaults__ = (5.0,)
            z = shifted(y)
            shifted.__kwdefaults__ = {"times": 7.0}
            return y + z + shifted(z)

        return run

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
    def slots(block: Block) -> Any:
        one, other = Slotted(1.0), Slotted(3.0)

        def run(x: Tensor) -> Tensor:
            y = apply(x, one) + apply(x, other)
            one.factor = 8.0
            z = apply(y, one)
            one.factor = 1.0
            return z

        return run

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

    @program
    def array_changed(block: Block) -> Any:
        def run(x: Tensor) -> Any:
            factors = np.array([2.0, 3.0])

            def scaled(v: Tensor) -> Tensor:
                return torch.tanh(v) * float(factors[0]) + factors[1].item()

            y = scaled(x) + scaled(x * 2)
            factors[0] = 7.0
            return y + scaled(x)

        return run

    @program
    def operators_of_an_object(block: Block) -> Any:
        class Adding:
            amount = 1.0

            def __radd__(self, other: Any) -> Any:
                return other + self.amount

        def run(x: Tensor) -> Any:
            adding = Adding()

            def added(v: Tensor) -> Tensor:
                return torch.tanh(v) * 2 + adding

            y = added(x) + added(x * 2)
            adding.amount = 5.0
            return y + added(x)

        return run

    @program
    def called_by_torch(block: Block) -> Any:
        def run(x: Tensor) -> Any:
            factor = [2.0]

            def inner(v: Tensor) -> Tensor:
                return torch.tanh(v) * factor[0]

            def outer(v: Tensor) -> Tensor:
                return checkpoint(inner, v, use_reentrant=False) + torch.vmap(lambda u: u * factor[0])(v)

            y = outer(x) + outer(x * 2)
            factor[0] = 9.0
            return y + outer(x)

        return run

    @program
    def list_changed(block: Block) -> Any:
        def run(x: Tensor) -> Any:
            factors = [2.0, 3.0]

            def scaled(v: Tensor) -> Tensor:
                return torch.tanh(v) * factors[0] + factors[-1]

            y = scaled(x) + scaled(x * 2)
            factors[0] = 7.0
            z = scaled(x)
            factors.append(4.0)
            return y + z + scaled(x)

        return run

    @program
    def inherited(block: Block) -> Any:
        class Louder(Block):
            slope = 4.0

            def helper(self, x: Tensor) -> Tensor:
                return torch.sin(x) * self.doubled

        louder = Louder()
        louder.load_state_dict(block.state_dict())
        return lambda x: block(x) + louder(x) + block(x * 2) + louder(x * 2)

    return made


PROGRAMS = programs()


@pytest.mark.parametrize("name", PROGRAMS)
def test_guards(name: str) -> None:
    def build() -> Program:
        block = Block()
        inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
        return Program(PROGRAMS[name](block), [inputs], [*block.parameters(), *inputs])

    check_program(build)


def test_deep_recursion() -> None:
    """The hook takes stack of C's for each call, and steps aside before it is used up."""

    def deep(x: Tensor, depth: int) -> Tensor:
        return x if depth == 0 else deep(x, depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    try:
        (result,) = fl.batch(lambda x: deep(x, 50_000) * 2)([torch.ones(2)])
    finally:
        sys.setrecursionlimit(limit)
    assert result.tolist() == [2.0, 2.0]


def test_another_thread_runs_as_ever() -> None:
    """The hook is one of the whole process; what other threads call, it leaves alone."""
    calls: list[int] = []

    def squashed(x: Tensor) -> Tensor:
        return torch.tanh(x * 2) + 1

    def count() -> None:
        for number in range(2000):
            calls.append(len(squashed(torch.ones(2))) + number)

    thread = threading.Thread(target=count)
    thread.start()
    while thread.is_alive():
        results = fl.batch(lambda x: squashed(squashed(x)))([torch.zeros(2)] * 4)
        assert torch.equal(results[0], squashed(squashed(torch.zeros(2))))
    assert len(calls) == 2000


def test_a_debugger_sees_every_call() -> None:
    seen: list[str] = []

    def squashed(x: Tensor) -> Tensor:
        return torch.tanh(x * 2) + 1

    def program(x: Tensor) -> Tensor:
        return squashed(squashed(x))

    fl.batch(program)([torch.ones(2)] * 4)

    def trace(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.append(frame.f_code.co_name)

    sys.settrace(trace)
    try:
        fl.batch(program)([torch.ones(2)] * 4)
    finally:
        sys.settrace(None)
    assert seen.count("squashed") == 8


def test_inputs_of_a_capture_that_fails() -> None:
    """They are taken back with its nodes, and what the batch has recorded before is still run."""
    lstm = torch.nn.LSTM(3, 3)
    weight = torch.nn.Parameter(torch.randn(3, 3))

    def run(rows: int) -> Any:
        return lstm(weight[:rows])[0]

    with pytest.raises(RuntimeError, match="sequence length"):
        fl.batch(run)([0, 2])
    assert [len(found) for found in fl.batch(run)([1, 2])] == [1, 2]
