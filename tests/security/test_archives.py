"""No graph or archive runs code, writes, hangs or takes much memory: all are refused in one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("onnx", reason="files are written with onnx: pip install 'foldloom[export]'")
pytest.importorskip("onnxruntime", reason="files are run by ONNX Runtime: pip install 'foldloom[runtime]'")

from benchmarks.mutations.worker import Worker
from tests.security.archives import Archives


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker("tests.security.archives:Archives", tmp_path_factory.mktemp("archives")) as worker:
        yield worker


@pytest.mark.parametrize("number", range(len(Archives.attacks)), ids=[a.name for a in Archives.attacks])
def test_refused(number: int, worker: Worker) -> None:
    verdict = worker.verdict_on(number)
    expected = "fine" if Archives.attacks[number].is_answered else "refused"
    assert verdict.kind == expected, f"{verdict.kind}: {verdict.detail}"
