"""A vector for a molecule, from its atoms and their pairs (Kearnes et al. 2016)."""

from __future__ import annotations

import random
from typing import Any

from torch import nn

from foldloom.blocks import compile  # noqa: A004 - as in `fb.compile`
from foldloom.models.weave import weave_convolution
from foldloom.tasks.task import Task

ATOM, PAIR = 8, 4


class MoleculeTask(Task):
    name = "molecule"
    description = "weave convolutions over the atoms and pairs of a molecule"

    def model(self) -> nn.Module:
        return compile(weave_convolution(ATOM, PAIR, size=16))

    def made_examples(self, count: int, seed: int) -> list[dict[str, Any]]:
        source = random.Random(seed)

        def vector(size: int) -> list[float]:
            return [source.gauss(0, 1) for _ in range(size)]

        def molecule(atoms: int) -> dict[str, Any]:
            pairs = [[vector(PAIR) for _ in range(atoms)] for _ in range(atoms)]
            return {"atoms": [vector(ATOM) for _ in range(atoms)], "pairs": pairs}

        return [molecule(source.randint(2, 5)) for _ in range(count)]
