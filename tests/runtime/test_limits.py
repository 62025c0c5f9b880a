"""How much a file may take, and what it leaves as it was."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from foldloom import blocks as fb
from foldloom.errors import ArgumentError, BlockInputError, ExportedFileError
from foldloom.exporting.files import export_to
from foldloom.runtime import Limits, Model

pytest.importorskip("onnxruntime", reason="exported files are run by ONNX Runtime: pip install 'foldloom[runtime]'")
pytest.importorskip("onnxscript", reason="files are written with onnxscript: pip install 'foldloom[export]'")


@pytest.fixture(scope="module")
def tree_sum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = fb.ForwardDeclaration(fb.PyObjectType(), [])
    pair = fb.Record((tree(), tree())) >> fb.Function(torch.add)
    either = fb.OneOf(lambda x: isinstance(x, list), {False: fb.Scalar(), True: pair})
    tree.resolve_to(either)
    path = tmp_path_factory.mktemp("trees") / "sum.onnx"
    export_to(fb.compile(either), [path], parts=1)
    return path


def chain(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = [tree, 1]
    return tree


def test_deep_examples_leave_the_recursion_limit_alone(tree_sum: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds for the whole process: raised, it would let the `repr` of a deep list overflow the stack, in any thread."""

    def refuse(limit: int) -> None:
        raise AssertionError(f"the recursion limit was set to {limit}")

    monkeypatch.setattr(sys, "setrecursionlimit", refuse)
    assert Model(tree_sum, threads=1)([chain(3000), 7]) == [3001, 7]


def test_deep_examples_in_a_program_of_code(tmp_path: Path) -> None:
    import foldloom as fl

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add = fl.cell(torch.add)

        def forward(self, tree: Any) -> Any:
            return total(self, tree)

    def total(model: Any, tree: Any) -> Any:
        return model.add(model(tree[0]), model(tree[1])) if isinstance(tree, list) else float(tree)

    export_to(Sum(), [tmp_path / "sum.onnx"], [[1, [2, 3]]], parts=1)
    assert Model(tmp_path / "sum.onnx", total, threads=1)([chain(2000)]) == [2001]


def test_each_limit_says_what_to_write(tree_sum: Path) -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    for limits, example, problem in (
        (
            Limits(),
            endless,
            r"sum\.onnx: the example is nested more than 10,000 levels deep.*Limits\(depth=\.\.\.\).*--limit depth=",
        ),
        (Limits(depth=50), chain(60), "more than 50 levels deep"),
        (
            Limits(steps=100),
            chain(60),
            r"sum\.onnx: its program takes more than 100 steps for one example.*--limit steps=",
        ),
        (Limits(memory=2000), chain(200), r"sum\.onnx.*more than 2,000 bytes.*--limit memory="),
        (Limits(seconds=1e-9), chain(2000), r"the graph of .*sum\.onnx ran for more than .* seconds.*--limit seconds="),
    ):
        with pytest.raises(ExportedFileError, match=problem):
            Model(tree_sum, threads=1, limits=limits)([example])
    with pytest.raises(ArgumentError, match="a limit of steps is a number above zero, not 0"):
        Limits(steps=0)


def test_deep_examples_in_messages(tree_sum: Path) -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(BlockInputError, match=r"Scalar\(\) was given \{'a': \{'a': \{'a': \{'a': \{…\}"):
        Model(tree_sum, threads=1)([deep])


def test_threads_share_a_model(tree_sum: Path) -> None:
    model = Model(tree_sum, threads=1)
    found: dict[int, Any] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for levels in (number, 1500 + number, 3):
                found[levels] = model([chain(levels)])[0]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10, 18)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert found == {levels: levels + 1 for levels in found}


def refused(*arguments: object) -> str:
    command = [sys.executable, "-m", "foldloom", "predict", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, input="", check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    return line


def test_the_command_refuses_in_one_line(tree_sum: Path, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello")
    (tmp_path / "text.pt2").write_text("hello")
    assert "text.onnx is no file that fl.export writes: it is no model of ONNX" in refused(
        "--model", tmp_path / "text.onnx"
    )
    assert "text.pt2 is no file that torch.export can load" in refused("--model", tmp_path / "text.pt2")
    assert "there is no file" in refused("--model", tmp_path / "none.onnx")
    assert "it is a folder" in refused("--model", tmp_path)
    assert "none.json: expected a file, and there is none" in refused("--model", tree_sum, tmp_path / "none.json")
    assert "such as steps=10000000" in refused("--model", tree_sum, "--limit", "speed=3")
    assert "from 1 on" in refused("--model", tree_sum, "--threads", "0")
    assert "cannot be imported here" in refused("--model", tree_sum, "--program", "nowhere:function")
