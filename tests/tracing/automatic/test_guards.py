"""Automatic cells are right whatever changes between two calls: each program here violates a guard in the middle of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foldloom.tracing import fast_path
from tests.tracing.automatic.guards import Block, Make, check_guards

pytestmark = [
    pytest.mark.skipif(not fast_path.is_compiled, reason="automatic cells need the compiled parts"),
    pytest.mark.usefixtures("captured_at_once"),
]

GLOBAL = 1.5


def with_global(x: Tensor) -> Tensor:
    return (x * GLOBAL).tanh() + x


def double(x: Tensor) -> Tensor:
    return x * 2 + 1


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor


def apply(x: Tensor, slotted: Slotted) -> Tensor:
    return torch.sigmoid(x * slotted.factor) + x


def programs() -> dict[str, Make]:
    made: dict[str, Make] = {}

    def program(make: Make) -> None:
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
    check_guards(PROGRAMS[name])
