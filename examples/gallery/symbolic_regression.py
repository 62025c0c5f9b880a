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
    """A function of other formulas, the variable x, or a constant, of which a formula has the number."""

    name: str
    of: list[Formula] = field(default_factory=list)
    number: int = 0


Individual = tuple[Formula, Tensor]
"""A formula and its constants."""


class Fitness:
    def __init__(self, rows: int = 256) -> None:
        self.x = torch.linspace(-2, 2, rows)
        self.y = torch.sin(2 * self.x) + 0.5 * self.x**2

    def evaluate(self, formula: Formula, constants: Tensor) -> Tensor:
        if formula.name == "constant":
            return constants[formula.number]
        if formula.name == "x":
            return self.x
        return FUNCTIONS[formula.name](*[self.evaluate(part, constants) for part in formula.of])

    def __call__(self, individual: Individual) -> Tensor:
        return (self.evaluate(*individual) - self.y).square().mean()


def made_formula(source: random.Random, size: int, constants: list[float]) -> Formula:
    if size <= 1:
        if source.random() < 0.5:
            return Formula("x")
        constants.append(source.uniform(-2, 2))
        return Formula("constant", number=len(constants) - 1)
    if size == 2 or source.random() < 0.3:
        return Formula(source.choice(list(UNARY)), [made_formula(source, size - 1, constants)])
    left = source.randint(1, size - 2)
    parts = [made_formula(source, part, constants) for part in (left, size - 1 - left)]
    return Formula(source.choice(list(BINARY)), parts)


def made_examples(count: int, seed: int) -> list[Individual]:
    source, individuals = random.Random(seed), []
    for _ in range(count):
        constants: list[float] = [1.0]
        formula = made_formula(source, source.randint(3, 40), constants)
        individuals.append((formula, torch.tensor(constants, requires_grad=True)))
    return individuals


if __name__ == "__main__":
    demonstrate(Fitness(), made_examples)
