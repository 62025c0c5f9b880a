"""Exported files give what the model gives, on shapes that nobody knew of when they were written."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom.errors import ExportedFileError, ExportError
from foldloom.exporting.files import PARTS, export_to
from foldloom.exporting.stages import stages_of
from foldloom.runtime import Model
from foldloom.runtime.description import FORMAT, KEY, Description, Stage
from foldloom.runtime.feeds import feeds_of
from foldloom.runtime.predicting import ExportedModel, answers
from foldloom.runtime.program import BlockProgram
from foldloom.runtime.recorder import Recorder
from tests.exporting.programs import (
    EXPORTED,
    WORDS,
    PlainChildSum,
    TreeOfCells,
    binary_tree_lstm,
    dependency_tree,
    plain_tree,
    tree_of_cells,
)

pytest.importorskip("onnxruntime", reason="exported files are run by ONNX Runtime: pip install 'foldloom[runtime]'")
onnx = pytest.importorskip("onnx", reason="files are written with onnx: pip install 'foldloom[export]'")
pytest.importorskip("onnxscript", reason="files are written with onnxscript: pip install 'foldloom[export]'")

UNSEEN = 200


def arrays(result: Any) -> Iterator[np.ndarray[Any, Any]]:
    """The numbers of a result, in order; labels are none."""
    if isinstance(result, torch.Tensor):
        yield result.detach().numpy()
    elif isinstance(result, (np.ndarray, np.floating)):
        yield np.asarray(result)
    elif isinstance(result, dict):
        for item in result.values():
            yield from arrays(item)
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from arrays(item)


def assert_equal_results(found: list[Any], expected: list[Any]) -> None:
    ours, theirs = list(arrays(found)), list(arrays(expected))
    assert [array.shape for array in ours] == [array.shape for array in theirs]
    assert sum(array.size for array in ours) > len(expected), "there is little to compare"
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", EXPORTED)
def test_unseen_shapes(name: str, tmp_path: Path) -> None:
    """One export, no example shown; then 200 examples: together, alone, and through torch.export."""
    torch.manual_seed(0)
    model, unseen = EXPORTED[name].make(), EXPORTED[name].examples(UNSEEN, seed=1)
    # What a loop of several parts adds is seen in the first; it takes three times as long to export.
    parts = PARTS if name == "binary Tree-LSTM" else 1
    export_to(model, [tmp_path / "model.onnx", tmp_path / "model.pt2"], parts=parts)
    expected = [model.one_example(example) for example in unseen]
    exported = Model(tmp_path / "model.onnx")
    assert_equal_results(exported(unseen), expected)
    assert_equal_results([exported([example])[0] for example in unseen[:20]], expected[:20])
    assert_equal_results(Model(tmp_path / "model.pt2")(unseen), expected)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> tuple[fb.Model, Path]:
    """A model, and its file."""
    model, path = binary_tree_lstm(), tmp_path_factory.mktemp("tree") / "model.onnx"
    fl.export(model, path)
    return model, path


@pytest.fixture(scope="module")
def negated_length(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a model that calls a function of Python's."""
    path = tmp_path_factory.mktemp("length") / "model.onnx"
    fl.export(fb.compile(fb.InputTransform(len) >> fb.Scalar() >> fb.Function(torch.neg)), path)
    return path


def test_labels_stand_beside_the_rows_of_metrics(tree: tuple[fb.Model, Path]) -> None:
    model, path = tree
    (example,) = EXPORTED["binary Tree-LSTM"].examples(1, seed=3)
    ((_, metrics),) = Model(path)([example])
    assert [label for _, label in metrics["shown"]] == [label for _, label in model.one_example(example)[1]["shown"]]


def test_no_example_at_all(tmp_path: Path) -> None:
    fl.export(fb.compile(fb.Map(fb.Scalar()) >> fb.Sum()), tmp_path / "sum.onnx")
    model = Model(tmp_path / "sum.onnx")
    assert model([]) == []
    assert model([[]]) == [0]
    assert model([[], [1, 2, 3], [4]]) == [0, 6, 4]


def test_constants_learned_ones_and_one_hot(tmp_path: Path) -> None:
    pair = nn.Parameter(torch.tensor([1.0, -1.0]))
    given = fb.AllOf(fb.OneHotFromList(["a", "b"]), torch.tensor([3.0, 5.0]), fb.FromTensor(pair), fb.Zeros(2))
    model = fb.compile(given >> fb.AllOf(fb.Concat(), fb.GetItem(1), fb.GetItem(2)))
    fl.export(model, tmp_path / "model.onnx")
    ((joined, constant, learned),) = Model(tmp_path / "model.onnx")(["b"])
    assert joined.tolist() == [0, 1, 3, 5, 1, -1, 0, 0]
    assert (constant.tolist(), learned.tolist()) == ([3, 5], [1, -1])


