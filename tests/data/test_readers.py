"""Readers: what they give of well-formed text, and what they say of any other."""

from __future__ import annotations

import ast
import gzip
import importlib
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foldloom import data
from foldloom.data.arithmetic import made_expressions
from foldloom.data.python_source import HIDDEN, OPERATORS, hide_operator, show_hidden
from foldloom.errors import FoldloomError

CONLLU = """# text = She cannot
1\tShe\tshe\tPRON\tPRP\tCase=Nom\t2\tnsubj\t_\t_
2-3\tcannot\t_\t_\t_\t_\t_\t_\t_\t_
2\tcan\tcan\tAUX\tMD\t_\t0\troot\t_\t_
3\tnot\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\t_\t_\t_\t_\t_\t_\t_\t_
"""


def test_trees() -> None:
    [first, second] = data.TreeReader(["(3 (2 a) (1 (2 b\u00a0c) (0 a)))\n", "(4 d)\n"])
    assert [(node.label, node.word) for node in first] == [
        ("2", "a"), ("2", "b\u00a0c"), ("0", "a"), ("1", None), ("3", None)
    ]  # fmt: skip
    assert first.words == ["a", "b\u00a0c", "a"]
    assert str(first) == "(3 (2 a) (1 (2 b\u00a0c) (0 a)))"
    assert (second.label, second.word) == ("4", "d")


def test_trees_over_several_lines() -> None:
    lines = ["( (S\n", "    (NP-SBJ (PRP We))\n", "    (VP (VBP read) (NP (NNS books))) ))\n", "\n", "(S (NP x))\n"]
    [first, second] = data.TreeReader(lines)
    assert first.label == ""
    assert first.words == ["We", "read", "books"]
    assert second.words == ["x"]


def test_trees_deeper_than_the_stack() -> None:
    depth = 20_000
    [tree] = data.TreeReader(["(1 " * depth + "(0 x)" + ")" * depth])
    assert sum(1 for _ in tree) == depth + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(3 (2 a) (1 b)", "line 2: expected brackets, but the bracket that opens in line 1 is not closed"),
        ("3 (2 a)", "line 2: expected `(`, not '3'"),
        ("(3 (2 a)) (1 b)", "line 2: expected nothing after the last bracket, not '(1 b)'"),
        ("(3 a (1 b))", "line 2: expected a label and then one word or trees alone, not (3 a (...))"),
        ("(3 (2 a b) (1 b))", "line 2: expected a label and then one word or trees alone, not (2 a b)"),
        ("(3 ())", "line 2: expected a label and then one word or trees alone, not ()"),
    ],
)
def test_malformed_trees(text: str, message: str) -> None:
    lines = ["(1 fine)\n", f"{text}\n", "(2 too)\n"]
    with pytest.raises(data.DataError) as caught:
        list(data.TreeReader(lines))
    assert str(caught.value).removeprefix("input, ") == message
    reader = data.TreeReader(lines, strict=False)
    assert [tree.words for tree in reader] == [["fine"], ["too"]]
    assert reader.skipped == 1


def test_line_within_a_tree() -> None:
    with pytest.raises(data.DataError, match=r"^input, line 4: expected a label and then one word"):
        list(data.TreeReader(["\n", "(S\n", "  (NP x)\n", "  (VP))\n"]))


def test_sentiment_labels() -> None:
    assert [tree.label for tree in data.SentimentReader(["(3 (2 a) (4 b))"])] == ["3"]
    for text, message in (
        ("(3 (2 a) (7 b))", "expected a label from 0"),
        ("(3 (2 (1 a)) (2 b))", "expected two phrases"),
    ):
        with pytest.raises(data.DataError, match=message):
            data.SentimentReader().parse(text)


