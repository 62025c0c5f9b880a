"""Every model of `foldloom.models` that can be trained: under the law, one by one and planned, and it learns."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom import models
from foldloom.data import Molecule
from foldloom.models import adding, neural_module_network, parser, tagger
from foldloom.models.trees import child_sum_tree_lstm
from tests.law import assert_same, check_law
from tests.law.on_the_fly import check_on_the_fly


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --- made examples -------------------------------------------------------------------------------------------------


def tree(source: random.Random, leaves: int) -> Any:
    label = source.choice((-1, 0, 1, 2))
    if leaves == 1:
        return label, source.randrange(9)
    split = source.randint(1, leaves - 1)
    return label, tree(source, split), tree(source, leaves - split)


def trees(source: random.Random) -> list[Any]:
    return [(label % 3, *parts) for label, *parts in (tree(source, n) for n in (1, 2, 3, 5, 5, 8))]


def wide_tree(source: random.Random, depth: int) -> Any:
    label = source.randrange(3)
    if depth == 0:
        return label, source.randrange(9)
    return label, *[wide_tree(source, source.randrange(depth)) for _ in range(source.randint(1, 3))]


def syntax_tree(source: random.Random, depth: int) -> child_sum_tree_lstm.Node:
    children = [syntax_tree(source, source.randrange(depth)) for _ in range(source.randint(0, 3) if depth else 0)]
    return child_sum_tree_lstm.Node(source.randrange(6), source.randrange(3), tuple(children))


def tagged(source: random.Random, words: int) -> tagger.NumberedSentence:
    spelled = [[source.randrange(5) for _ in range(source.randint(1, 4))] for _ in range(words)]
    return tagger.NumberedSentence(
        [source.randrange(9) for _ in range(words)], spelled, [source.randrange(3) for _ in range(words)]
    )


def parsed(source: random.Random, words: int) -> parser.NumberedSentence:
    """Any tree at all, with arcs that cross too."""
    order = source.sample(range(words), words)
    heads = [-1] * words
    for position, word in enumerate(order[1:], 1):
        heads[word] = source.choice(order[:position])
    numbers = [[source.randrange(most) for _ in range(words)] for most in (9, 4, 5)]
    return parser.NumberedSentence(numbers[0], numbers[1], heads, numbers[2])


def molecule(source: random.Random, atoms: int) -> Molecule:
    """A chain of atoms."""
    numbers = np.random.default_rng(source.randrange(1000))
    distances = abs(np.subtract.outer(np.arange(atoms), np.arange(atoms)))
    pairs = numbers.normal(size=(atoms, atoms, 2))
    targets = {name: source.random() for name in source.sample(("a", "b"), source.randint(1, 2))}
    return Molecule("", numbers.normal(size=(atoms, 3)), pairs + pairs.transpose(1, 0, 2), distances, targets)  # type: ignore[arg-type]


def question(source: random.Random) -> neural_module_network.Question:
    layout = neural_module_network.Layout

    def attention(depth: int) -> neural_module_network.Layout:
        if depth == 0:
            return layout("attend", source.choice(("red", "round")))
        if source.random() < 0.5:
            return layout("re-attend", source.choice(("above", "left of")), (attention(depth - 1),))
        return layout("combine", "and", (attention(depth - 1), attention(source.randrange(depth))))

    module = source.choice(("measure", "classify"))
    picture = torch.from_numpy(np.random.default_rng(source.randrange(99)).normal(size=(4, 2, 2)))
    return neural_module_network.Question(
        picture, layout(module, "", (attention(source.randrange(3)),)), source.randrange(3)
    )


# --- the models ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    model: Callable[[], models.Trainable]
    examples: Callable[[random.Random], list[Any]]


CASES = {
    "Tree-LSTM": Case(lambda: models.TreeLSTM(9, 4, 5, 3), trees),
    "Tree-LSTM of three children": Case(
        lambda: models.TreeLSTM(9, 4, 5, 3, arity=3), lambda s: [wide_tree(s, depth) for depth in (0, 1, 2, 3, 3)]
    ),
    "TreeRNN": Case(lambda: models.TreeRNN(9, 4, 3), trees),
    "recursive tensor network": Case(lambda: models.RecursiveTensorNetwork(9, 4, 3), trees),
    "child-sum Tree-LSTM": Case(
        lambda: models.ChildSumTreeLSTM(6, 3, 3, embedding=4, hidden=5),
        lambda s: [child_sum_tree_lstm.LabelledTree(syntax_tree(s, 3), s.randrange(3)) for _ in range(6)],
    ),
    "tagger": Case(lambda: models.Tagger(9, 3, embedding=4, hidden=3), lambda s: [tagged(s, n) for n in (1, 2, 5, 5)]),
    "tagger with characters": Case(
        lambda: models.Tagger(9, 3, 5, embedding=4, character_embedding=3, spelling=2, hidden=3),
        lambda s: [tagged(s, n) for n in (1, 2, 5, 5)],
    ),
    "parser": Case(
        lambda: models.TransitionParser(9, 4, 5, embedding=4, tag_embedding=2, hidden=3, scorer=4),
        lambda s: [parsed(s, n) for n in (1, 2, 5, 6)],
    ),
    "SPINN": Case(lambda: models.SPINN(9, 3, hidden=4, tracking=3, classifier=4), trees),
    "attention adder": Case(lambda: models.AttentionAdder(4, 3), lambda s: adding.made_additions(5, 4, 9, seed=1)),
    "weave network": Case(
        lambda: models.WeaveNetwork(["a", "b"], atom_features=3, pair_features=2, size=4, summary=4),
        lambda s: [molecule(s, atoms) for atoms in (1, 2, 4, 5)],
    ),
    "neural module network": Case(
        lambda: models.NeuralModuleNetwork(
            channels=4, side=2, words=["red", "round"], relations=["above", "left of"], answers=3, features=4, hidden=3
        ),
        lambda s: [question(s) for _ in range(6)],
    ),
}

every_model = pytest.mark.parametrize("name", CASES)


def made(name: str) -> tuple[models.Trainable, list[Any]]:
    model = CASES[name].model()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.sparse = False
    return model.eval(), CASES[name].examples(random.Random(0))


def one_example(model: Any) -> Callable[[Any], Any]:
    """What the model computes of one example: a model of blocks has it inside."""
    return model.states.one_example if hasattr(model, "states") else model


@every_model
def test_law(name: str) -> None:
    model, examples = made(name)
    check = check_law if hasattr(model, "states") else check_on_the_fly
    check(one_example(model), examples, sources=list(model.parameters()))


@every_model
def test_loss_is_the_mean_of_the_losses_alone(name: str) -> None:
    model, examples = made(name)
    alone = torch.stack([model.loss([example]) for example in examples]).mean()
    assert_same((model.loss(examples), model.loss(examples[::-1])), (alone, alone))
    parameters = list(model.parameters())
    found = torch.autograd.grad(model.loss(examples), parameters, allow_unused=True)
    expected = torch.autograd.grad(alone, parameters, allow_unused=True)
    assert [gradient is None for gradient in found] == [gradient is None for gradient in expected]
    assert_same([g for g in found if g is not None], [g for g in expected if g is not None])


@every_model
def test_recordings_serve_any_batch(name: str) -> None:
    model, examples = made(name)
    assert model.can_record
    recordings = [model.record(example) for example in examples]
    for chosen in ([0, 1, 2], [3, 1]):
        planned = fl.plan([recordings[number] for number in chosen])
        assert_same(model.loss(planned), model.loss([examples[number] for number in chosen]))


@every_model
def test_kept_recordings_serve_another_instance(name: str) -> None:
    """As after a restart: recordings from disk, and weights from a file that has every tensor once."""
    model, examples = made(name)
    kept = pickle.dumps([model.record(example) for example in examples])
    weights = model.state_dict()
    places = [tensor.data_ptr() for tensor in weights.values() if tensor.numel()]
    assert len(places) == len(set(places))
    other, _ = made(name)
    other.load_state_dict(weights)
    assert_same(other.loss(fl.plan(pickle.loads(kept))), model.loss(examples))


@every_model
def test_predictions_alone_are_those_of_the_batch(name: str) -> None:
    model, examples = made(name)
    together = model.predict(examples)
    assert len(together) == len(examples)
    for number, example in enumerate(examples):
        [alone] = model.predict([example])
        if isinstance(alone, torch.Tensor | float):
            assert_same(torch.as_tensor(together[number]), torch.as_tensor(alone))
        else:
            assert together[number] == alone


@every_model
def test_learns(name: str) -> None:
    """Ten steps on a few examples: every weight that has a part in them has a gradient, and the loss falls."""
    model, examples = made(name)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(10):
        loss = model.loss(examples)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in model.parameters())


@every_model
def test_answers_need_no_labels(name: str) -> None:
    unlabelled: dict[str, Callable[[Any], Any]] = {
        "tagger": lambda s: tagger.NumberedSentence(s.words),
        "tagger with characters": lambda s: tagger.NumberedSentence(s.words, s.spelled),
        "parser": lambda s: parser.NumberedSentence(s.words, s.tags),
        "child-sum Tree-LSTM": lambda t: child_sum_tree_lstm.LabelledTree(t.root),
        "attention adder": lambda a: adding.Addition(a.rows),
        "weave network": lambda m: Molecule("", m.atoms, m.pairs, m.distances),
        "neural module network": lambda q: neural_module_network.Question(q.picture, q.layout),
    }
    without = unlabelled.get(name, lambda tree: (-1, *tree[1:]))
    model, examples = made(name)
    found, expected = (model.predict(some) for some in ([without(example) for example in examples], examples))
    assert str(found) == str(expected)


@pytest.mark.parametrize("name", ["parser", "SPINN"])
def test_law_where_own_decisions_lead(name: str) -> None:
    model, examples = made(name)
    if isinstance(model, models.SPINN):
        model.own_transitions = True
    else:
        model.explore = True  # type: ignore[assignment]
    assert not model.can_record
    check_on_the_fly(model, examples, sources=list(model.parameters()), records=False)
    assert model.loss(examples).isfinite()


def test_law_of_parses() -> None:
    model, examples = made("parser")
    check_on_the_fly(model.answer, examples, records=False)  # type: ignore[arg-type]
