"""A chain of the No-U-Turn sampler, which doubles its trajectory until that turns back: Bayesian logistic regression.

Hoffman, Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian Monte Carlo", JMLR 2014, algorithm 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.gallery.common import demonstrate


@dataclass(slots=True)
class Chain:
    start: Tensor
    seed: int


@dataclass(slots=True)
class Tree:
    """A part of a trajectory: both its ends, a draw from it, how many states it could have come from, whether to go on."""

    first: tuple[Tensor, Tensor]
    last: tuple[Tensor, Tensor]
    draw: Tensor
    states: int
    goes_on: bool


class NUTS:
    def __init__(self, rows: int = 1000, size: int = 24, step: float = 0.03, draws: int = 2, deepest: int = 7) -> None:
        source = torch.Generator().manual_seed(0)
        self.x = torch.randn(rows, size, generator=source)
        self.y = (self.x @ torch.randn(size, generator=source) > 0).to(self.x.dtype)
        self.step, self.draws, self.deepest = step, draws, deepest

    def log_density(self, q: Tensor) -> Tensor:
        return -F.binary_cross_entropy_with_logits(self.x @ q, self.y, reduction="sum") - 0.5 * q @ q

    def gradient(self, q: Tensor) -> Tensor:
        return (self.y - torch.sigmoid(self.x @ q)) @ self.x - q

    def leapfrog(self, q: Tensor, p: Tensor, step: float) -> tuple[Tensor, Tensor]:
        p = p + 0.5 * step * self.gradient(q)
        q = q + step * p
        return q, p + 0.5 * step * self.gradient(q)

    def build(self, q: Tensor, p: Tensor, slice: float, direction: int, depth: int, random: torch.Generator) -> Tree:
        if depth == 0:
            q, p = self.leapfrog(q, p, direction * self.step)
            joint = float(self.log_density(q) - 0.5 * p @ p)
            return Tree((q, p), (q, p), q, int(slice <= joint), slice < joint + 1000)
        tree = self.build(q, p, slice, direction, depth - 1, random)
        return self.grow(tree, slice, direction, depth - 1, random) if tree.goes_on else tree

    def grow(self, tree: Tree, slice: float, direction: int, depth: int, random: torch.Generator) -> Tree:
        """Double a tree, in one direction; the draw is from either half, by how many states each has."""
        other = self.build(*(tree.first if direction < 0 else tree.last), slice, direction, depth, random)
        first, last = (other.first, tree.last) if direction < 0 else (tree.first, other.last)
        states = tree.states + other.states
        takes = other.goes_on and float(torch.rand((), generator=random)) * states < other.states
        span = last[0] - first[0]
        turns = bool(span @ first[1] < 0) or bool(span @ last[1] < 0)
        return Tree(first, last, other.draw if takes else tree.draw, states, other.goes_on and not turns)

    def __call__(self, chain: Chain) -> Tensor:
        random, q, draws = torch.Generator().manual_seed(chain.seed), chain.start, []
        for _ in range(self.draws):
            p = torch.randn(q.shape, generator=random)
            joint = float(self.log_density(q) - 0.5 * p @ p)
            slice = joint + math.log(float(torch.rand((), generator=random)))
            tree = Tree((q, p), (q, p), q, 1, True)
            for depth in range(self.deepest):
                direction = 1 if torch.rand((), generator=random) < 0.5 else -1
                tree = self.grow(tree, slice, direction, depth, random)
                if not tree.goes_on:
                    break
            q = tree.draw
            draws.append(q)
        return torch.stack(draws)


def made_examples(count: int, seed: int) -> list[Chain]:
    source = torch.Generator().manual_seed(seed)
    return [Chain(torch.randn(24, generator=source) * 0.2, seed * count + number) for number in range(count)]


if __name__ == "__main__":
    demonstrate(NUTS(), made_examples)