def test_dependencies() -> None:
    [sentence] = data.ConlluReader(io.StringIO(CONLLU))
    assert sentence == data.ParsedSentence(
        ("She", "can", "not"), ("PRON", "AUX", "PART"), (1, -1, 1), ("nsubj", "root", "advmod")
    )
    assert len(sentence) == 3
    assert isinstance(sentence, data.TaggedSentence)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "\t2\tnsubj",
            "\t9\tnsubj",
            "line 2: expected the number of another word, or 0 for the root, as the head of 'She'",
        ),
        ("\t2\tnsubj", "\t1\tnsubj", "line 2: expected the number of another word"),
        ("\t2\tadvmod", "\t_\tadvmod", "line 5: expected the number of another word"),
        ("\t2\tadvmod", "\ttwo\tadvmod", "line 5: expected ten columns of CoNLL-U, separated by tabs: .*'two'"),
        ("3\tnot", "4\tnot", "line 5: expected word 3 of the sentence, not word 4"),
        ("1\tShe\tshe\tPRON\tPRP\tCase=Nom\t2\tnsubj\t_\t_", "1 She", "line 2: expected ten columns"),
        ("\tPRP\tCase=Nom\t2\tnsubj\t_\t_", "\tPRP\tCase=Nom\t2", "line 2: expected a relation for 'She'"),
    ],
)
def test_malformed_dependencies(old: str, new: str, message: str) -> None:
    text = CONLLU.replace(old, new)
    assert text != CONLLU
    with pytest.raises(data.DataError, match=f"^input, {message}"):
        list(data.ConlluReader(io.StringIO(text)))
    reader = data.ConlluReader(io.StringIO(f"{text}\n\n{CONLLU}\n# only a comment\n"), strict=False)
    assert [sentence.words[0] for sentence in reader] == ["She"]
    assert reader.skipped == 2


def test_tagged_words() -> None:
    [first, second] = data.TaggedReader(["A|O b|c|I-PER \n", "\n", "x\u00a0y|O\n"])
    assert first == data.TaggedSentence(("A", "b|c"), ("O", "I-PER"))
    assert second.words == ("x\u00a0y",)
    with pytest.raises(data.DataError, match=r"^input, line 2: expected tokens such as word\|TAG, .* not 'word'"):
        list(data.TaggedReader(["a|B", "word c|D"]))
    for text in ("|O", "word|"):
        with pytest.raises(data.DataError, match="expected tokens"):
            data.TaggedReader().parse(text)


def test_json_records() -> None:
    lines = ['{"text": "good", "stars": 4}\n', '{"text": 3}\n', "[1]\n", "{\n", '{"stars": 2}\n']
    reader = data.JsonReader(lines, fields={"text": str}, strict=False)
    assert list(reader) == [{"text": "good", "stars": 4}]
    assert reader.skipped == 4
    assert list(data.JsonReader(lines[:2])) == [{"text": "good", "stars": 4}, {"text": 3}]
    for number, message in enumerate(
        ("field 'text', not 3", "JSON object, not list", "property name .* at column 2", "field 'text', not nothing"), 1
    ):
        with pytest.raises(data.DataError, match=f"line {number + 1}: expected .*{message}"):
            list(data.JsonReader([lines[0], *["\n"] * (number - 1), lines[number]], fields={"text": str}))


def test_arithmetic() -> None:
    [signed, valued, bare, number] = data.ArithmeticReader(
        ["-\t( - ( 1 ( * ( 2 5 ) ) ) )", "-9\t( - ( 1 10 ) )", "( + ( 1 -1 ) )", "0\t0"]
    )
    assert (signed.value, signed.sign, valued.value, bare.sign, number.value) == (-9, -1, -9, 0, 0)
    assert [part.value for part in signed] == [1, 2, 5, 10, -9]
    assert data.ArithmeticReader().parse(str(signed)) == signed


