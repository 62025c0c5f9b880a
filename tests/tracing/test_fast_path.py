"""Calls of known signatures are recorded in C: the same as Python would, without it, and nothing is kept that should not be."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foldloom as fl
from foldloom.errors import ArgumentError
from foldloom.graph import Type
from foldloom.tracing import fast_path
from foldloom.tracing.values.lazy_tensor import LazyTensor

ROOT = Path(__file__).parents[2]
compiled = pytest.mark.skipif(
    not fast_path.is_compiled,
    reason="C is off (FOLDLOOM_NO_C=1), or there was no compiler where Foldloom was installed",
)


class Program(nn.Module):
    """Cells, modules, functions, operators, methods, settings of all kinds, views, numbers, lists of values."""

    def __init__(self) -> None:
        super().__init__()
        self.merge = fl.cell(nn.Bilinear(4, 4, 4))
        self.embed = nn.Embedding(10, 4)
        self.mix = nn.Linear(4, 8)
        self.step = nn.LSTMCell(4, 4)
        self.nested = fl.cell(nn.LSTMCell(4, 4))
        self.over = nn.LSTM(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, word: int) -> Tensor:
        x = self.embed(torch.tensor(word))
        a, b = self.mix(x).chunk(2, dim=-1)
        h, c = self.step(a, (torch.sigmoid(b), b * 0.5))
        h, c = self.nested(x, (h, c))
        y = self.merge(h, c) @ self.weight + (1 - x)
        states, (last, _) = self.over(torch.stack([x, h, c] * word))
        y = y + torch.tanh(states).sum(0) + last.flatten()
        y = torch.cat((y, x), dim=-1).clamp(min=0.0, max=3.0).view(2, 4).mean(0)
        return nn.functional.cross_entropy(y, torch.tensor(word % 4)) + nn.functional.softplus(y, beta=2).sum()


@pytest.fixture
def program() -> Program:
    torch.manual_seed(0)
    return Program().double()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
@pytest.mark.skipif(os.environ.get("FOLDLOOM_NO_C") == "1", reason="FOLDLOOM_NO_C=1 switches C off")
def test_it_is_compiled_where_it_can_be() -> None:
    assert fast_path.is_compiled


def python_calls(function: Callable[[], Any]) -> list[str]:
    """The methods of the recorder that run as Python."""
    names: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.endswith(("recorder.py", "first_calls.py", "signatures.py")):
            names.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


@compiled
def test_known_calls_run_no_python(program: Program) -> None:
    def record(words: list[int]) -> None:
        fl.batch(program)(words)

    record([1, 2])  # what torch finds out once
    one, many = (python_calls(lambda words=words: record(words)) for words in ([1], [1, 2, 3, 4, 5]))  # type: ignore[misc]
    # What is left for each example: nothing.
    assert {name for name in many if many.count(name) > one.count(name)} <= {"<listcomp>"}


def test_batched_is_one_by_one(program: Program) -> None:
    words = [1, 2, 3, 2]
    losses = fl.batch(program, stack=True)(words)
    torch.testing.assert_close(losses, torch.stack([program(word) for word in words]))


@compiled
def test_settings_that_are_equal_and_differ() -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        added = [x + 1, x + True, x + 1.0, torch.add(x, 1), torch.add(x, 1.0), torch.add(x, x, alpha=1)]
        signs = [torch.copysign(x, zero) for zero in (0.0, -0.0)]
        named = [torch.nn.functional.softplus(x.double(), beta=beta) for beta in (1, 1.0, 2)]
        return *added, *signs, *named, x.float().sum(0, True), x.float().sum(0, False)

    given = [torch.tensor([1, 2]), torch.tensor([3, 0]), torch.tensor([5, 6])]
    for result, x in zip(fl.batch(program)(given), given, strict=True):
        for found, expected in zip(result, program(x), strict=True):
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
        assert [float(1 / sign[1]) for sign in result[6:8]] == [float(1 / sign[1]) for sign in program(x)[6:8]]


@compiled
def test_weights_of_the_same_shape_are_told_apart() -> None:
    weights = [nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
    given = [torch.randn(3) for _ in range(3)]

    def program(x: Tensor) -> Tensor:
        return torch.mv(weights[0], x) - torch.mv(weights[1], x)

    for result, x in zip(fl.batch(program)(given), given, strict=True):
        torch.testing.assert_close(result, program(x))


@compiled
def test_a_module_that_is_lent_other_weights_is_seen_to_be(program: Program) -> None:
    lent = {"weight": torch.zeros(8, 4, dtype=torch.double), "bias": torch.ones(8, dtype=torch.double)}

    def run(x: Tensor) -> Tensor:
        own, other = program.mix(x), torch.func.functional_call(program.mix, lent, (x,))
        return program.mix(own[:4]) + other

    given = [torch.randn(4, dtype=torch.double) for _ in range(3)]
    for result, x in zip(fl.batch(run)(given), given, strict=True):
        torch.testing.assert_close(result, run(x))


def test_a_hook_on_a_part_of_a_module_that_was_called_before() -> None:
    both = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def program(x: Tensor) -> Tensor:
        before = both(x * 1)
        hook = both[0].register_forward_hook(lambda *_: torch.full((2,), 0.5))
        hooked = both(x * 1)
        hook.remove()
        return before + hooked + both(x * 1)

    given = [torch.randn(2) for _ in range(3)]
    torch.testing.assert_close(fl.batch(program)(given), [program(x) for x in given])


def test_views_that_come_in_a_list() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        for _ in range(3):
            first, _ = torch.ops.aten.split(y, 1)
            first += 1
        return y

    given = [torch.tensor([1.0, 2.0]), torch.tensor([5.0, 6.0])]
    torch.testing.assert_close(fl.batch(program)(given), [program(x) for x in given])


def test_a_stack_in_another_mode_is_refused_as_any_call_is() -> None:
    def program(rows: Tensor) -> Tensor:
        doubled = [row * 2 for row in rows]
        torch.stack(doubled)
        with torch.enable_grad():
            return torch.stack(doubled)

    with torch.no_grad(), pytest.raises(ArgumentError, match="gradients are enabled inside a batch"):
        fl.batch(program)([torch.ones(2, 3)])


def test_how_a_stack_lies_in_memory() -> None:
    def program(rows: Tensor) -> Any:
        stack = torch.stack([row * 2 for row in rows])
        return stack.contiguous(), stack.stride(), stack.is_contiguous()

    ((found, *facts),) = fl.batch(program)([torch.ones(2, 3)])
    assert found.shape == (2, 3)
    assert facts == [(3, 1), True]


def test_a_list_that_holds_itself() -> None:
    cell = fl.cell(lambda x, _: x)

    def program(x: Tensor) -> Any:
        endless: list[Any] = []
        endless.append(endless)
        return cell(cell(x, [x]), endless)

    with pytest.raises(RecursionError):
        fl.batch(program)([torch.ones(2)])


def test_a_handle_that_was_taken_apart() -> None:
    def program(x: Tensor) -> Tensor:
        y, z = x * 1, x * 1
        z = y + z
        del y._value  # type: ignore[attr-defined]
        return y + z

    with pytest.raises(AttributeError, match="_value"):
        fl.batch(program)([torch.ones(2)])


def test_operators_take_nothing_by_name() -> None:
    def program(x: Tensor) -> Any:
        y = 1 + (x * 1)
        return y.__radd__(1, nonsense=3)  # type: ignore[call-arg]

    with pytest.raises(TypeError, match="nonsense"):
        fl.batch(program)([torch.ones(2)])


@compiled
def test_nothing_is_kept(program: Program) -> None:
    def handles() -> int:
        gc.collect()
        return sum(type(item) is LazyTensor for item in gc.get_objects())

    words = [1, 2, 3, 4] * 8
    fl.batch(program)(words)
    kept = [
        Type((4,), "float64"),
        Type((), "int64"),
        program.mix,
        program.merge,
        program.weight,
        torch.sigmoid,
        True,
        0.5,
    ]
    before, counts = handles(), [sys.getrefcount(item) for item in kept]
    for _ in range(3):
        fl.batch(program)(words)
    assert handles() == before
    after = [sys.getrefcount(item) for item in kept]
    assert max(abs(a - b) for a, b in zip(after, counts, strict=True)) < len(words)


def test_without_the_compiled_part_everything_comes_to_the_same() -> None:
    """A process with FOLDLOOM_NO_C=1 records and plans in Python alone."""
    script = """
import torch, foldloom as fl
from foldloom.planning import native
from foldloom.tracing import fast_path
from tests.tracing.test_fast_path import Program
assert not fast_path.is_compiled and native.planning is None
torch.manual_seed(0)
program = Program().double()
words = [1, 2, 3, 2]
losses = fl.batch(program, stack=True)(words)
losses.sum().backward()
grads = [weight.grad.clone() for weight in program.parameters()]
program.zero_grad()
alone = torch.stack([program(word) for word in words])
alone.sum().backward()
torch.testing.assert_close(losses, alone)
torch.testing.assert_close(grads, [weight.grad for weight in program.parameters()])
print("the same")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "FOLDLOOM_NO_C": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "the same", done.stderr
