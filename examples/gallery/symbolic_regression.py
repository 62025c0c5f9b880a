"""Formulas that evolution has come up with, as trees: how well each fits the data, and by its gradient how its constants should change.

Koza, "Genetic Programming", 1992; Topchy, Punch, "Faster Genetic Programming Based on Local Gradient Search of Numeric Leaf Values",
GECCO 2001.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from examples.gallery.common import demonstrate

BINARY: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": lambda x, y: x / (0.1 + y.abs()),
}
UNARY: dict[str, Callable[..., Tensor]] = {
    "sin": torch.sin,
    "exp": lambda x: torch.exp(x.clamp(max=3)),
    "tanh": torch.tanh,
}
FUNCTIONS = {**BINARY, **UNARY}


@dataclass(slots=True)
class Formula:
    """A function of other formulas, the variable x, or a constant."""

    name: str
    of: list[Formula] = field(default_factory=list)
    constant: Tensor | None = None

    def constants(self) -> list[Tensor]:
        found = [] if self.constant is None else [self.constant]
        return found + [constant for part in self.of for constant in part.constants()]


class Fitness:
    def __init__(self, rows: int = 256) -> None:
        self.x = torch.linspace(-2, 2, rows)
        self.y = torch.sin(2 * self.x) + 0.5 * self.x**2

    def evaluate(self, formula: Formula) -> Tensor:
        if formula.constant is not None:
            return formula.constant
        if formula.name == "x":
            return self.x
        return FUNCTIONS[formula.name](*[self.evaluate(part) for part in formula.of])

    def __call__(self, formula: Formula) -> Tensor:
        return (self.evaluate(formula) - self.y).square().mean()


def made_formula(source: random.Random, size: int) -> Formula:
    if size <= 1:
        if source.random() < 0.5:
            return Formula("x")
        return Formula("constant", constant=torch.tensor(source.uniform(-2, 2), requires_grad=True))
    if size == 2 or source.random() < 0.3:
        return Formula(source.choice(list(UNARY)), [made_formula(source, size - 1)])
    left = source.randint(1, size - 2)
    return Formula(source.choice(list(BINARY)), [made_formula(source, left), made_formula(source, size - 1 - left)])


def made_examples(count: int, seed: int) -> list[Formula]:
    source = random.Random(seed)
    return [made_formula(source, source.randint(3, 40)) for _ in range(count)]


if __name__ == "__main__":
    demonstrate(Fitness(), made_examples)