def test_made_expressions() -> None:
    made = made_expressions(50, seed=1, most=4, largest=3)
    assert len({str(expression) for expression in made}) == 50
    assert list(data.ArithmeticReader([f"{expression.value}\t{expression}" for expression in made])) == made
    assert made == made_expressions(50, seed=1, most=4, largest=3) != made_expressions(50, seed=2, most=4, largest=3)
    assert {sum(part.operator is None for part in expression) for expression in made} == {2, 3, 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("( - ( 1 ten ) )", "expected a whole number, not 'ten'"),
        ("( / ( 1 2 ) )", r"expected `\( operator \( left right \) \)` with an operator of"),
        ("( + ( 1 2 3 ) )", r"expected `\( operator"),
        ("7\t( + ( 1 2 ) )", "expected the value or the sign of .* which is 3, not '7'"),
        ("?\t( + ( 1 2 ) )", ".*which is 3, not '?'"),
        ("1 2", r"expected `\(`, not '1'"),
    ],
)
def test_malformed_arithmetic(text: str, message: str) -> None:
    with pytest.raises(data.DataError, match=f"line 2: {message}".replace("'?'", "'[?]'")):
        list(data.ArithmeticReader(["1", text]))


def test_python_functions() -> None:
    program = (
        "import os\n\nclass A:\n    async def f(self, x=1):\n        def g(): pass\n        return -x + os.n * 'a'\n"
    )
    [file] = data.PythonReader(io.StringIO(program))
    assert [(node.kind, node.text, node.line) for node in file.functions()] == [
        ("FunctionDef", "g", 5),
        ("AsyncFunctionDef", "f", 4),
    ]
    assert {node.text for node in file.tree if node.kind == "Constant"} == {"1", "'a'"}
    assert {node.role for node in file.tree if node.kind == "Attribute"} == {"left"}
    assert not any(node.kind in ("Load", "Store") for node in file.tree)


