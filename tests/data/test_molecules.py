"""Molecules: atoms and pairs with their features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foldloom import data
from foldloom.data import molecules
from foldloom.data.tables import names_in

pytest.importorskip("rdkit", reason="RDKit is not installed: pip install 'foldloom[molecules]'")


def test_features_of_atoms_and_pairs() -> None:
    [ethanol, benzene] = data.MoleculeReader(["CCO\n", "c1ccccc1\n"])
    assert ethanol.atoms.shape == (3, molecules.ATOM_FEATURES)
    assert ethanol.pairs.shape == (3, 3, molecules.PAIR_FEATURES)
    carbon, oxygen = (molecules.ELEMENTS.index(element) for element in "CO")
    assert ethanol.atoms[:, [carbon, oxygen]].tolist() == [[1, 0], [1, 0], [0, 1]]
    assert ethanol.distances.tolist() == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
    assert benzene.atoms[:, -1].all(), "aromatic"
    assert benzene.pairs[0, 1, : len(molecules.BONDS)].tolist() == [0, 0, 0, 1]
    assert benzene.pairs[..., -1].all(), "all pairs are in one ring"
    assert not ethanol.pairs[..., -1].any()
    assert np.array_equal(benzene.pairs, benzene.pairs.transpose(1, 0, 2))
    assert np.isfinite(ethanol.atoms).all()


def test_hydrogen_bonds() -> None:
    [ethanol, ether] = data.MoleculeReader(["CCO", "COC"])
    donor, acceptor = -3, -2
    assert ethanol.atoms[:, [donor, acceptor]].tolist() == [[0, 0], [0, 0], [1, 1]]
    assert ether.atoms[:, [donor, acceptor]].tolist() == [[0, 0], [0, 1], [0, 0]]


def test_atoms_of_separate_parts_are_far_apart() -> None:
    [salt] = data.MoleculeReader(["[Na+].[Cl-]"])
    assert salt.distances[0, 1] > len(salt.atoms)
    assert np.isfinite(salt.atoms).all()


def test_tables() -> None:
    lines = ["name,solubility,smiles,active\n", '"an alcohol, small",-0.5,CCO,1\n', "no number,,C,0\n"]
    first, second = data.MoleculeReader(lines, targets=["solubility", "active"])
    assert (first.smiles, dict(first.targets)) == ("CCO", {"solubility": -0.5, "active": 1.0})
    assert dict(second.targets) == {"active": 0.0}


@pytest.mark.parametrize(
    ("line", "message"),
    [("1,C1CC", "line 3: expected a molecule in SMILES notation, not 'C1CC'"), ("high,C", "line 3: .*column 'y', not 'high'"),
     ("1,", "line 3: expected a molecule")],
)  # fmt: skip
def test_malformed_tables(line: str, message: str) -> None:
    lines = ["y,smiles", "1,C", line, "2,CC"]
    with pytest.raises(data.DataError, match=message):
        list(data.MoleculeReader(lines, targets=["y"]))
    reader = data.MoleculeReader(lines, targets=["y"], strict=False)
    assert [molecule.smiles for molecule in reader] == ["C", "CC"]
    assert reader.skipped == 1


def test_fields_over_several_lines(tmp_path: Path) -> None:
    """As spreadsheets write them, in names of columns too: with a byte order mark, and lines that end as on Windows."""
    text = 'note;"log P,\r\nmeasured";smiles\r\n"one\r\n\r\ntwo; ""x""";1;CCO\r\nan "x;2;C\r\n"\r\n";oops;CC\r\n"""";3;N\r\n'
    (tmp_path / "own.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    reader = data.MoleculeReader(tmp_path / "own.csv", targets=["log P, measured"], strict=False)
    found = [(molecule.smiles, *molecule.targets.values()) for molecule in reader]
    assert found == [("CCO", 1.0), ("C", 2.0), ("N", 3.0)]
    assert reader.skipped == 1
    with pytest.raises(data.DataError, match=r"own\.csv, line 7: expected a number or nothing .* not 'oops'"):
        list(data.MoleculeReader(tmp_path / "own.csv", targets=["log P, measured"]))


def test_a_quote_that_is_not_closed() -> None:
    lines = ["name,smiles,y", "a,CCO,1", '"b,CC,2', "c,C,3"]
    for strict in (True, False):
        reader = iter(data.MoleculeReader(lines, targets=["y"], strict=strict))
        assert next(reader).smiles == "CCO"
        with pytest.raises(data.DataError, match=r"line 3: expected the double quote before a field .* to be closed"):
            next(reader)


def test_columns_of_one_name() -> None:
    for header in ("smiles,y,y", "smiles,y,smiles", 'smiles,y,"y\n"'):
        with pytest.raises(data.DataError, match=r"line 1: expected one column '(y|smiles)', not 2: give each a name"):
            list(data.MoleculeReader([header, "C,1,2"], targets=["y"]))


def test_columns_that_are_not_there() -> None:
    with pytest.raises(
        data.DataError, match=r"^input, line 1: expected a column 'smiles' of molecules, but there are x, y"
    ):
        list(data.MoleculeReader(["x,y", "1,C"], targets=["z"]))
    table = ['name,smiles,exp,"log P, measured"', "ethanol,CCO,1.5,2"]
    with pytest.raises(data.DataError) as caught:
        list(data.MoleculeReader(table, targets=["z"]))
    assert str(caught.value) == (
        "input, line 1: expected columns 'z', but there are name, smiles, exp, log P, measured: write --set targets=exp; "
        'those of numbers are exp,"log P, measured"'
    )
    [molecule] = data.MoleculeReader(table, targets=names_in('"log P, measured",exp'))
    assert molecule.targets == {"log P, measured": 2.0, "exp": 1.5}


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters(delimiter: str) -> None:
    [molecule] = data.MoleculeReader([f"smiles{delimiter}y", f"CCO{delimiter}1.5"], targets=["y"])
    assert molecule.targets == {"y": 1.5}


def test_numbers_that_are_missing() -> None:
    table = ["smiles,y", "CCO,", "CCO,nan", "CCO,N/A", "CCO"]
    assert [molecule.targets for molecule in data.MoleculeReader(table, targets=["y"])] == [{}] * 4
    for number in ("inf", "1e999", "one"):
        with pytest.raises(data.DataError, match=r"^input, line 2: expected a number or nothing in column 'y'"):
            list(data.MoleculeReader(["smiles,y", f"CCO,{number}"], targets=["y"]))


@pytest.mark.parametrize(
    "smiles",
    ["C" * 5000, "C(" * 3000 + "C" + ")" * 3000, "[C]" * 5000, "[" * 3000, "(" * 3000, "C1CC1" * 1000, "C" * 10**7],
)
def test_molecules_that_are_too_large(smiles: str) -> None:
    """Neither time nor memory is spent on them."""
    with pytest.raises(
        data.DataError, match=r"expected a molecule (of at most 400 atoms|in SMILES notation)"
    ) as caught:
        data.MoleculeReader().parse(smiles)
    assert len(str(caught.value)) < 300
    assert len(data.MoleculeReader(most_atoms=450).parse("C" * 450).atoms) == 450


def test_where_rdkit_gives_up() -> None:
    """On chirality that it takes too long to find."""
    rings = "".join(f"[C@H]%{number}" for number in range(10, 99)) + "".join(f"[C@H]%{n}" for n in range(10, 99))
    reader = data.MoleculeReader(["CCO", rings, "C"], strict=False)
    assert [molecule.smiles for molecule in reader if molecule.smiles != rings] == ["CCO", "C"]
