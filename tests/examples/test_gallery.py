"""The programs of ``examples.gallery``: batched they give what they give alone, and so do those that are written for a batch by hand."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import foldloom as fl
from benchmarks.gallery import samplers
from benchmarks.gallery.command import HAND_WRITTEN, taken
from benchmarks.on_the_fly import KernelCount
from examples.gallery.common import demonstrate
from examples.gallery.programs import GALLERY, Program
from tests.law import assert_same

every_program = pytest.mark.parametrize("name", GALLERY)


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def made(name: str, count: int = 7) -> tuple[Program, Callable[..., Any], Sequence[Any]]:
    torch.manual_seed(0)
    program = GALLERY[name]
    return program, program.make(), program.made_examples(count, 3)


def results_and_gradients(
    program: Program, function: Callable[..., Any], examples: Sequence[Any], run: Callable[[], list[Any]]
) -> tuple[list[Any], list[Tensor | None]]:
    learned = program.learned(function, examples)
    results = taken(program, examples, run, learned)
    return results, [tensor.grad for tensor in learned]


@every_program
@pytest.mark.parametrize("automatic_cells", [True, False])
@pytest.mark.parametrize("scheduler", [fl.ByAgenda(), fl.ByDepth()])
def test_law(name: str, scheduler: fl.Scheduler, automatic_cells: bool) -> None:
    program, function, examples = made(name)
    expected = results_and_gradients(program, function, examples, lambda: fl.one_by_one(function)(examples))
    batched = fl.batch(function, scheduler=scheduler, automatic_cells=automatic_cells)
    for _ in range(2):
        actual = results_and_gradients(program, function, examples, lambda: batched._together([(e,) for e in examples]))
        assert_same(actual, expected)
        assert without_tensors(actual) == without_tensors(expected)


def without_tensors(value: Any) -> Any:
    """What else there is in a result."""
    if isinstance(value, Tensor):
        return value.dtype
    return [without_tensors(item) for item in value] if isinstance(value, (list, tuple)) else value


class DrawsOfEach(samplers.Draws):
    """The numbers that each example draws when it runs alone."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__(seeds)
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def _drawn(self, active: Tensor, draw: Callable[[int, torch.Generator], Tensor]) -> Tensor:
        drawn = {n: draw(n, self.generators[n]) for n in active.nonzero().flatten().tolist()}
        nothing = torch.ones_like(next(iter(drawn.values())))
        return torch.stack([drawn.get(number, nothing) for number in range(self.count)])

    def uniform(self, active: Tensor) -> Tensor:
        return (
            self._drawn(active, lambda _, random: torch.rand((), generator=random)) if active.any() else active.double()
        )

    def normal(self, active: Tensor, size: int) -> Tensor:
        return self._drawn(active, lambda _, random: torch.randn(size, generator=random))

    def choices(self, active: Tensor, probabilities: Tensor) -> Tensor:
        return self._drawn(active, lambda n, random: torch.multinomial(probabilities[n], 1, generator=random)[0])


@every_program
def test_by_hand_it_is_the_same(name: str) -> None:
    """What speeds are compared with computes the same."""
    program, function, examples = made(name)
    by_hand = HAND_WRITTEN[name]
    draws = {"draws": DrawsOfEach} if "draws" in inspect.signature(by_hand).parameters else {}
    expected = results_and_gradients(program, function, examples, lambda: fl.one_by_one(function)(examples))
    actual = results_and_gradients(program, function, examples, lambda: by_hand(function, examples, **draws))
    assert_same(actual, expected)
    assert without_tensors(actual) == without_tensors(expected)


@every_program
def test_draws_for_all_at_once_will_do(name: str) -> None:
    program, function, examples = made(name, 5)
    assert len(taken(program, examples, lambda: HAND_WRITTEN[name](function, examples), [])) == 5


@every_program
def test_makes_the_same_examples_again(name: str) -> None:
    examples = GALLERY[name].made_examples
    assert len(examples(5, 1)) == 5
    assert len({str(examples(5, 2)[0]) for _ in range(2)}) == 1 or name == "bug detector"


@pytest.mark.parametrize(
    "name", [name for name in GALLERY if name != "symbolic regression"]
)  # few functions, many shapes
def test_runs_in_fewer_kernels(name: str) -> None:
    _, function, examples = made(name, 24)
    counts = []
    with torch.no_grad():
        batched = fl.batch(function)
        batched(examples)
        for run in (batched, fl.one_by_one(function)):
            with KernelCount() as kernels:
                run(examples)
            counts.append(kernels.count)
    assert counts[0] < counts[1] * 0.6


@every_program
def test_is_short(name: str) -> None:
    """A program is at most sixty lines, what makes its examples aside."""
    module = inspect.getmodule(GALLERY[name].made_examples)
    assert isinstance(module, ModuleType)
    assert lines_of_code(module) <= 60


def lines_of_code(module: ModuleType) -> int:
    count = 0
    for part in ast.parse(inspect.getsource(module)).body:
        is_made = isinstance(part, ast.FunctionDef) and part.name.startswith("made_")
        if is_made or isinstance(part, (ast.If, ast.Import, ast.ImportFrom)):
            continue
        said = [n.value for n in ast.walk(part) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)]
        lines = {
            line
            for node in ast.walk(part)
            if isinstance(node, (ast.stmt, ast.expr))
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        for text in said:
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
        count += len([line for line in lines if inspect.getsource(module).splitlines()[line - 1].strip()])
    return count


def test_demonstration(capsys: pytest.CaptureFixture[str]) -> None:
    program = GALLERY["symbolic regression"]
    demonstrate(program.make(), program.made_examples, 4)
    assert "times as fast" in capsys.readouterr().out
