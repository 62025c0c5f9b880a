"""Weave graph convolutions over molecules (Kearnes et al. 2016).

A molecule is its atoms, each a vector, and for each atom the features of its pairs with all atoms. One convolution makes new atoms
of atoms and the pairs that they are in, and new pairs of pairs and the two atoms of each.
"""

from __future__ import annotations

import torch
from torch import nn

from foldloom import blocks as fb


class WeavePair(nn.Module):
    """A pair from itself and its two atoms, in whichever order they come."""

    def __init__(self, atom: int, pair: int, size: int) -> None:
        super().__init__()
        self.from_pair, self.from_atoms = nn.Linear(pair, size), nn.Linear(2 * atom, size)
        self.mix = nn.Linear(2 * size, size)

    def forward(self, one: torch.Tensor, pair: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        both = [self.from_atoms(torch.cat(atoms, 1)).relu() for atoms in ((one, other), (other, one))]
        return torch.relu(self.mix(torch.cat((self.from_pair(pair).relu(), both[0] + both[1]), 1)))


def weave(atom: int, pair: int, size: int) -> fb.Block:
    """One convolution: from (atoms, pairs of each atom) to the same, of another size."""
    from_pairs = fb.Map(nn.Sequential(nn.Linear(pair, size), nn.ReLU())) >> fb.Sum()
    new_atom = fb.Record((nn.Sequential(nn.Linear(atom, size), nn.ReLU()), from_pairs)) >> fb.Concat() >> fb.FC(size)
    new_pairs = fb.Record((fb.Broadcast(), fb.Identity(), fb.Identity())) >> fb.ZipWith(WeavePair(atom, pair, size))
    with_all_atoms = fb.AllOf(fb.GetItem(0), fb.GetItem(1), fb.GetItem(0) >> fb.Broadcast())
    return fb.AllOf(fb.ZipWith(new_atom), with_all_atoms >> fb.ZipWith(new_pairs))


def weave_convolution(atom: int, pair: int, size: int = 32, layers: int = 2) -> fb.Block:
    """From ``{'atoms': [vector, ...], 'pairs': [[vector, ...], ...]}`` to a vector for the molecule."""
    molecule = fb.Record({"atoms": fb.Map(fb.Vector(atom)), "pairs": fb.Map(fb.Map(fb.Vector(pair)))})
    convolutions = [weave(atom, pair, size), *[weave(size, size, size) for _ in range(layers - 1)]]
    return fb.Pipe(molecule, *convolutions) >> fb.GetItem(0) >> fb.Map(nn.Linear(size, size)) >> fb.Sum()
