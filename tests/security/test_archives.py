"""No graph or archive runs code, writes, hangs or takes much memory: all are refused in one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="files are written with onnx: pip install 'foldloom[export]'")
pytest.importorskip("onnxruntime", reason="files are run by ONNX Runtime: pip install 'foldloom[runtime]'")

from benchmarks.mutations.worker import Worker
from foldloom.errors import ExportedFileError
from foldloom.runtime import Model
from tests.security.archives import HIDDEN, Archives
from tests.security.attacks import Attack


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker("tests.security.archives:Archives", tmp_path_factory.mktemp("archives")) as worker:
        yield worker


@pytest.mark.parametrize("number", range(len(Archives.attacks)), ids=[a.name for a in Archives.attacks])
def test_refused(number: int, worker: Worker) -> None:
    verdict = worker.verdict_on(number)
    expected = "fine" if Archives.attacks[number].is_answered else "refused"
    assert verdict.kind == expected, f"{verdict.kind}: {verdict.detail}"


@pytest.mark.parametrize("attack", HIDDEN, ids=[attack.name for attack in HIDDEN])
def test_torch_is_given_what_was_looked_at(attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not what it would find in the same bytes."""
    monkeypatch.chdir(tmp_path)
    Archives().make_models(tmp_path)
    attack.craft(tmp_path / "model.pt2", tmp_path / "crafted.pt2")
    expected = Model("model.pt2", threads=1)(["abc", "a"])
    np.testing.assert_array_equal(Model("crafted.pt2", threads=1)(["abc", "a"]), expected)
    with pytest.raises(ExportedFileError):  # what torch reads in it is no model
        Model("crafted.pt2", threads=1, trusted=True)(["abc"])
    assert Path("written").exists(), "it would run nothing anyhow"
