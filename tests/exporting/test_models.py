"""The models of the library, exported from a few examples, answer as they do in PyTorch on many that nobody knew of."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom import models
from foldloom.data import Molecule
from foldloom.exporting.files import export_to
from foldloom.models.adding import made_additions
from foldloom.models.parser import NumberedSentence as ParsedSentence
from foldloom.models.questions import answered, answered_together
from foldloom.models.tagger import NumberedSentence
from foldloom.models.trees.child_sum_tree_lstm import LabelledTree, Node
from foldloom.runtime import Model
from tests.exporting.programs import labelled_tree

pytest.importorskip("onnxruntime", reason="exported files are run by ONNX Runtime: pip install 'foldloom[runtime]'")
pytest.importorskip("onnxscript", reason="files are written with onnxscript: pip install 'foldloom[export]'")

UNSEEN = 200
CHILDREN = 3


@dataclass(frozen=True)
class Case:
    """``shown`` are for exporting; cells that take a list of operands must be shown each length of it."""

    make: Callable[[], models.Trainable]
    shown: Callable[[], list[Any]]
    unseen: Callable[[random.Random], Any]


def node(source: random.Random, depth: int = 0) -> Node:
    children = source.randint(0, CHILDREN) if depth < 4 else 0
    return Node(source.randrange(6), source.randrange(3), tuple([node(source, depth + 1) for _ in range(children)]))


def nested(children: int) -> LabelledTree:
    return LabelledTree(Node(0, 0, (Node(1, 1, (Node(2),)), *[Node(3)] * (children - 1))))


def sentence(source: random.Random, words: int | None = None) -> NumberedSentence:
    words = source.randint(1, 12) if words is None else words
    spelled = [[source.randrange(26) for _ in range(source.randint(1, 9))] for _ in range(words)]
    return NumberedSentence([source.randrange(30) for _ in range(words)], spelled)


def molecule(atoms: int, seed: int) -> Molecule:
    """A ring of atoms, so that each is in at most five pairs that are near."""
    numbers = np.random.default_rng(seed)
    apart = abs(np.subtract.outer(np.arange(atoms), np.arange(atoms)))
    pairs = numbers.normal(size=(atoms, atoms, 2)).astype(np.float32)
    return Molecule(
        "",
        numbers.normal(size=(atoms, 3)).astype(np.float32),
        pairs + pairs.transpose(1, 0, 2),
        np.minimum(apart, atoms - apart),
    )


def random_molecule(source: random.Random) -> Molecule:
    return molecule(source.randint(1, 12), source.randrange(10**6))


CASES = {
    "binary Tree-LSTM": Case(lambda: models.TreeLSTM(30, 5, 6), list, labelled_tree),
    "child-sum Tree-LSTM": Case(
        lambda: models.ChildSumTreeLSTM(6, 3, 4, embedding=5, hidden=6),
        lambda: [nested(children) for children in range(1, CHILDREN + 1)],
        lambda source: LabelledTree(node(source)),
    ),
    "tagger with characters": Case(
        lambda: models.Tagger(30, 4, 26, embedding=6, character_embedding=4, spelling=3, hidden=5),
        lambda: [sentence(random.Random(0), 3)],
        sentence,
    ),
    "weave": Case(
        lambda: models.WeaveNetwork(["a", "b"], atom_features=3, pair_features=2, size=4, summary=5),
        lambda: [molecule(atoms, 0) for atoms in range(1, 6)],
        random_molecule,
    ),
    "feed-forward attention": Case(
        lambda: models.AttentionAdder(6, 5),
        lambda: made_additions(1, 4, 4, seed=0),
        lambda source: made_additions(1, 4, 60, seed=source.randrange(10**6))[0],
    ),
}


def assert_answers(found: list[Any], expected: Any) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_unseen_shapes(name: str, tmp_path: Path) -> None:
    """200 examples: together, some of them alone, and through torch.export; the model is left in training mode as it was."""
    torch.manual_seed(0)
    case, source = CASES[name], random.Random(1)
    model, unseen = case.make(), [case.unseen(source) for _ in range(UNSEEN)]
    paths = [tmp_path / "model.onnx", tmp_path / "model.pt2"]
    export_to(model, paths, case.shown(), parts=1)
    assert model.training
    expected = model.eval().predict(unseen)
    exported, through_torch = map(Model, paths)
    asked = unseen
    if exported.description.program is None:
        asked = [fl.record(model.to_export(), example) for example in unseen]
    assert_answers(exported(asked), expected)
    assert_answers([exported([example])[0] for example in asked[:10]], expected[:10])
    assert_answers(through_torch(asked), expected)


def test_models_of_blocks_take_trees_without_torch(tmp_path: Path) -> None:
    """In float64 too, and with a merge of more than two, whose missing children are zeros."""
    model = models.TreeLSTM(9, 4, 5, arity=3).double().eval()
    fl.export(model, tmp_path / "model.onnx")
    trees = [(-1, (-1, 1), (-1, 2), (-1, 3)), (-1, (-1, (-1, 4), (-1, 5))), (-1, 6)]
    found = Model(tmp_path / "model.onnx")(trees)
    assert [answer.dtype for answer in found] == [np.float64] * 3
    assert_answers(found, model.predict(trees))


@pytest.mark.parametrize("network", [models.TreeRNN, models.RecursiveTensorNetwork])
def test_recursive_networks(network: Any, tmp_path: Path) -> None:
    model = network(30, 4).eval()
    trees = [labelled_tree(random.Random(seed)) for seed in range(9)]
    export_to(model, [tmp_path / "model.onnx"], parts=1)
    assert_answers(Model(tmp_path / "model.onnx")(trees), model.predict(trees))


def test_a_recording_of_another_instance_is_known_by_its_paths(tmp_path: Path) -> None:
    """As after a restart: the file, and the model made anew."""
    model = models.SPINN(30, 5, hidden=4, tracking=3, classifier=4).eval()
    trees = [labelled_tree(random.Random(seed), leaves) for seed, leaves in enumerate((3, 1, 2, 7))]
    export_to(model, [tmp_path / "model.onnx"], trees[:1], parts=1)
    other = models.SPINN(30, 5, hidden=4, tracking=3, classifier=4).eval()
    recordings = [fl.record(other.to_export(), tree) for tree in trees]
    assert_answers(Model(tmp_path / "model.onnx")(recordings), model.predict(trees))


def test_a_parser_asks_its_file_for_each_decision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.TransitionParser(9, 4, 5, embedding=4, tag_embedding=2, hidden=3, scorer=4).eval()
    sentences = [
        ParsedSentence([1, 2, 3], [0, 1, 2]),
        ParsedSentence([4], [3]),
        ParsedSentence([1, 5, 2, 8, 3, 7], [0] * 6),
    ]
    questions: list[Any] = []

    def noted(question: Any) -> Any:
        questions.append(question)
        return model.reply(question)

    answered(model.asking(sentences[0]), noted)
    export_to(model, [tmp_path / "model.onnx"], questions, parts=1)
    file = Model(tmp_path / "model.onnx")

    def replies(questions: list[Any]) -> list[Any]:
        with torch.no_grad():
            results = file(fl.record_each(model.reply, questions))
        return [[torch.from_numpy(row) for row in r] if isinstance(r, list) else torch.from_numpy(r) for r in results]

    assert answered_together([model.asking(sentence) for sentence in sentences], replies) == model.predict(sentences)
