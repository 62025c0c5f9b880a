"""Molecules from SMILES, with the features of Kearnes, McCloskey, Berndl, Pande, Riley, "Molecular Graph Convolutions: Moving
Beyond Fingerprints", 2016: for each atom its element, chirality, charges, rings, hybridization, hydrogen bonds and
aromaticity, for each pair its bond, how many bonds apart it is, and whether a ring joins it. RDKit reads and computes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from foldloom.data.opening import DEFAULT, Limits, Source, check_text
from foldloom.data.reading import Piece, Reader, installed
from foldloom.data.structures import Molecule
from foldloom.data.tables import Header, number_in, rows, written
from foldloom.errors import DataError

MOST_ATOMS = 400
CHARACTERS_OF_AN_ATOM = 20
"""In SMILES, with brackets, charges, rings and branches, at most. Longer ones are not even parsed."""

MOST_COMPARISONS = 1_000_000
"""To tell whether an atom is chiral, RDKit compares what hangs on it: so often takes a second. Most molecules need a thousand."""

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

    ``column`` is where the CSV file has its SMILES. A number that is missing is left out of the molecule's targets. Molecules of more atoms
    than ``most_atoms`` are malformed: what is known of pairs of atoms grows with the square, and finding it out with the cube.

    >>> from foldloom import data
    >>> lines = ["smiles,solubility", "CCO,1.1", "O,"]
    >>> [molecule.targets for molecule in data.MoleculeReader(lines, targets=["solubility"])]
    [{'solubility': 1.1}, {}]
    """

    def __init__(
        self,
        source: Source = (),
        *,
        targets: Sequence[str] = (),
        column: str = "smiles",
        most_atoms: int = MOST_ATOMS,
        strict: bool = True,
        limits: Limits = DEFAULT,
    ) -> None:
        super().__init__(source, strict=strict, limits=limits)
        self.targets, self.column, self.most_atoms = tuple(targets), column, most_atoms
        self._header = Header("")

    def pieces(self, lines: Iterable[str]) -> Iterator[Piece]:
        if not self.targets:
            return super().pieces(lines)
        pieces = rows(lines, self.limits)
        line, text = next(pieces, (1, ""))
        try:
            check_text(text)
            self._header = Header(text)
        except DataError as error:
            raise DataError(error.problem, line=line + (error.line or 1) - 1) from error
        problem = self._problem(pieces)
        if problem is not None:
            raise DataError(problem, line=line)
        return pieces

    def _problem(self, rows: Iterator[Piece]) -> str | None:
        """With the columns; by what stands in the first row, it says which ones could be meant."""
        columns = self._header.columns
        wanted = (self.column, *self.targets)
        for name in wanted:
            if columns.count(name) > 1:
                return f"expected one column {name!r}, not {columns.count(name)}: give each a name of its own"
        missing, known = [name for name in wanted if name not in columns], ", ".join(columns)
        if not missing:
            return None
        if self.column in missing:
            alike = [name for name in columns if "smi" in name.lower()]
            example = _for_a_shell(f"smiles={(alike or ['NAME'])[0]}")
            return f"expected a column {self.column!r} of molecules, but there are {known}: write --set {example}"
        numeric = [name for name in self._header.numeric(next(rows, (2, ""))[1]) if name != self.column]
        example = _for_a_shell(f"targets={written(numeric[:1] or ['NAME'])}")
        numbers = f"; those of numbers are {written(numeric)}" if len(numeric) > 1 else ""
        return (
            f"expected columns {', '.join(map(repr, missing))}, but there are {known}: write --set {example}{numbers}"
        )

    def parse(self, text: str) -> Molecule:
        if not self.targets:
            return molecule(text.strip(), most_atoms=self.most_atoms)
        row = self._header.row(text)
        numbers = {name: number_in(row, name) for name in self.targets}
        known = {name: number for name, number in numbers.items() if number is not None}
        return molecule(row[self.column].strip(), known, self.most_atoms)


def molecule(smiles: str, targets: dict[str, float] | None = None, most_atoms: int = MOST_ATOMS) -> Molecule:
    """Of a SMILES string, which must have an atom at least."""
    if len(smiles) > CHARACTERS_OF_AN_ATOM * most_atoms:
        raise DataError(_too_large(f"one whose SMILES has {len(smiles):,} characters", most_atoms))
    chem = _rdkit("Chem")
    try:
        with _rdkit("rdBase").BlockLogs():  # what is wrong is raised, not printed
            parsed = chem.MolFromSmiles(smiles)
        if parsed is None or not parsed.GetNumAtoms():
            raise DataError(f"expected a molecule in SMILES notation, not {_cut(smiles)!r}")
        if parsed.GetNumAtoms() > most_atoms:
            raise DataError(_too_large(f"{parsed.GetNumAtoms():,}", most_atoms))
        distances = np.minimum(chem.GetDistanceMatrix(parsed), parsed.GetNumAtoms() + 1).astype(np.int64)
        return Molecule(smiles, _atom_features(parsed), _pair_features(parsed, distances), distances, targets or {})
    except (RuntimeError, UnicodeEncodeError) as error:  # where RDKit gives up
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"expected a molecule that RDKit can compute: {reason}, of {_cut(smiles)!r}") from error


def _for_a_shell(setting: str) -> str:
    return setting if re.fullmatch(r"[\w=.,-]+", setting) else shlex.quote(setting)


def _too_large(found: str, most_atoms: int) -> str:
    return (
        f"expected a molecule of at most {most_atoms:,} atoms, not {found}; to allow more: --set atom_limit=N, "
        "or most_atoms=N in Python"
    )


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}..."


@cache
def _rdkit(module: str) -> Any:
    return installed(f"rdkit.{module}", extra="molecules", to="read SMILES")


def _one_hot(value: Any, choices: Sequence[Any]) -> list[bool]:
    return [value == choice for choice in choices]


def _atom_features(parsed: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    _rdkit("Chem.rdPartialCharges").ComputeGasteigerCharges(parsed)
    donors, acceptors = (_matches(parsed, pattern) for pattern in (_DONOR, _ACCEPTOR))
    chirality = _chirality(parsed)
    rings = parsed.GetRingInfo()
    return np.array([_features_of(atom, donors, acceptors, chirality, rings) for atom in parsed.GetAtoms()], np.float32)


def _chirality(parsed: Any) -> dict[int, str]:
    """The label of each atom that is a centre, as `FindMolChiralCenters` finds it, which knows no limit of time."""
    chem, centres = _rdkit("Chem"), {}
    before = chem.GetUseLegacyStereoPerception()
    chem.SetUseLegacyStereoPerception(False)
    try:
        found = list(chem.FindPotentialStereo(parsed))
        atoms = [each.centeredOn for each in found if each.type == chem.StereoType.Atom_Tetrahedral]
        bonds = [each.centeredOn for each in found if each.type == chem.StereoType.Bond_Double]
        _rdkit("Chem.rdCIPLabeler").AssignCIPLabels(parsed, atoms, bonds, MOST_COMPARISONS)
    finally:
        chem.SetUseLegacyStereoPerception(before)
    for number in atoms:
        atom = parsed.GetAtomWithIdx(number)
        if atom.HasProp("_CIPCode"):
            centres[number] = atom.GetProp("_CIPCode")
    return centres


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
