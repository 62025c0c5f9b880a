"""The tasks: sizes, data and first weights, in files that every peer can read."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.corpora import (
    TaggedWords,
    character_task,
    headed_words,
    labelled_trees,
    parsing_task,
    tagged_words,
    tagging_task,
)
from benchmarks.trees import Tree, as_arrays, random_tree
from examples.bilstm_tagger import BiLSTMTagger
from examples.character_tagger import CharacterTagger
from examples.transition_parser import TransitionParser
from examples.tree_lstm import TreeLSTM
from foldloom.data import MoleculeReader
from foldloom.data.molecules import ATOM_FEATURES, PAIR_FEATURES
from foldloom.data.structures import Molecule
from foldloom.models import WeaveNetwork

LABELS = 5
SCORER = 32
"""The hidden layer of taggers."""


@dataclass(frozen=True)
class Made:
    """A task as it is measured."""

    examples: str
    """What one is called."""
    data: Mapping[str, np.ndarray]
    model: nn.Module
    """The plain program, whose first weights all peers start from."""
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Setup:
    name: str
    title: str
    task: str
    """The program that peers write for it."""
    make: Callable[[Path, int], Made]
    """Of the folder with real data, and how many examples are wanted."""
    count: int = 2048
    """At most so many examples."""
    most_rounds: int = 100
    """More would take minutes where a batch takes seconds."""
    checked: int = 16
    """Examples whose losses are compared."""


@dataclass(frozen=True)
class Files:
    """A task in files, and the sizes of its examples."""

    setup: Setup
    made: Made
    data: Path
    weights: Path

    @property
    def example_sizes(self) -> list[int]:
        sizes: list[int] = self.made.data["size"].tolist()
        return sizes


def write(setup: Setup, data: Path, folder: Path) -> Files:
    torch.manual_seed(0)
    made = setup.make(data, setup.count)
    files = Files(setup, made, folder / f"{setup.name}-data.npz", folder / f"{setup.name}-weights.npz")
    _save(files.data, made.data)
    _save(files.weights, {name: value.numpy() for name, value in made.model.state_dict().items()})
    return files


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    np.savez(path, allow_pickle=False, **arrays)


# --- trees -------------------------------------------------------------------------------------------------------


def _treebank(embedding: int, hidden: int, *, at_every_node: bool) -> Callable[[Path, int], Made]:
    def make(folder: Path, count: int) -> Made:
        trees, words = labelled_trees(folder if (folder / "sst").is_dir() else None, count)
        return _trees(trees[:count], words, embedding, hidden, at_every_node=at_every_node)

    return make


def _trees(trees: list[Tree], words: int, embedding: int, hidden: int, *, at_every_node: bool) -> Made:
    sizes = {"words": words, "embedding": embedding, "hidden": hidden, "at_every_node": int(at_every_node)}
    return Made("trees", as_arrays(trees), TreeLSTM(words, embedding, hidden, LABELS), sizes)


def _iclr(*, shared_shape: bool) -> Callable[[Path, int], Made]:
    """The set-up of Looks et al., ICLR 2017: trees of 128 leaves and states of 1,024."""
    words = 1000

    def reworded(tree: Tree, source: random.Random) -> Tree:
        if tree.left is None:
            return Tree(source.randrange(LABELS), source.randrange(words))
        left, right = reworded(tree.left, source), reworded(tree.right, source)
        return Tree(source.randrange(LABELS), left=left, right=right)

    def make(folder: Path, count: int) -> Made:
        source = random.Random(0)
        first = random_tree(source, 128, words, LABELS)
        if shared_shape:
            trees = [reworded(first, source) for _ in range(count)]
        else:
            trees = [random_tree(source, 128, words, LABELS) for _ in range(count)]
        return _trees(trees, words, 300, 1024, at_every_node=False)

    return make


# --- sentences ---------------------------------------------------------------------------------------------------


def _tagged(folder: Path) -> list[TaggedWords]:
    return tagged_words(folder if (folder / "wikiner").is_dir() else None)


def _tagger(embedding: int, hidden: int) -> Callable[[Path, int], Made]:
    def make(folder: Path, count: int) -> Made:
        examples, words, tags = tagging_task(_tagged(folder))
        sentences = examples[:count]
        data = {
            "word": [word for sentence in sentences for word in sentence.words],
            "tag": [tag for sentence in sentences for tag in sentence.tags],
            "size": [len(sentence.words) for sentence in sentences],
        }
        sizes = {"words": words, "embedding": embedding, "hidden": hidden, "scorer": SCORER, "tags": tags}
        return Made("sentences", _as_arrays(data), BiLSTMTagger(**sizes), sizes)

    return make


def _character_tagger(embedding: int, hidden: int) -> Callable[[Path, int], Made]:
    def make(folder: Path, count: int) -> Made:
        examples, words, characters, tags = character_task(_tagged(folder))
        sentences = examples[:count]
        tokens = [token for sentence in sentences for token in sentence]
        data = {
            "word": [-1 if token.word is None else token.word for token in tokens],
            "tag": [token.tag for token in tokens],
            "character": [character for token in tokens for character in token.characters],
            "spelled": [len(token.characters) for token in tokens],
            "size": [len(sentence) for sentence in sentences],
        }
        sizes = {"words": words, "characters": characters, "embedding": embedding, "character_embedding": 20}
        sizes |= {"hidden": hidden, "scorer": SCORER, "tags": tags}
        return Made("sentences", _as_arrays(data), CharacterTagger(**sizes), sizes)

    return make


def _parser(folder: Path, count: int) -> Made:
    examples, words, relations = parsing_task(headed_words(folder if (folder / "ud_ewt").is_dir() else None))
    sentences = examples[:count]
    data = {
        "word": [word for sentence in sentences for word in sentence.words],
        "head": [head for sentence in sentences for head in sentence.heads],
        "relation": [relation for sentence in sentences for relation in sentence.relations],
        "size": [len(sentence.words) for sentence in sentences],
    }
    sizes = {"words": words, "embedding": 125, "hidden": 125, "layers": 2, "scorer": 100, "relations": relations}
    return Made("sentences", _as_arrays(data), TransitionParser(**sizes), sizes)


def _as_arrays(columns: Mapping[str, list[int]]) -> dict[str, np.ndarray]:
    return {name: np.array(column) for name, column in columns.items()}


# --- molecules ---------------------------------------------------------------------------------------------------


def _weave(folder: Path, count: int) -> Made:
    path = folder / "molecules" / "delaney-processed.csv"
    target = "measured log solubility in mols per litre"
    read = MoleculeReader(path, targets=[target]) if path.exists() else None
    found = _made_molecules(count, target) if read is None else [*itertools.islice(read, count)]
    data = {
        "atom": np.concatenate([molecule.atoms for molecule in found]),
        "pair": np.concatenate([molecule.pairs.reshape(-1, PAIR_FEATURES) for molecule in found]),
        "distance": np.concatenate([molecule.distances.reshape(-1) for molecule in found]),
        "target": np.array([molecule.targets[target] for molecule in found]),
        "size": np.array([len(molecule.atoms) for molecule in found]),
    }
    sizes = {"size": 64, "layers": 2}
    model = WeaveNetwork((target,), size=sizes["size"], layers=sizes["layers"], dropout=0.0)
    return Made("molecules", data, model, sizes)


def _made_molecules(count: int, target: str) -> list[Molecule]:
    """Random trees of as many atoms as small molecules have, with random features."""
    source = np.random.default_rng(0)
    made = []
    for size in np.clip(source.normal(13, 6, count).round(), 2, 40).astype(int):
        distances = np.full((size, size), size)
        np.fill_diagonal(distances, 0)
        for atom in range(1, size):
            bonded = source.integers(atom)
            distances[atom, :atom] = distances[:atom, atom] = distances[bonded, :atom] + 1
        pairs = source.random((size, size, PAIR_FEATURES), np.float32)
        atoms = source.random((size, ATOM_FEATURES), np.float32)
        made.append(Molecule("", atoms, pairs + pairs.transpose(1, 0, 2), distances, {target: float(source.normal())}))
    return made


# --- all ---------------------------------------------------------------------------------------------------------


def _tree_lstm(name: str, embedding: int, hidden: int, *, at_every_node: bool) -> Setup:
    where = "at every node" if at_every_node else "at the root"
    title = f"Tree-LSTM, embedding {embedding}, hidden {hidden}, loss {where}"
    return Setup(name, title, "tree-lstm", _treebank(embedding, hidden, at_every_node=at_every_node))


SETUPS = {
    setup.name: setup
    for setup in (
        _tree_lstm("tree-lstm", 300, 150, at_every_node=True),
        _tree_lstm("tree-lstm-256", 256, 256, at_every_node=True),
        _tree_lstm("tree-lstm-root", 300, 150, at_every_node=False),
        _tree_lstm("tree-lstm-root-256", 256, 256, at_every_node=False),
        Setup("tagger", "BiLSTM tagger, embedding 128, hidden 200", "tagger", _tagger(128, 200)),
        Setup(
            "tagger-characters",
            "BiLSTM tagger with characters, embedding 128, hidden 50",
            "tagger-characters",
            _character_tagger(128, 50),
        ),
        Setup(
            "tagger-characters-256",
            "BiLSTM tagger with characters, embedding 256, hidden 256",
            "tagger-characters",
            _character_tagger(256, 256),
        ),
        Setup("parser", "Greedy transition parser, embedding 125, two layers of hidden 125", "parser", _parser),
        Setup("weave", "Weave convolutions over molecules, two layers of 64", "weave", _weave, count=1024),
        Setup(
            "iclr-shared",
            "Tree-LSTM, trees of 128 leaves and one shape, hidden 1,024, loss at the root",
            "tree-lstm",
            _iclr(shared_shape=True),
            count=512,
            most_rounds=3,
            checked=2,
        ),
        Setup(
            "iclr-different",
            "Tree-LSTM, trees of 128 leaves and all shapes different, hidden 1,024, loss at the root",
            "tree-lstm",
            _iclr(shared_shape=False),
            count=512,
            most_rounds=3,
            checked=2,
        ),
    )
}
