"""What each model promises beyond the law: its knobs, its inputs, and agreement with a plain formula."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom import data, models
from foldloom.data.python_source import HIDDEN, hide_operator
from foldloom.errors import ArgumentError
from foldloom.models import adding
from foldloom.models.trees import child_sum_tree_lstm, tree_classifier
from foldloom.models.words import UNKNOWN, WordTable
from tests.models.test_law import made, molecule


def test_trees_of_a_treebank_by_number() -> None:
    words, labels = data.Vocabulary.of(["a", "joy"], unknown=True), data.Vocabulary(list("01234"))
    [tree] = data.SentimentReader(["(3 (2 a) (4 (2 new) (4 joy)))"])
    assert tree_classifier.numbered(tree, words, labels) == (3, (2, 1), (4, (2, 0), (4, 2)))


def test_expressions_by_number() -> None:
    [expression] = data.ArithmeticReader(["( - ( 1 ( + ( 2 -2 ) ) ) )"])
    tokens = data.Vocabulary(sorted(tree_classifier.tokens_of(expression)))
    assert tokens.names == ["+", "-", "-2", "1", "2"]
    inner = (1, (-1, 0), (-1, (2, 4), (0, 2)))
    assert tree_classifier.numbered_expression(expression, tokens) == (2, (-1, 1), (-1, (2, 3), inner))


def test_given_vectors() -> None:
    vectors = np.arange(12.0).reshape(3, 4)
    for model in (models.TreeLSTM(3, 4, 5, vectors=vectors), models.TreeRNN(3, 4, vectors=vectors)):
        [table] = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        assert table.weight.tolist() == vectors.tolist()


@pytest.mark.parametrize("name", ["Tree-LSTM", "child-sum Tree-LSTM", "tagger", "parser", "SPINN", "weave network"])
def test_dropout_is_of_training_alone(name: str) -> None:
    model, examples = made(name)
    model = model.double()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    assert model.loss(examples).item() == model.loss(examples).item()
    model.train()
    assert model.loss(examples).item() != model.loss(examples).item()


def test_missing_children_are_zeros() -> None:
    """A node of one child in a tree of three: the gates see that child and nothing else."""
    model = models.TreeLSTM(4, 3, 2, 2, arity=3).eval()
    leaf, merge = (model.states.cells[name].function for name in ("Leaf", "Merge"))
    zeros = torch.zeros(1, 2)
    expected = merge(leaf(torch.tensor([3])), (zeros, zeros), (zeros, zeros))[0]
    rows = model.results([(0, (1, 3))])
    torch.testing.assert_close(rows.values[-1:], expected)
    assert rows.labels.tolist() == [1, 0]


def test_tensor_network_formula() -> None:
    model = models.RecursiveTensorNetwork(4, 3)
    word, compose = (model.states.cells[name] for name in ("Word", "ComposeByTensor"))
    both = torch.cat((word.embed.weight[1], word.embed.weight[2])).tanh()  # type: ignore[index]
    forms = torch.stack([both @ compose.tensor[k] @ both for k in range(3)])  # type: ignore[index]
    expected = torch.tanh(forms + compose.linear(both))
    torch.testing.assert_close(model.results([(0, (0, 1), (0, 2))]).values[-1], expected)


def test_child_sum_does_not_know_the_order_of_children_but_their_roles() -> None:
    node, tree = child_sum_tree_lstm.Node, child_sum_tree_lstm.LabelledTree
    model = models.ChildSumTreeLSTM(4, 3, 2).eval()
    left, right = node(1, 1), node(2, 2, (node(3),))
    first, turned, swapped = model.predict(
        [
            tree(node(0, 0, children))
            for children in ((left, right), (right, left), (node(1, 2), node(2, 1, (node(3),))))
        ]
    )
    torch.testing.assert_close(first, turned)
    assert not torch.allclose(first, swapped)


def test_syntax_trees_by_number() -> None:
    [[expression]] = data.ExpressionReader(["a + len(b)"])
    hidden, kind = hide_operator(expression.tree, 0)
    assert kind == "Add"
    assert set(child_sum_tree_lstm.kinds_of(hidden)) == {
        "BinOp", "Name", "Name a", HIDDEN, "Call", "Name len", "Name b"
    }  # fmt: skip
    kinds = data.Vocabulary(["<unknown>", "BinOp", HIDDEN, "Name", "Name len", "Call"])
    roles = data.Vocabulary(["<unknown>", "left", "right"])
    node = child_sum_tree_lstm.numbered(hidden, kinds, roles)
    assert [(child.kind, child.role) for child in node.children] == [(3, 1), (2, 0), (5, 2)]
    assert [child.kind for child in node.children[2].children] == [4, 3]


def test_rare_words_are_forgotten_in_training() -> None:
    table = WordTable(3, 2)
    table.forget_rare([0, 1, 10**9], alpha=1.0)
    words = torch.tensor([1] * 400 + [2] * 400)
    forgotten = (table(words) == table.weight[UNKNOWN]).all(1)
    assert 100 < int(forgotten[:400].sum()) < 300
    assert not forgotten[400:].any()
    assert not (table.eval()(words) == table.weight[UNKNOWN]).all(1).any()
    assert "forgetting" in table.state_dict()


def test_parses_are_not_planned() -> None:
    model, examples = made("parser")
    planned = fl.plan([model.record(examples[0])])
    with pytest.raises(ArgumentError, match=r"give model.predict the sentences"):
        model.predict(planned)


def test_parses_are_trees() -> None:
    model, examples = made("parser")
    for sentence, parse in zip(examples, model.predict(examples), strict=True):
        for word in range(len(sentence.words)):
            seen = set()
            while word >= 0:
                assert word not in seen
                seen.add(word)
                word = parse.heads[word]


def test_spinn_reads_words_alone_by_its_own_transitions() -> None:
    model = models.SPINN(9, 3, own_transitions=True).eval()
    balanced = (0, (0, (0, 1), (0, 2)), (0, (0, 3), (0, 4)))
    leaning = (0, (0, (0, (0, 1), (0, 2)), (0, 3)), (0, 4))
    first, second = model.predict([balanced, leaning])
    torch.testing.assert_close(first, second)
    model.own_transitions = False
    first, second = model.predict([balanced, leaning])
    assert not torch.allclose(first, second)


def test_additions() -> None:
    examples = adding.made_additions(20, 5, 30, seed=3)
    for example in examples:
        assert 5 <= len(example.rows) <= 30
        marked = example.rows[example.rows[:, 1] == 1, 0]
        assert len(marked) == 2
        assert example.target == pytest.approx(0.5 + marked.sum() / 4)
        assert 0 <= example.target <= 1
    assert str(adding.made_additions(3, 5, 9, seed=1)) == str(adding.made_additions(3, 5, 9, seed=1))


def test_weave_sees_no_pairs_that_are_far_apart() -> None:
    model = models.WeaveNetwork(["a"], atom_features=3, pair_features=2, farthest=2).double().eval()
    chain = molecule(random.Random(0), 6)
    near, far = (data.Molecule("", chain.atoms, chain.pairs.copy(), chain.distances) for _ in range(2))
    near.pairs[0, 2] = near.pairs[2, 0] = 9
    far.pairs[0, 3] = far.pairs[3, 0] = 9
    plain, with_near, with_far = model.predict([chain, near, far])
    torch.testing.assert_close(plain, with_far)
    assert not torch.allclose(plain, with_near)


def test_weave_of_classes_and_of_measures() -> None:
    chain = molecule(random.Random(0), 4)
    classes = models.WeaveNetwork(["a", "b"], atom_features=3, pair_features=2, classes=True).double().eval()
    assert ((classes.predict([chain]) > 0) & (classes.predict([chain]) < 1)).all()
    measures = models.WeaveNetwork(["a", "b"], atom_features=3, pair_features=2, mean=[100.0, 0.0], spread=[1.0, 1e-9])
    first, second = measures.double().eval().predict([chain])[0].tolist()
    assert abs(first - 100) < 50
    assert abs(second) < 1e-6


def test_unknown_targets_count_for_nothing() -> None:
    model = models.WeaveNetwork(["a", "b"], atom_features=3, pair_features=2).double().eval()
    chain = molecule(random.Random(0), 4)

    def with_targets(**targets: float) -> data.Molecule:
        return data.Molecule("", chain.atoms, chain.pairs, chain.distances, targets)

    alone = [model.loss([with_targets(a=1.0)]), model.loss([with_targets(b=2.0)])]
    torch.testing.assert_close(model.loss([with_targets(a=1.0, b=2.0)]), alone[0] + alone[1])
    assert model.loss([with_targets()]).item() == 0
