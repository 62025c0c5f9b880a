"""The models of `foldloom.models`: under the law, correct against a plain formula, and as short as they claim to be."""

from __future__ import annotations

import ast
import io
import random
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom import models
from tests.law import assert_same, check_law, gradients

FOLDER = Path(models.__file__).parent


def code_lines(path: Path) -> int:
    """Lines that have code on them: no blank lines, comments or docstrings."""
    text = path.read_text()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    layout = (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in layout for line in range(token.start[0], token.end[0] + 1)}
    return len(code - prose)


@pytest.mark.parametrize(
    ("name", "most"), [("trees/tree_lstm", 60), ("attention", 15), ("weave", 35), ("hierarchical", 30)]
)
def test_models_are_short(name: str, most: int) -> None:
    assert code_lines(FOLDER / f"{name}.py") <= most


def labelled_tree(source: random.Random, leaves: int) -> Any:
    label = source.randrange(5)
    if leaves == 1:
        return label, source.randrange(20)
    split = source.randint(1, leaves - 1)
    return label, labelled_tree(source, split), labelled_tree(source, leaves - split)


def test_tree_lstm() -> None:
    source = random.Random(0)
    trees = [labelled_tree(source, source.randint(1, 9)) for _ in range(12)]
    model = models.TreeLSTM(20, 6, 4).double()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.sparse = False
    check_law(model.states.one_example, trees, sources=list(model.parameters()))
    scores, labels = model(trees)
    assert scores.shape == (len(labels), 5)
    kept = [model.record(tree) for tree in trees]
    assert_same(model(model.plan(kept))[0], scores)


class OnTheFly(nn.Module):
    """The same Tree-LSTM as ordinary code that calls cells."""

    def __init__(self, leaf: nn.Module, merge: nn.Module) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(leaf), fl.cell(merge)

    def forward(self, tree: Any) -> list[Any]:
        states: list[Any] = []

        def visit(node: Any) -> Any:
            state = self.leaf(node[1]) if len(node) == 2 else self.merge(visit(node[1]), visit(node[2]))
            states.append(state[0])
            return state

        visit(tree)
        return states


def test_tree_lstm_on_the_fly_is_the_same() -> None:
    source = random.Random(1)
    trees = [labelled_tree(source, source.randint(1, 9)) for _ in range(12)]
    model = models.TreeLSTM(20, 6, 4).double()
    cells = model.states.cells
    cells["Leaf"].embed.sparse = False
    code = OnTheFly(cells["Leaf"].function, cells["Merge"].function)  # type: ignore[arg-type]
    from_blocks = model.states(trees)[1]["state"].values
    from_code = fl.batch(code, stack=True)(trees).values
    assert_same(from_blocks, from_code)
    parameters = list(code.parameters())
    assert_same(gradients(from_blocks, parameters), gradients(from_code, parameters))
    code_plan = fl.plan([fl.record(code, tree) for tree in trees])
    assert model.plan(trees).statistics() == code_plan.statistics()


def test_feed_forward_attention() -> None:
    attention = models.feed_forward_attention(3, hidden=4)
    model = fb.compile(fb.Map(fb.Vector(3)) >> attention).double()
    source = torch.Generator().manual_seed(0)
    sequences = [torch.randn(n, 3, generator=source, dtype=torch.float64) * 50 for n in (1, 2, 3, 7, 20)]
    examples = [list(sequence.numpy()) for sequence in sequences]
    score = model.cells["Sequential"].function
    expected = [(torch.softmax(score(sequence), 0) * sequence).sum(0) for sequence in sequences]
    assert_same(model(examples), torch.stack(expected))
    parameters = list(model.parameters())
    assert_same(gradients(model(examples), parameters), gradients(torch.stack(expected), parameters))
    check_law(model.one_example, [*examples, []], sources=parameters)
    assert model([[]]).tolist() == [[0, 0, 0]]
    # One score, one beginning, five levels for the longest, one end: not more for all lengths together.
    assert model.plan(examples).statistics().steps <= 3 + 5 + 4


def test_attention_over_all_nodes_of_a_tree() -> None:
    """The states of all nodes, children before parents, and attention over them."""
    tree = fb.ForwardDeclaration(fb.PyObjectType(), (2, fb.SequenceType(2)))
    leaf = fb.Vector(2) >> fb.AllOf(fb.Identity(), fb.Identity() >> fb.OnTheFly(lambda h: [h], 2, fb.SequenceType(2)))
    merged = fb.Function(lambda left, right: torch.tanh(left + 2 * right))
    join = fb.OnTheFly(
        lambda left, right, h: (h, [*left, *right, h]),
        (fb.SequenceType(2), fb.SequenceType(2), 2),
        (2, fb.SequenceType(2)),
    )
    node = fb.Composition()
    with node.scope():
        both = fb.Record((tree(), tree())).reads(node.input)
        top = merged.reads(both[0][0], both[1][0])
        node.output.reads(join.reads(both[0][1], both[1][1], top))
    block = fb.OneOf(lambda t: isinstance(t[0], float), {True: leaf, False: node})
    tree.resolve_to(block)
    model = fb.compile(block >> fb.GetItem(1) >> models.feed_forward_attention(2)).double()
    trees: list[Any] = [[1.0, 2.0], ([1.0, 0.0], [0.5, 0.5]), (([1.0, 0.0], [0.5, 0.5]), [3.0, 1.0])]
    assert model(trees).shape == (3, 2)
    check_law(model.one_example, trees, sources=list(model.parameters()))


