"""Properties of molecules from weave convolutions, over pairs of atoms that are near each other.

Kearnes, McCloskey, Berndl, Pande, Riley, "Molecular Graph Convolutions: Moving Beyond Fingerprints", 2016. As there, pairs that
are more than two bonds apart are left out, which loses little and takes a fourth of the time. `weave_convolution` has all pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from foldloom.data.molecules import ATOM_FEATURES, PAIR_FEATURES
from foldloom.data.structures import Molecule
from foldloom.models.training import Batch, ForOneExample
from foldloom.models.weave import WeavePair
from foldloom.tracing import cell, lift

Atoms = tuple[int, int]
"""The numbers of the two atoms of a pair, the smaller one first; every atom is also paired with itself."""
Pairs = dict[Atoms, Any]


class WeaveAtom(nn.Module):
    """An atom from itself and the pairs that it is in, however many: one step for all atoms that are in equally many."""

    def __init__(self, atom: int, pair: int, size: int, dropout: float) -> None:
        super().__init__()
        self.from_atom, self.from_pair = nn.Linear(atom, size), nn.Linear(pair, size)
        self.mix, self.norm, self.dropout = nn.Linear(2 * size, size), nn.LayerNorm(size), nn.Dropout(dropout)

    def forward(self, atom: torch.Tensor, pairs: list[torch.Tensor]) -> torch.Tensor:
        around = self.from_pair(torch.stack(pairs, 1)).relu().sum(1)
        mixed = self.mix(torch.cat((self.from_atom(atom).relu(), around), 1))
        return self.dropout(self.norm(mixed).relu())  # type: ignore[no-any-return]


class WeaveLayer(nn.Module):
    def __init__(self, atom: int, pair: int, size: int, dropout: float, *, with_pairs: bool) -> None:
        super().__init__()
        self.atom = cell(WeaveAtom(atom, pair, size, dropout))
        self.pair = cell(WeavePair(atom, pair, size)) if with_pairs else None

    def forward(self, atoms: Sequence[Any], pairs: Pairs, around: list[list[Atoms]]) -> tuple[list[Any], Pairs]:
        """``around`` has the pairs that each atom is in."""
        new_atom, new_pair = self.atom, self.pair
        new_atoms = [new_atom(atom, [pairs[both] for both in own]) for atom, own in zip(atoms, around, strict=True)]
        if new_pair is None:
            return new_atoms, {}
        return new_atoms, {(i, j): new_pair(atoms[i], pair, atoms[j]) for (i, j), pair in pairs.items()}


class WeaveNetwork(ForOneExample):
    """The answer for a molecule has a number for each target: a measure, or with ``classes`` the probability that it is 1.

    Measures are learned as they are: give ``mean`` and ``spread`` of each, so that the network need not learn their scale.

    >>> from foldloom import data, models
    >>> model = models.WeaveNetwork(["solubility"]).eval()
    >>> model.predict(list(data.MoleculeReader(["O", "CCO"]))).shape
    torch.Size([2, 1])
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        atom_features: int = ATOM_FEATURES,
        pair_features: int = PAIR_FEATURES,
        classes: bool = False,
        size: int = 64,
        layers: int = 2,
        summary: int = 128,
        farthest: int = 2,
        dropout: float = 0.1,
        mean: Sequence[float] = (0.0,),
        spread: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__()
        self.targets, self.classes, self.farthest = tuple(targets), classes, farthest
        sizes = [(atom_features, pair_features), *[(size, size)] * (layers - 1)]
        self.layers = nn.ModuleList(
            [WeaveLayer(*given, size, dropout, with_pairs=n < layers - 1) for n, given in enumerate(sizes)]
        )
        self.to_summary = nn.Sequential(nn.Linear(size, summary), nn.Tanh())
        self.to_targets = nn.Sequential(
            nn.Linear(2 * summary, summary), nn.ReLU(), nn.Dropout(dropout), nn.Linear(summary, len(self.targets))
        )
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("spread", torch.tensor(spread))
        self.mean: torch.Tensor
        self.spread: torch.Tensor

    def forward(self, molecule: Molecule) -> tuple[torch.Tensor, npt.NDArray[np.float64]]:
        """A vector for the molecule, and its targets, those that are not known as NaN."""
        near = molecule.distances <= self.farthest
        around = [[(min(i, j), max(i, j)) for j in np.flatnonzero(row).tolist()] for i, row in enumerate(near)]
        first, second = np.nonzero(np.triu(near))
        # As values, whose rows are read by as many cells as need them; an array would be given anew to each.
        atoms: Sequence[Any] = list(lift(torch.from_numpy(molecule.atoms)))
        features = list(lift(torch.from_numpy(molecule.pairs[first, second])))
        pairs: Pairs = dict(zip(zip(first.tolist(), second.tolist(), strict=True), features, strict=True))
        for layer in self.layers:
            atoms, pairs = layer(atoms, pairs, around)
        summaries = self.to_summary(torch.stack(list(atoms)))
        # Some properties grow with the molecule, others do not.
        vector = torch.cat((summaries.sum(0), summaries.mean(0)))
        return vector, np.array([molecule.targets.get(name, np.nan) for name in self.targets])

    def scores(self, vectors: torch.Tensor) -> torch.Tensor:
        return self.to_targets(vectors) * self.spread + self.mean  # type: ignore[no-any-return]

    def answers(self, vectors: torch.Tensor) -> torch.Tensor:
        scores = self.scores(vectors)
        return scores.sigmoid() if self.classes else scores

    def answer(self, molecule: Molecule) -> torch.Tensor:
        return self.answers(self(molecule)[0])

    def total_loss(self, results: tuple[torch.Tensor, list[npt.NDArray[np.float64]]]) -> torch.Tensor:
        scores = self.scores(results[0])
        targets = torch.from_numpy(np.stack(results[1])).to(scores)
        known = ~targets.isnan()
        lose = F.binary_cross_entropy_with_logits if self.classes else F.mse_loss
        return lose(scores[known], targets[known], reduction="sum")

    def predict(self, batch: Batch) -> torch.Tensor:
        with torch.no_grad():
            return self.answers(self.results(batch)[0])
