"""The programs of the gallery by name: a function of one example, and examples to run it on.

Those that learn return a loss; `learned` gives the weights that it has gradients for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from examples.gallery import (
    bug_detector,
    decoding,
    early_exit,
    halting,
    inside_algorithm,
    nuts,
    ode,
    particles,
    symbolic_regression,
    tree_search,
)

Learned = Callable[[Any, Sequence[Any]], list[Tensor]]


def nothing(program: Any, examples: Sequence[Any]) -> list[Tensor]:
    return []


def weights(program: nn.Module, examples: Sequence[Any]) -> list[Tensor]:
    return list(program.parameters())


def constants(program: Any, individuals: Sequence[symbolic_regression.Individual]) -> list[Tensor]:
    return [constants for _, constants in individuals]


@dataclass(frozen=True)
class Program:
    make: Callable[[], Callable[..., Any]]
    made_examples: Callable[[int, int], Sequence[Any]]
    learned: Learned = nothing

    @property
    def learns(self) -> bool:
        return self.learned is not nothing


GALLERY = {
    "NUTS": Program(nuts.NUTS, nuts.made_examples),
    "neural ODE": Program(ode.NeuralODE, ode.made_examples, weights),
    "halting": Program(halting.AdaptiveComputationTime, halting.made_examples, weights),
    "early exit": Program(early_exit.EarlyExitTransformer, early_exit.made_examples),
    "tree search": Program(tree_search.TreeSearch, tree_search.made_examples),
    "decoding": Program(decoding.Writer, decoding.made_examples),
    "particle filter": Program(particles.ParticleFilter, particles.made_examples),
    "symbolic regression": Program(symbolic_regression.Fitness, symbolic_regression.made_examples, constants),
    "bug detector": Program(bug_detector.BugDetector, bug_detector.made_examples, weights),
    "inside algorithm": Program(inside_algorithm.Grammar, inside_algorithm.made_examples, weights),
}