def test_every_combinator(tmp_path: Path) -> None:
    numbers = fb.Map(fb.Scalar())
    block = fb.Record(
        {
            "fold": numbers >> fb.Fold(fb.Function(torch.sub), fb.Zeros([])),
            "mean": numbers >> fb.Mean(),
            "largest": numbers >> fb.Max(),
            "pairs": numbers >> fb.NGrams(2) >> fb.Map(fb.Function(torch.mul)) >> fb.Sum(),
            "length": fb.Length(),
            "some": fb.Optional(fb.Scalar()),
            "turned": numbers >> fb.Slice(step=-1) >> fb.GetItem(0),
            "nth": fb.AllOf(numbers, fb.InputTransform(lambda values: len(values) - 1)) >> fb.Nth(),
        }
    )
    model = fb.compile(block)
    fl.export(model, tmp_path / "model.onnx")
    values = [1.0, 5.0, 2.0]
    example: dict[str, Any] = dict.fromkeys(("fold", "mean", "largest", "pairs", "length", "turned", "nth"), values) | {
        "some": None
    }
    assert_equal_results(Model(tmp_path / "model.onnx")([example]), [model.one_example(example)])
    example["some"] = 7
    assert_equal_results(Model(tmp_path / "model.onnx")([example]), [model.one_example(example)])


# ---- Models of code.


def test_code_that_calls_cells(tmp_path: Path) -> None:
    """With torch, recordings; without, the same function with the file's cells."""
    source = random.Random(0)
    trees = [plain_tree(source) for _ in range(30)]
    model = TreeOfCells()
    fl.export(model, tmp_path / "model.onnx", trees[:3])
    expected = fl.one_by_one(model)(trees)
    assert_equal_results(Model(tmp_path / "model.onnx")([fl.record(model, tree) for tree in trees]), expected)
    assert_equal_results(Model(tmp_path / "model.onnx", tree_of_cells)(trees), expected)


def test_plain_code_over_rows(tmp_path: Path) -> None:
    source = random.Random(0)
    trees = [dependency_tree(source) for _ in range(60)]
    model = PlainChildSum()
    paths = [tmp_path / "model.onnx", tmp_path / "model.pt2"]
    export_to(model, paths, trees[:5], parts=1)
    recordings = [fl.record(model, tree) for tree in trees]
    with torch.no_grad():
        expected = fl.one_by_one(model)(trees)
    for path in paths:
        assert_equal_results(Model(path)(recordings), expected)


def test_settings_tell_calls_apart(tmp_path: Path) -> None:
    scale = fl.cell(lambda x, by=1.0: x * by)

    def program(number: float) -> Any:
        return scale(scale(torch.tensor([number, 1.0]), by=2.0), by=3.0)

    fl.export(program, tmp_path / "model.onnx", [1.0])
    (found,) = Model(tmp_path / "model.onnx")([fl.record(program, 5.0)])
    assert found.tolist() == [30, 6]


def test_evaluation_mode_is_exported_and_the_model_left_as_it_was(tmp_path: Path) -> None:
    model = fb.compile(fb.Vector(3) >> nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9)))
    fl.export(model, tmp_path / "model.onnx")
    assert all(module.training for module in model.modules())
    model.eval()
    assert_equal_results(Model(tmp_path / "model.onnx")([[1.0, 2.0, 3.0]]), [model.one_example([1.0, 2.0, 3.0])])


