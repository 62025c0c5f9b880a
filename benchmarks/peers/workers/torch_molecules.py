"""Weave convolutions over molecules in PyTorch, one by one and by hand, and in Foldloom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import foldloom as fl
from benchmarks.peers.protocol import Batch, Given
from benchmarks.peers.workers.foldloom_base import InWorkers, Kept, Recorded
from benchmarks.peers.workers.torch_base import TorchProgram
from foldloom.data.structures import Molecule
from foldloom.models import WeaveNetwork

TARGET = "measured"


def molecules(given: Given) -> list[Molecule]:
    """As they were read, but for their names."""
    data, sizes = given.data, given.data["size"]
    squares = np.cumsum(sizes**2)[:-1]
    parts = zip(
        np.split(data["atom"], np.cumsum(sizes)[:-1]),
        np.split(data["pair"], squares),
        np.split(data["distance"], squares),
        data["target"].tolist(),
        sizes.tolist(),
        strict=True,
    )
    return [
        Molecule("", atoms, pairs.reshape(size, size, -1), distances.reshape(size, size), {TARGET: target})
        for atoms, pairs, distances, target, size in parts
    ]


class Molecules(Recorded):
    """The model of one molecule, its layers made cells."""

    model: WeaveNetwork

    def __init__(self, given: Given) -> None:
        model = WeaveNetwork((TARGET,), size=given.sizes["size"], layers=given.sizes["layers"], dropout=0.0)
        model.load_state_dict({name: torch.from_numpy(value) for name, value in given.weights.items()})
        self.start(model, given)
        self.examples = molecules(given)

    def record(self, example: Any) -> fl.Recording:
        return self.model.record(example)

    def plan(self, recordings: list[fl.Recording]) -> Any:
        return fl.plan(recordings)

    def run(self, batch: Any) -> Tensor:
        return self.model.total_loss(self.model.results(batch))


class OneByOne(Molecules):
    def run(self, batch: Any) -> Tensor:
        losses = []
        for molecule in batch:
            vector, targets = self.model(molecule)
            losses.append(self.model.total_loss((vector.unsqueeze(0), [targets])))
        return torch.stack(losses).sum()


@dataclass
class Flat:
    """A molecule as arrays: its near pairs, the two atoms of each, and which pair which atom is in."""

    atoms: np.ndarray
    pairs: np.ndarray
    one: np.ndarray
    other: np.ndarray
    pair_of: np.ndarray
    atom_of: np.ndarray

    @classmethod
    def of(cls, molecule: Molecule, farthest: int) -> Flat:
        one, other = np.nonzero(np.triu(molecule.distances <= farthest))
        apart = np.flatnonzero(one != other)
        pair_of = np.concatenate([np.arange(len(one)), apart])
        return cls(molecule.atoms, molecule.pairs[one, other], one, other, pair_of, np.concatenate([one, other[apart]]))


class ByHand(Molecules):
    """Molecules were made arrays once; all atoms and all pairs of a batch are one tensor each, sums go by index."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.flat = [Flat.of(molecule, self.model.farthest) for molecule in self.examples]
        self.targets = torch.from_numpy(given.data["target"]).float()

    def batch_loss(self, batch: Batch) -> Tensor:
        chosen = [self.flat[number] for number in batch]
        atom_counts, pair_counts = ([len(getattr(flat, name)) for flat in chosen] for name in ("atoms", "pairs"))

        def joined(name: str, counts: list[int]) -> Tensor:
            """Numbers within a molecule as numbers within the batch."""
            parts, start = [], 0
            for flat, count in zip(chosen, counts, strict=True):
                parts.append(getattr(flat, name) + start)
                start += count
            return torch.from_numpy(np.concatenate(parts))

        one, other, atom_of = (joined(name, atom_counts) for name in ("one", "other", "atom_of"))
        pair_of = joined("pair_of", pair_counts)
        atoms, pairs = (
            torch.from_numpy(np.concatenate([getattr(f, name) for f in chosen])) for name in ("atoms", "pairs")
        )
        layers: Any = self.model.layers
        for layer in layers:
            cell = layer.atom.function
            told = cell.from_pair(pairs).relu().index_select(0, pair_of)
            around = torch.zeros(len(atoms), told.shape[1]).index_add(0, atom_of, told)
            mixed = cell.mix(torch.cat((cell.from_atom(atoms).relu(), around), 1))
            new_atoms = cell.norm(mixed).relu()
            if layer.pair is not None:
                pairs = layer.pair.function(atoms.index_select(0, one), pairs, atoms.index_select(0, other))
            atoms = new_atoms
        summaries = self.model.to_summary(atoms)
        counts = torch.tensor(atom_counts)
        molecule_of = torch.repeat_interleave(torch.arange(len(counts)), counts)
        sums = torch.zeros(len(counts), summaries.shape[1]).index_add(0, molecule_of, summaries)
        scores = self.model.scores(torch.cat((sums, sums / counts.unsqueeze(1)), 1))
        return F.mse_loss(scores.squeeze(1), self.targets[torch.tensor(batch)], reduction="sum")


class MoleculesKept(Kept, Molecules):
    pass


class MoleculesInWorkers(InWorkers, Molecules):
    pass


WAYS: dict[str, Callable[[Given], TorchProgram]] = {
    "one-by-one": OneByOne,
    "by-hand": ByHand,
    "cells": Molecules,
    "cells-kept": MoleculesKept,
    "cells-in-workers": MoleculesInWorkers,
}
