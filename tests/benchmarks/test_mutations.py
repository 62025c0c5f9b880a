"""`python -m benchmarks mutations`: what it changes, and what it calls a fault."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.mutations.changing import changed_bytes, changed_json
from benchmarks.mutations.command import report
from benchmarks.mutations.kinds import KINDS
from benchmarks.mutations.worker import Verdict, Worker


def test_changes_are_of_their_seed() -> None:
    data, content = bytes(range(256)) * 4, {"a": [1, 2, {"b": "text"}], "c": None}
    for seed in range(200):
        assert changed_bytes(data, random.Random(seed)) == changed_bytes(data, random.Random(seed))
        first, second = (repr(changed_json(content, random.Random(seed))) for _ in range(2))
        assert first == second
    assert content == {"a": [1, 2, {"b": "text"}], "c": None}, "the original is left as it was"
    assert len({changed_bytes(data, random.Random(seed)) for seed in range(200)}) > 150


def test_faults_are_counted_by_what_is_alike() -> None:
    verdicts = {
        0: Verdict("fine"),
        1: Verdict("refused", "ExportedFileError: model.onnx is none"),
        2: Verdict("traceback", "KeyError: 17"),
        3: Verdict("traceback", "KeyError: 4"),
    }
    assert report("onnx", verdicts).splitlines() == [
        "2 x traceback: KeyError: N",
        "4 mutations of kind onnx: 1 read, 1 refused in one line, 2 faults",
    ]


@pytest.mark.parametrize("kind", ["description", "onnx", "recording", "forged-recording"])
def test_a_short_run(kind: str, tmp_path: Path) -> None:
    if kind in ("description", "onnx"):
        pytest.importorskip("onnxscript", reason="files are written with onnxscript: pip install 'foldloom[export]'")
        pytest.importorskip("onnxruntime", reason="files are run by ONNX Runtime: pip install 'foldloom[runtime]'")
    with Worker(KINDS[kind], tmp_path) as worker:
        verdicts = {seed: worker.verdict_on(seed) for seed in range(60)}
    assert not {seed: verdict for seed, verdict in verdicts.items() if verdict.is_fault}
    assert any(verdict.kind == "refused" for verdict in verdicts.values())
