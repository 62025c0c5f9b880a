"""The real files, where they are present: all of them can be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from foldloom import data

DATA = Path(os.environ.get("FOLDLOOM_DATA", Path(__file__).parents[3] / "shared" / "data"))
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no data at {DATA}: set FOLDLOOM_DATA to the folder that has sst, ud_ewt, ..."
)


@pytest.mark.parametrize(
    ("reader", "count"),
    [
        (data.SentimentReader(DATA / "sst" / "dev.txt"), 1_101),
        (data.ConlluReader(DATA / "ud_ewt" / "en_ewt-ud-dev.conllu.gz"), 2_001),
        (data.TaggedReader(DATA / "wikiner" / "dev.txt"), 1_696),
        (data.ArithmeticReader(DATA / "arithmetic" / "arithmetic_sign5_10k.tsv"), 10_000),
        (data.ArithmeticReader(DATA / "arithmetic" / "arithmetic_simple5_10k.tsv"), 10_000),
    ],
    ids=["sst", "ud_ewt", "wikiner", "arithmetic sign", "arithmetic value"],
)
def test_counts(reader: data.Reader[object], count: int) -> None:
    assert sum(1 for _ in reader) == count


def test_nodes_of_the_treebank() -> None:
    trees = list(data.SentimentReader(DATA / "sst" / "dev.txt"))
    assert sum(1 for tree in trees for _ in tree) == 41_447


def test_molecules() -> None:
    pytest.importorskip("rdkit", reason="RDKit is not installed: pip install 'foldloom[molecules]'")
    molecules = list(data.MoleculeReader(DATA / "molecules" / "SAMPL.csv", targets=["expt"]))
    assert len(molecules) == 642
    assert all("expt" in molecule.targets for molecule in molecules)


def test_word_vectors() -> None:
    vectors = data.WordVectors.read(DATA / "glove" / "vocab.txt", DATA / "glove" / "glove.sst.100d.f16.npy")
    assert vectors.size == 100
    assert vectors.row("Good") == vectors.row("good") is not None
