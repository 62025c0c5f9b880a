"""Molecules from SMILES, with the features of Kearnes, McCloskey, Berndl, Pande, Riley, "Molecular Graph Convolutions: Moving
Beyond Fingerprints", 2016: for each atom its element, chirality, charges, rings, hybridization, hydrogen bonds and
aromaticity, for each pair its bond, how many bonds apart it is, and whether a ring joins it. RDKit reads and computes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from foldloom.data.reading import Piece, Reader, Source, installed
from foldloom.data.structures import Molecule
from foldloom.errors import DataError

ELEMENTS = ("H", "C", "N", "O", "F", "P", "S", "Cl", "Br", "I")
"""Others count as metals, as in the paper."""
CHIRALITIES = ("R", "S")
HYBRIDIZATIONS = ("SP", "SP2", "SP3")
RING_SIZES = range(3, 9)
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")
FARTHEST = 7
"""Pairs that are so many bonds apart or more are alike."""

ATOM_FEATURES = len(ELEMENTS) + 1 + len(CHIRALITIES) + 2 + len(RING_SIZES) + len(HYBRIDIZATIONS) + 2 + 1
PAIR_FEATURES = len(BONDS) + FARTHEST + 1


class MoleculeReader(Reader[Molecule]):
    """SMILES, one a line; or a CSV file with a header, if ``targets`` names its columns of numbers.

    ``column`` is where the CSV file has its SMILES. A number that is missing is left out of the molecule's targets.
    """

    def __init__(
        self, source: Source = (), *, targets: Sequence[str] = (), column: str = "smiles", strict: bool = True
    ) -> None:
        super().__init__(source, strict=strict)
        self.targets, self.column = tuple(targets), column
        self._header: list[str] = []

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        pieces = super().pieces(lines)
        if self.targets:
            line, text = next(pieces, (1, ""))
            self._header = next(csv.reader([text]), [])
            missing = [name for name in (self.column, *self.targets) if name not in self._header]
            if missing:
                raise DataError(
                    f"expected columns {', '.join(missing)}, but there are {', '.join(self._header)}", line=line
                )
        return pieces

    def parse(self, text: str) -> Molecule:
        if not self.targets:
            return molecule(text.strip())
        row = dict(zip(self._header, next(csv.reader(io.StringIO(text))), strict=False))
        numbers = {name: _number(name, row.get(name, "")) for name in self.targets}
        known = {name: number for name, number in numbers.items() if number is not None}
        return molecule(row.get(self.column, "").strip(), known)


def _number(name: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError as error:
        raise DataError(f"expected a number or nothing in column {name!r}, not {text!r}") from error


def molecule(smiles: str, targets: dict[str, float] | None = None) -> Molecule:
    """Of a SMILES string, which must have an atom at least."""
    chem = _rdkit("Chem")
    with _rdkit("rdBase").BlockLogs():  # what is wrong is raised, not printed
        parsed = chem.MolFromSmiles(smiles)
    if parsed is None or not parsed.GetNumAtoms():
        raise DataError(f"expected a molecule in SMILES notation, not {smiles!r}")
    distances = np.minimum(chem.GetDistanceMatrix(parsed), parsed.GetNumAtoms() + 1).astype(np.int64)
    return Molecule(smiles, _atom_features(parsed), _pair_features(parsed, distances), distances, targets or {})


@cache
def _rdkit(module: str) -> Any:
    return installed(f"rdkit.{module}", extra="molecules", to="read SMILES")


def _one_hot(value: Any, choices: Sequence[Any]) -> list[bool]:
    return [value == choice for choice in choices]


def _atom_features(parsed: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    _rdkit("Chem.rdPartialCharges").ComputeGasteigerCharges(parsed)
    donors, acceptors = (_matches(parsed, pattern) for pattern in (_DONOR, _ACCEPTOR))
    chirality = dict(_rdkit("Chem").FindMolChiralCenters(parsed, useLegacyImplementation=False))
    rings = parsed.GetRingInfo()
    return np.array([_features_of(atom, donors, acceptors, chirality, rings) for atom in parsed.GetAtoms()], np.float32)


def _features_of(
    atom: Any, donors: set[int], acceptors: set[int], chirality: dict[int, str], rings: Any
) -> list[float]:
    number, element = atom.GetIdx(), atom.GetSymbol()
    partial_charge = float(atom.GetProp("_GasteigerCharge"))
    return [
        *_one_hot(element, ELEMENTS),
        element not in ELEMENTS,
        *_one_hot(chirality.get(number), CHIRALITIES),
        atom.GetFormalCharge(),
        # Not known for metals, and beyond all reason for a few salts.
        partial_charge if abs(partial_charge) < 4 else 0.0,
        *[rings.NumAtomRings(number) > 0 and rings.IsAtomInRingOfSize(number, size) for size in RING_SIZES],
        *_one_hot(str(atom.GetHybridization()), HYBRIDIZATIONS),
        number in donors,
        number in acceptors,
        atom.GetIsAromatic(),
    ]


_DONOR = "[$([N;!H0;v3]),$([N;!H0;+1;v4]),$([O,S;H1;+0]),$([n;H1;+0])]"
_ACCEPTOR = "[$([O,S;H1;v2]-[!$(*=[O,N,P,S])]),$([O,S;H0;v2]),$([O,S;-]),$([N;v3;!$(N-*=!@[O,N,P,S])]),$([nH0,o,s;+0])]"


@cache
def _pattern(smarts: str) -> Any:
    return _rdkit("Chem").MolFromSmarts(smarts)


def _matches(parsed: Any, smarts: str) -> set[int]:
    return {match[0] for match in parsed.GetSubstructMatches(_pattern(smarts))}


def _pair_features(parsed: Any, distances: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    pairs = np.zeros((*distances.shape, PAIR_FEATURES), np.float32)
    for bond in parsed.GetBonds():
        one, other = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        pairs[one, other, : len(BONDS)] = pairs[other, one, : len(BONDS)] = _one_hot(str(bond.GetBondType()), BONDS)
    for number in range(FARTHEST):
        pairs[:, :, len(BONDS) + number] = distances == number if number == 0 else distances > number
    for ring in parsed.GetRingInfo().AtomRings():
        pairs[np.repeat(ring, len(ring)), np.tile(ring, len(ring)), -1] = 1.0
    return pairs
