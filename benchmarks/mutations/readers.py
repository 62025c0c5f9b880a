"""Files of data, of every reader, plain and gzipped; and word vectors."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mutations.changing import changed_bytes
from benchmarks.mutations.kinds import Kind
from foldloom import data
from foldloom.data.tables import names_in

READERS: dict[str, Callable[..., data.Reader[Any]]] = {
    "trees": data.TreeReader,
    "sentiment": data.SentimentReader,
    "conllu": data.ConlluReader,
    "tagged": data.TaggedReader,
    "smiles": data.MoleculeReader,
    "table": lambda path, **settings: data.MoleculeReader(path, targets=names_in('y,"z, too"'), **settings),
    "json": lambda path, **settings: data.JsonReader(path, fields={"text": str, "stars": int}, **settings),
    "python": data.PythonReader,
    "expressions": data.ExpressionReader,
    "arithmetic": data.ArithmeticReader,
}

TEXTS = {
    "trees": "( (S\n    (NP-SBJ (PRP We))\n    (VP (VBP read) (NP (NNS books))) ))\n\n(S (NP x))\n" * 3,
    "sentiment": "(3 (2 a) (4 (2 pure) (4 jöy)))\n(1 dull)\n" * 5,
    "conllu": "# text = She sleeps\n1\tShe\tshe\tPRON\tPRP\tCase=Nom\t2\tnsubj\t_\t_\n2-3\tsleeps\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tsleeps\tsleep\tVERB\t_\t_\t0\troot\t_\t_\n2.1\tx\tx\tX\t_\t_\t_\t_\t_\t_\n\n" * 3,
    "tagged": "the|DET dog|NOUN sleeps|VERB\neither|or|CONJ wäy|NOUN\n" * 5,
    "smiles": "CCO\nc1ccccc1\n[Na+].[Cl-]\nN[C@@H](C)C(=O)O\nF/C=C/F\nCC(C)(C)c1ccc2[nH]ccc2c1\n",
    "table": 'name,smiles,y,"z, too"\nethanol,CCO,1.5,0\n"benzene, pure",c1ccccc1,,1\nx,N[C@@H](C)C(=O)O,-1e-3,\n',
    "json": '{"text": "good", "stars": 4}\n{"text": "bäd\\u00e9", "stars": -1, "more": [1, {"a": null}, 2.5e3]}\n' * 4,
    "python": "def half(x):\n    # a comment\n    return x / 2 if x is not None else f'{x + 1!r}'\n\nclass A(B):\n    y: int = 3 ** -2\n",
    "expressions": "x = (a + 1) * 2\nf(x, y)\nif not x and y in z or -w <= 3:\n    g(lambda q: q @ 'ä')\n",
    "arithmetic": "( - ( 1 ( + ( 2 7 ) ) ) )\n-\t( - ( 1 10 ) )\n-9\t( - ( 1 10 ) )\n5\n( * ( ( + ( 1 2 ) ) -3 ) )\n",
}


class Files(Kind):
    """Read to the end, and then again without what is malformed."""

    def make_originals(self, folder: Path) -> None:
        for name, text in TEXTS.items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
            (folder / f"{name}.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))

    def mutate(self, original: Path, source: random.Random, target: Path) -> None:
        content = original.read_bytes()
        if original.suffix == ".gz" and source.random() < 0.7:
            # What is damaged is mostly found out by its checksum: change what is packed, too.
            content = gzip.compress(changed_bytes(gzip.decompress(content), source), mtime=0)
            target.write_bytes(content)
        else:
            target.write_bytes(changed_bytes(content, source))

    def use(self, path: Path) -> None:
        reader = READERS[path.name.partition(".")[0]]
        loose = reader(path, strict=False)
        count = None
        try:
            count = len(list(loose))
        finally:
            strict = list(reader(path))
            assert count is None or loose.skipped or len(strict) == count, "what is not skipped is read"


class Vectors(Kind):
    def make_originals(self, folder: Path) -> None:
        """With a row for each line of this file, which serves as the words."""
        rows = len(Path(__file__).read_text().splitlines())
        np.save(folder / "vectors.npy", np.zeros((rows, 3), np.float32))

    def use(self, path: Path) -> None:
        vectors = data.WordVectors.read(Path(__file__), path)
        assert np.isfinite(vectors.table).all()
