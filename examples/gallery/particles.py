"""A particle filter that resamples when too few particles count: the volatility of a series of returns, of any length.

Doucet, Johansen, "A Tutorial on Particle Filtering and Smoothing: Fifteen Years Later", 2011; Kim, Shephard, Chib, "Stochastic
Volatility", Review of Economic Studies 1998.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from examples.gallery.common import demonstrate


@dataclass(slots=True)
class Series:
    returns: list[float]
    seed: int


class ParticleFilter:
    def __init__(self, particles: int = 128, persistence: float = 0.95, noise: float = 0.3) -> None:
        self.particles, self.persistence, self.noise = particles, persistence, noise

    def __call__(self, series: Series) -> tuple[Tensor, Tensor, int]:
        """The log-likelihood of a series, its last volatility, and how often particles were drawn anew."""
        random = torch.Generator().manual_seed(series.seed)
        x = torch.randn(self.particles, generator=random) * self.noise / math.sqrt(1 - self.persistence**2)
        log_weights = torch.full((self.particles,), -math.log(self.particles))
        evidence, resampled = torch.zeros(()), 0
        for value in series.returns:
            x = self.persistence * x + self.noise * torch.randn(self.particles, generator=random)
            log_weights = log_weights - 0.5 * (math.log(2 * math.pi) + x + value**2 * torch.exp(-x))
            total = torch.logsumexp(log_weights, 0)
            evidence, log_weights = evidence + total, log_weights - total
            weights = log_weights.exp()
            if 1 / weights.square().sum() < self.particles / 2:
                start = torch.rand((), generator=random)
                places = (torch.arange(self.particles) + start) / self.particles
                ancestors = torch.searchsorted(weights.cumsum(0), places).clamp(max=self.particles - 1)
                x, log_weights = x[ancestors], torch.full((self.particles,), -math.log(self.particles))
                resampled += 1
        return evidence, (log_weights.exp() * torch.exp(x / 2)).sum(), resampled


def made_examples(count: int, seed: int) -> list[Series]:
    source, examples = random.Random(seed), []
    for number in range(count):
        x, returns = source.gauss(0, 1), []
        for _ in range(source.randint(10, 60)):
            x = 0.95 * x + 0.3 * source.gauss(0, 1)
            returns.append(math.exp(x / 2) * source.gauss(0, 1))
        examples.append(Series(returns, seed * count + number))
    return examples


if __name__ == "__main__":
    demonstrate(ParticleFilter(), made_examples)