def test_a_weight_stands_in_the_file_once(tmp_path: Path) -> None:
    table = nn.Embedding(2000, 64)
    word = fb.Scalar("int64") >> table
    flat = fb.Vector(2, "int64") >> fb.Function(lambda both: table(both).flatten(1))
    fl.export(fb.compile(fb.Record((word, flat))), tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size < table.weight.nbytes + 100_000


# ---- Stages.


def test_stages() -> None:
    """Ops that feed each other run in one loop; the others once, makers before readers."""
    assert stages_of(4, {0: {1, 2}, 1: {2}, 2: {1, 3}}) == (Stage((0,), False), Stage((1, 2), True), Stage((3,), False))
    assert stages_of(2, {1: {0}, 0: {0}}) == (Stage((1,), False), Stage((0,), True))


def test_parts_of_a_loop_are_as_wide_as_their_own_rounds() -> None:
    """A full tree of 16 leaves has rounds of 8, 4, 2 and 1 calls: a new part begins where what is left is at most half as wide."""

    def full(depth: int) -> Any:
        return (0, 1) if depth == 0 else (0, full(depth - 1), full(depth - 1))

    described = fl.static_model(binary_tree_lstm(), parts=3).description
    assert described.program is not None
    recorder = Recorder(described)
    BlockProgram(described.program, described, [])(recorder, full(4))
    feeds = feeds_of(recorder)
    assert list(feeds) == described.input_names()
    (loop,) = [number for number, stage in enumerate(described.stages) if stage.loop]
    (op,) = described.stages[loop].ops
    assert [int(feeds[f"rounds_{loop}_{part}"]) for part in range(3)] == [1, 1, 2]
    assert [feeds[f"index_{op}_{part}"].shape for part in range(3)] == [(2, 6, 8), (2, 6, 4), (2, 6, 2)]


def test_loops_of_a_tagger_are_those_of_its_cells() -> None:
    description = fl.static_model(EXPORTED["tagger with characters"].make()).description
    loops = [[description.ops[op].label for op in stage.ops] for stage in description.stages if stage.loop]
    assert loops == [["Recurrent"]] * 4


# ---- Errors.


def test_a_model_that_demands_values_says_where(tmp_path: Path) -> None:
    def search(x: Any) -> Any:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(ExportError, match=rf"search asks for a value .* at .*{Path(__file__).name}:\d+"):
        fl.export(search, tmp_path / "model.onnx", [torch.ones(3)])


def test_an_operation_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    model = fb.compile(fb.Vector(4) >> fb.Function(lambda x: torch.special.i1e(x)))
    with pytest.raises(ExportError, match=r"No ONNX function found for .*bessel_i1e"):
        fl.export(model, tmp_path / "model.onnx")
    fl.export(model, tmp_path / "model.pt2")


def test_a_cell_that_cannot_be_traced_is_named(tmp_path: Path) -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        return x if x.numel() == 0 or float(x.detach().flatten()[0]) > -100 else -x

    with pytest.raises(ExportError, match=r"odd cannot be exported: .*float32\[4\].* cannot be traced"):
        fl.export(fb.compile(fb.Vector(4) >> fb.Function(odd)), tmp_path / "model.onnx")


def test_a_file_of_another_version_says_so(negated_length: Path, tmp_path: Path) -> None:
    model = onnx.load(negated_length)
    (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
    entry.value = json.dumps({**json.loads(entry.value), "format": FORMAT + 1, "version": "9.9"})
    onnx.save(model, tmp_path / "newer.onnx")
    with pytest.raises(ExportedFileError, match=rf"by Foldloom 9\.9 in format {FORMAT + 1}.* reads format {FORMAT}"):
        Model(tmp_path / "newer.onnx")


def test_files_that_are_not_ours(tmp_path: Path) -> None:
    with pytest.raises(ExportedFileError, match="there is no file"):
        Model(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(ExportedFileError, match=r"no file that fl\.export writes"):
        Model(tmp_path / "text.onnx")
    (tmp_path / "text.pt2").write_text("hello")
    with pytest.raises(ExportedFileError, match=r"no file that torch\.export can load"):
        Model(tmp_path / "text.pt2")
    with pytest.raises(ExportError, match=r"writes \.onnx and \.pt2"):
        fl.export(binary_tree_lstm(), tmp_path / "model.bin")


def test_code_needs_examples_and_examples_that_call_all(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="learned from examples"):
        fl.export(TreeOfCells(), tmp_path / "model.onnx")
    model = TreeOfCells()
    fl.export(model, tmp_path / "model.onnx", [3])
    with pytest.raises(ExportedFileError, match=r"no cell 'merge'; it has leaf"):
        Model(tmp_path / "model.onnx", tree_of_cells)([(1, 2)])
    with pytest.raises(ExportedFileError, match=r"the example calls Merge.*which none of the examples did"):
        Model(tmp_path / "model.onnx")([fl.record(model, (1, 2))])
    with pytest.raises(ExportedFileError, match=r"does not say how examples become calls.*was Python code"):
        Model(tmp_path / "model.onnx")([3])


def test_an_order_that_no_example_had(tmp_path: Path) -> None:
    model = TreeOfCells()
    fl.export(model, tmp_path / "model.onnx", [(1, 2)])
    with pytest.raises(ExportedFileError, match=r"gives cell Merge what it made itself"):
        Model(tmp_path / "model.onnx", tree_of_cells)([((1, 2), 3)])


def test_a_mistaken_example_says_which_block_refuses_it(tmp_path: Path) -> None:
    fl.export(fb.compile(fb.Record({"x": fb.Vector(2)}) >> fb.GetItem(0) >> nn.Linear(2, 1)), tmp_path / "model.onnx")
    model = Model(tmp_path / "model.onnx")
    with pytest.raises(fl.errors.MissingKeyError, match="has no item 'x', which Record"):
        model([{"y": 1}])
    with pytest.raises(
        fl.errors.BlockInputError, match=r"Vector\(2\) was given .*, of which it cannot make float32\[2\]"
    ):
        model([{"x": [1, 2, 3]}])


# ---- Functions in a file.


def test_functions_that_look_at_data_travel(tmp_path: Path) -> None:
    vocabulary = {"good": 1, "bad": 2}
    number = fb.InputTransform(lambda word: vocabulary.get(word.lower(), 0)) >> fb.Scalar("int64")
    model = fb.compile(fb.InputTransform(str.split) >> fb.Map(number >> nn.Embedding(3, 2)) >> fb.Sum())
    fl.export(model, tmp_path / "model.onnx")
    assert_equal_results(Model(tmp_path / "model.onnx")(["Good not bad"]), [model.one_example("Good not bad")])


def helper(value: Any) -> Any:
    values = [value]
    return values[0]


def test_functions_of_modules_are_called_if_they_are_allowed(tmp_path: Path) -> None:
    fl.export(fb.compile(fb.InputTransform(helper) >> fb.Scalar() >> fb.Function(torch.neg)), tmp_path / "model.onnx")
    with pytest.raises(ExportedFileError, match=rf"calls helper of the module {__name__}.*--allow"):
        Model(tmp_path / "model.onnx")
    assert Model(tmp_path / "model.onnx", modules=[__name__])([3]) == [-3]


def test_functions_that_cannot_travel_are_named(tmp_path: Path) -> None:
    def local(value: Any) -> Any:
        values = [value]
        return values[0]

    model = fb.compile(fb.InputTransform(local) >> fb.Scalar() >> fb.Function(torch.neg))
    with pytest.warns(UserWarning, match=r"local.* cannot be found by its name"):
        fl.export(model, tmp_path / "model.onnx", [1.0])
    with pytest.raises(ExportedFileError, match="does not say how examples become calls"):
        Model(tmp_path / "model.onnx")([3])
    assert Model(tmp_path / "model.onnx")([model.record(3)]) == [-3]


@pytest.mark.parametrize(
    "packed",
    [
        {"function": "builtins:exec"},
        {"function": "os:system"},
        {"expression": "x.__class__", "argument": "x", "constants": {"dict": []}},
        {"expression": "[exec(y) for y in x]", "argument": "x", "constants": {"dict": []}},
        {"made_by": "attrgetter", "args": ["__class__"], "kwargs": {"dict": []}},
        {"made_by": "methodcaller", "args": ["format"], "kwargs": {"dict": []}},
        {"method": "format", "of": "{}"},
    ],
)
def test_a_file_cannot_call_what_it_likes(packed: Any, negated_length: Path, tmp_path: Path) -> None:
    model = onnx.load(negated_length)
    (entry,) = [entry for entry in model.metadata_props if entry.key == KEY]
    content = json.loads(entry.value)
    (transform,) = [block for block in content["program"]["blocks"] if block["kind"] == "transform"]
    transform["function"] = packed
    entry.value = json.dumps(content)
    onnx.save(model, tmp_path / "changed.onnx")
    with pytest.raises(
        ExportedFileError, match=r"the program of this file (calls|has an expression that is not allowed)"
    ):
        Model(tmp_path / "changed.onnx")


def test_a_description_is_json_and_comes_back() -> None:
    description = fl.static_model(EXPORTED["weave"].make()).description
    assert Description.from_json(description.to_json(), "model.onnx") == description


# ---- Without torch.

WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torch", "greenlet", "onnx"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Refuse())
from foldloom.cli.entry import main
main(["predict", "--model", sys.argv[1], *sys.argv[2:]])
"""


def predicted(*arguments: str, lines: str) -> list[Any]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    ran = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_predict_needs_no_torch(tree: tuple[fb.Model, Path]) -> None:
    model, path = tree
    examples = EXPORTED["binary Tree-LSTM"].examples(6, seed=2)
    lines = [json.dumps(example) for example in examples]
    lines[2:2] = ["nonsense", "[0]"]
    for batch in ("1", "5"):
        found = predicted(str(path), "--batch", batch, lines="\n".join(lines))
        assert found[2]["error"].startswith("not a line of JSON")
        assert found[3]["error"] == "MissingKeyError: " + found[3]["error"].partition(": ")[2]
        assert (found[2]["line"], found[3]["line"]) == (3, 4)
        results = [np.array(line["result"][0]) for line in found if "result" in line]
        assert_equal_results(results, [model.one_example(example)[0] for example in examples])


def test_predict_answers_each_line_as_it_comes_and_says_what_json_lacks(tmp_path: Path) -> None:
    fl.export(fb.compile(fb.Scalar() >> fb.Function(torch.log)), tmp_path / "log.onnx")
    lines = [(1, "1"), (2, "0"), (3, '"one"')]
    first, second, third = [json.loads(line) for line in answers(ExportedModel(Model(tmp_path / "log.onnx")), lines)]
    assert first == {"result": 0.0}
    assert second["error"].startswith("the result has numbers in it that are infinite")
    assert third["error"].startswith("BlockInputError: Scalar() was given 'one'")


def test_what_was_given_comes_back_in_recordings_too(tmp_path: Path) -> None:
    model = fb.compile(fb.Map(fb.Vector(2) >> nn.Linear(2, 2)) >> fb.Sum())
    fl.export(model, tmp_path / "model.onnx")
    examples = [[[1.0, 2.0]], []]
    found = Model(tmp_path / "model.onnx")([model.record(example) for example in examples])
    assert_equal_results(found, [model.one_example(example) for example in examples])


@dataclass
class Scored:
    rows: Any
    parts: Any
    length: int


class Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.score = nn.Embedding(WORDS, 3), nn.Linear(3, 2)

    def forward(self, words: list[int]) -> Scored:
        scores = self.score(self.word(torch.tensor(words, dtype=torch.long)))
        return Scored(scores, {"total": scores.sum(0), "both": (list(scores), scores[:2])}, len(words))


def test_results_of_any_number_of_rows_in_any_nesting(tmp_path: Path) -> None:
    model = Scorer()
    fl.export(model, tmp_path / "model.onnx", [[1, 2, 3]])
    exported = Model(tmp_path / "model.onnx")
    sentences = [[4, 5, 6, 7, 8], [9], []]
    found, expected = exported([fl.record(model, words) for words in sentences]), [model(words) for words in sentences]
    assert [(scored.length, scored.rows.shape) for scored in found] == [(5, (5, 2)), (1, (1, 2)), (0, (0, 2))]
    assert_equal_results([[s.rows, s.parts] for s in found], [[s.rows, s.parts] for s in expected])


def test_numbers_that_are_part_of_an_operation_are_pointed_out(tmp_path: Path) -> None:
    def shifted(pair: Any) -> Any:
        return pair[0] + pair[1]

    fl.export(shifted, tmp_path / "model.onnx", [(torch.ones(2), 1.0)])
    with pytest.raises(ExportedFileError, match=r"the example calls add.*Make it a value, `torch\.tensor\(number\)`"):
        Model(tmp_path / "model.onnx")([fl.record(shifted, (torch.ones(2), 2.0))])


class DoublesInTraining(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if self.training else x


def test_a_cell_whose_module_looks_at_its_mode_is_exported_in_evaluation_mode(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice = fl.cell(DoublesInTraining())

        def forward(self, x: torch.Tensor) -> Any:
            return self.twice(x)

    model = Whole()
    fl.export(model, tmp_path / "model.onnx", [torch.ones(2)])
    assert model.twice.function.training
    assert Model(tmp_path / "model.onnx", lambda model, x: model.twice(x))([np.ones(2, np.float32)])[0].tolist() == [
        1,
        1,
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRU(3, 4),
        lambda: nn.RNN(3, 4, nonlinearity="relu", bias=False),
        lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    ],
)
def test_recurrent_modules_along_any_number_of_rows(make: Any, tmp_path: Path) -> None:
    class Along(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.recur = nn.Embedding(WORDS, 3), make()

        def forward(self, words: list[int]) -> Any:
            return self.recur(self.word(torch.tensor(words)))

    model, sentences = Along(), [[3, 1, 4, 1, 5], [9], [2, 6]]
    export_to(model, [tmp_path / "model.onnx"], [[1, 2]], parts=1)
    found = Model(tmp_path / "model.onnx")([fl.record(model, sentence) for sentence in sentences])
    assert_equal_results(found, [model(sentence) for sentence in sentences])
