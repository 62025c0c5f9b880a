"""Weave graph convolutions over molecules.

Kearnes, McCloskey, Berndl, Pande, Riley, "Molecular Graph Convolutions: Moving Beyond Fingerprints", 2016.

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


def new_atoms(atom: int, pair: int, size: int) -> fb.Block:
    """From (atoms, pairs of each atom) to atoms of another size."""
    from_pairs = fb.Map(nn.Sequential(nn.Linear(pair, size), nn.ReLU())) >> fb.Sum()
    mix = fb.Record((nn.Sequential(nn.Linear(atom, size), nn.ReLU()), from_pairs)) >> fb.Concat() >> fb.FC(size)
    return fb.ZipWith(mix)


def new_pairs(atom: int, pair: int, size: int) -> fb.Block:
    """From (atoms, pairs of each atom) to pairs of another size."""
    of_one_atom = fb.Record((fb.Broadcast(), fb.Identity(), fb.Identity())) >> fb.ZipWith(WeavePair(atom, pair, size))
    return fb.AllOf(fb.GetItem(0), fb.GetItem(1), fb.GetItem(0) >> fb.Broadcast()) >> fb.ZipWith(of_one_atom)


def weave_convolution(atom: int, pair: int, size: int = 32, layers: int = 2) -> fb.Block:
    """From ``{'atoms': [vector, ...], 'pairs': [[vector, ...], ...]}`` to a vector for the molecule.

    >>> from foldloom import blocks as fb, models
    >>> model = fb.compile(models.weave_convolution(atom=2, pair=1, size=8))
    >>> molecule = {"atoms": [[1, 0], [0, 1]], "pairs": [[[0], [1]], [[1], [0]]]}
    >>> model([molecule]).shape
    torch.Size([1, 8])
    """
    molecule = fb.Record({"atoms": fb.Map(fb.Vector(atom)), "pairs": fb.Map(fb.Map(fb.Vector(pair)))})
    sizes = [(atom, pair, size), *[(size, size, size)] * (layers - 1)]
    convolutions = [fb.AllOf(new_atoms(*given), new_pairs(*given)) for given in sizes[:-1]]
    return fb.Pipe(molecule, *convolutions, new_atoms(*sizes[-1])) >> fb.Map(nn.Linear(size, size)) >> fb.Sum()