def test_hierarchical_rnn() -> None:
    model = fb.compile(models.hierarchical_rnn(3, 2)).double()
    texts = [["a bc", "d"], ["hello there"], [], ["", "x y z w"]]
    check_law(model.one_example, texts, sources=list(model.parameters()))
    assert model(texts).shape == (4, 2)


def molecule(source: random.Random, atoms: int) -> dict[str, Any]:
    def vector(size: int) -> list[float]:
        return [source.gauss(0, 1) for _ in range(size)]

    return {
        "atoms": [vector(3) for _ in range(atoms)],
        "pairs": [[vector(2) for _ in range(atoms)] for _ in range(atoms)],
    }


def test_weave_convolution() -> None:
    source = random.Random(0)
    model = fb.compile(models.weave_convolution(3, 2, size=4)).double()
    molecules = [molecule(source, atoms) for atoms in (1, 2, 5)]
    check_law(model.one_example, molecules, sources=list(model.parameters()))


def test_weave_does_not_know_the_order_of_atoms() -> None:
    source = random.Random(0)
    model = fb.compile(models.weave_convolution(3, 2, size=4)).double()
    one = molecule(source, 4)
    order = [2, 0, 3, 1]
    other = {"atoms": [one["atoms"][i] for i in order], "pairs": [[one["pairs"][i][j] for j in order] for i in order]}
    first, second = model([one, other])
    torch.testing.assert_close(first, second)


def assert_two_routes(model: fb.Model, code: Callable[[Any], Any], examples: list[Any]) -> None:
    """Blocks, and the same cells called from ordinary code: the same nodes, steps, values and gradients."""
    parameters = list(model.parameters())
    from_blocks, from_code = model(examples), fl.batch(code, stack=True)(examples)
    assert_same(from_blocks, from_code)
    assert_same(gradients(from_blocks, parameters), gradients(from_code, parameters))
    block_plan, code_plan = model.plan(examples), fl.plan([fl.record(code, example) for example in examples])
    assert (block_plan.statistics().nodes, block_plan.statistics().steps) == (
        code_plan.statistics().nodes,
        code_plan.statistics().steps,
    )


def pairwise(values: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else []
        values = [combine(one, other) for one, other in zip(values[::2], values[1::2], strict=False)] + odd
    return values[0]


def test_attention_on_the_fly_is_the_same() -> None:
    model = fb.compile(fb.Map(fb.Vector(3)) >> models.feed_forward_attention(3, hidden=4)).double()
    score, begin, join, end = (model.cells[name] for name in ("Sequential", "lambda", "join", "lambda_2"))

    def code(sequence: Any) -> Any:
        alone = [begin(score(state), state) for state in sequence]
        return end(*pairwise(alone, lambda one, other: join(*one, *other)))

    source = random.Random(0)
    sequences = [np.array([[source.gauss(0, 1) for _ in range(3)] for _ in range(n)]) for n in (1, 4, 7)]
    assert_two_routes(model, code, sequences)


def test_hierarchical_rnn_on_the_fly_is_the_same() -> None:
    model = fb.compile(models.hierarchical_rnn(3, 2)).double()
    embed, along_word, along_sentence, along_text, classify = (
        model.cells[name] for name in ("Embedding", "Recurrent", "Recurrent_2", "Recurrent_3", "Linear")
    )
    zeros = torch.zeros(3, dtype=torch.float64)

    def last(cell: Any, elements: list[Any]) -> Any:
        state = zeros
        for element in elements:
            state = cell(element, state)[1]
        return state

    def code(text: list[str]) -> Any:
        words = [[[embed(ord(c)) for c in word] for word in sentence.split()] for sentence in text]
        sentences = [last(along_sentence, [last(along_word, word) for word in sentence]) for sentence in words]
        return classify(last(along_text, sentences))

    assert_two_routes(model, code, [["a bc", "d"], ["hello there"], [], ["x y z w"]])


def test_weave_on_the_fly_is_the_same() -> None:
    model = fb.compile(models.weave_convolution(3, 2, size=4)).double()
    cells = dict(model.cells.items())
    add, concat, to_output = cells["add"], cells["concat"], cells["Linear"]
    layers = [("Sequential", "Sequential_2", "FC"), ("Sequential_3", "Sequential_4", "FC_2")]

    def new_atoms(layer: int, atoms: list[Any], pairs: list[Any]) -> list[Any]:
        from_atom, from_pair, mix = (cells[name] for name in layers[layer])
        sums = [pairwise([from_pair(pair) for pair in row], add) for row in pairs]
        return [mix(concat(from_atom(atom), total)) for atom, total in zip(atoms, sums, strict=True)]

    def code(molecule: Any) -> Any:
        atoms, pairs = ([np.array(atom) for atom in molecule["atoms"]], molecule["pairs"])
        pairs = [[np.array(pair) for pair in row] for row in pairs]
        weave_pair = cells["WeavePair"]
        woven = [
            [weave_pair(one, p, other) for p, other in zip(row, atoms, strict=True)]
            for one, row in zip(atoms, pairs, strict=True)
        ]
        atoms = new_atoms(1, new_atoms(0, atoms, pairs), woven)
        return pairwise([to_output(atom) for atom in atoms], add)

    source = random.Random(0)
    assert_two_routes(model, code, [molecule(source, atoms) for atoms in (1, 2, 5)])