def test_malformed_python(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("x = 1\ny = = 2\n")
    (tmp_path / "below" / "c.py").write_bytes(b"# \xff\n")
    (tmp_path / "below" / "d.py").write_text("y = 2\n")
    (tmp_path / "site-packages" / "e.py").write_text("z = 3\n")
    reader = data.PythonReader(tmp_path, strict=False)
    assert [Path(file.name).name for file in reader] == ["a.py", "d.py"]
    assert reader.skipped == 2
    for name in ("b.py", "below/c.py"):
        alone = data.PythonReader(tmp_path / name, strict=False)
        assert (list(alone), alone.skipped) == ([], 1)
    with pytest.raises(data.DataError, match=r"b\.py, line 2: expected a Python program: invalid syntax"):
        list(data.PythonReader(tmp_path))
    with pytest.raises(data.DataError, match=r"b\.py, line 2: expected a Python program: invalid syntax"):
        list(data.PythonReader(tmp_path / "b.py"))
    with pytest.raises(data.DataError, match=r"c\.py, line 1: expected text in UTF-8"):
        list(data.PythonReader(tmp_path / "below"))


def test_hidden_operators() -> None:
    [[expression]] = data.ExpressionReader(["f(a) + b * c"])
    first = expression.tree
    for which, operator in enumerate(("Add", "Mult")):
        hidden, kind = hide_operator(first, which)
        assert kind == operator
        assert sum(node.kind == HIDDEN for node in hidden) == 1
        assert sum(node.kind == operator for node in hidden) == 0
        assert sum(1 for _ in hidden) == sum(1 for _ in first)
    assert all(node.kind != HIDDEN for node in first)


def test_expressions_of_programs(tmp_path: Path) -> None:
    program = "def f(x):\n    if x > 'ä': return g(\n        x, [-1])\n    y = f(x)\n"
    (tmp_path / "a.py").write_text(program, encoding="utf-8")
    (tmp_path / "b.py").write_text("=")
    reader = data.ExpressionReader(tmp_path, strict=False)
    [expressions] = reader
    assert reader.skipped == 1
    assert [(each.line, each.text, each.tree.kind) for each in expressions] == [
        (2, "x > 'ä'", "Compare"),
        (2, "g(\n        x, [-1])", "Call"),
    ]
    assert {Path(expression.name).name for expression in expressions} == {"a.py"}


@pytest.mark.parametrize(
    "text",
    [
        "a+(b)*-c",
        "not x",
        "a  is  not b",
        "(a) < b <= c",
        "f(a and b\n  and c, d or e)",
        "'ä' + b",
        "x if -y else [z//2]",
    ],
)
def test_hidden_operators_are_shown_where_they_stand(text: str) -> None:
    [[expression]] = data.ExpressionReader([text])
    kinds = [node.kind for node in expression.tree if node.kind in OPERATORS]
    for which, kind in enumerate(kinds):
        shown = show_hidden(text, which)
        assert shown is not None
        restored = shown.replace("▢", OPERATORS[kind])
        assert restored != shown
        assert restored.split() == text.split()


def test_every_operator_of_python_is_known() -> None:
    bases = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    assert set(OPERATORS) == {kind.__name__ for base in bases for kind in base.__subclasses__()}


def test_paths_and_compressed_files(tmp_path: Path) -> None:
    path = tmp_path / "tags.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("a|B\nc\n")
    with pytest.raises(data.DataError) as caught:
        list(data.TaggedReader(str(path)))
    assert (caught.value.source, caught.value.line) == (str(path), 2)
    assert str(caught.value).startswith(f"{path}, line 2: expected")
    assert isinstance(caught.value, FoldloomError)
    with pytest.raises(data.DataError, match=r"missing\.txt: expected a file, and there is none"):
        list(data.TaggedReader(tmp_path / "missing.txt"))


def test_reads_again() -> None:
    reader = data.TaggedReader(["a|B", "c"], strict=False)
    assert list(reader) == list(reader)
    assert reader.skipped == 2


def test_reads_as_it_is_asked() -> None:
    asked = 0

    def endless() -> Iterator[str]:
        nonlocal asked
        while True:
            asked += 1
            yield "a|B\n"

    assert len(list(itertools.islice(data.TaggedReader(endless()), 5))) == 5
    assert asked <= 6


def test_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(
        ModuleNotFoundError, match=r"to read CoNLL-U files, conllu is needed: pip install 'foldloom\[data\]'"
    ):
        data.ConlluReader().parse("1\ta")


def test_vocabulary() -> None:
    words = data.Vocabulary.of(["a", "b", "a", "c", "a", "b"], at_least=2, unknown=True)
    assert (words.names, words["b"], words["c"], "c" in words) == (["<unknown>", "a", "b"], 2, 0, False)
    assert data.Vocabulary(words.names)["zzz"] == 0
    assert (words.get("a"), words.get("c")) == (1, None)
    tags = data.Vocabulary.of(["X", "Y"])
    with pytest.raises(data.DataError, match="expected one of the 2 names of the vocabulary, not 'Z'"):
        tags["Z"]
    with pytest.raises(data.DataError, match="every name of a vocabulary once"):
        data.Vocabulary(["a", "a"])


def test_word_vectors(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "words.txt").write_text("good\nbad\n")
    np.save(tmp_path / "table.npy", np.array([[1, 2], [3, 4]], np.float16))
    vectors = data.WordVectors.read(tmp_path / "words.txt", tmp_path / "table.npy")
    table = vectors.for_vocabulary(data.Vocabulary(["Good", "ugly", "bad"]))
    assert table[[0, 2]].tolist() == [[1, 2], [3, 4]]
    assert 0 < abs(table[1]).max() < 0.05
    assert (table == vectors.for_vocabulary(data.Vocabulary(["Good", "ugly", "bad"]))).all()
    with pytest.raises(data.DataError, match="a row for each of 1 words"):
        data.WordVectors(["a"], np.zeros((2, 2), np.float32))


def test_readers_need_no_torch() -> None:
    """Nor do they need what only some of them read with, before they read it."""
    for path in Path(data.__file__).parent.glob("*.py"):
        imported = re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        assert not {"torch", "conllu", "rdkit"} & set(imported)
