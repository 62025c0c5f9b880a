"""A neural ordinary differential equation, solved with a step size of its own for each trajectory, and learned through the solver.

Bogacki, Shampine, "A 3(2) pair of Runge-Kutta formulas", Applied Mathematics Letters 1989; Chen, Rubanova, Bettencourt, Duvenaud,
"Neural Ordinary Differential Equations", NeurIPS 2018.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from examples.gallery.common import demonstrate


@dataclass(slots=True)
class Trajectory:
    start: Tensor
    stiffness: float
    """How fast it moves: the number of steps grows with it."""
    end: Tensor


class NeuralODE(nn.Module):
    def __init__(self, size: int = 4, hidden: int = 64, tolerance: float = 1e-3) -> None:
        super().__init__()
        self.field = nn.Sequential(
            nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, size)
        )
        self.tolerance = tolerance

    def solve(self, y: Tensor, stiffness: float, until: float = 1.0) -> Tensor:
        def slope(y: Tensor) -> Tensor:
            return stiffness * self.field(y)

        time, step = 0.0, 0.1
        k1 = slope(y)
        while time < until:
            step = min(step, until - time)
            k2 = slope(y + step * k1 / 2)
            k3 = slope(y + step * k2 * 3 / 4)
            candidate = y + step * (2 / 9 * k1 + 1 / 3 * k2 + 4 / 9 * k3)
            k4 = slope(candidate)
            error = step * (-5 / 72 * k1 + 1 / 12 * k2 + 1 / 9 * k3 - 1 / 8 * k4)
            scale = self.tolerance * (1 + torch.maximum(y.abs(), candidate.abs()))
            ratio = (error / scale).square().mean().sqrt().item()
            if ratio <= 1:
                time, y, k1 = time + step, candidate, k4
            step *= min(5.0, max(0.2, 0.9 * (ratio + 1e-10) ** (-1 / 3)))
        return y

    def forward(self, trajectory: Trajectory) -> Tensor:
        return (self.solve(trajectory.start, trajectory.stiffness) - trajectory.end).square().mean()


def made_examples(count: int, seed: int) -> list[Trajectory]:
    source, numbers = random.Random(seed), torch.Generator().manual_seed(seed)
    return [
        Trajectory(torch.randn(4, generator=numbers), 2.0 ** source.uniform(0, 7), torch.randn(4, generator=numbers))
        for _ in range(count)
    ]


if __name__ == "__main__":
    demonstrate(NeuralODE(), made_examples)
