"""No recording or plan on disk runs code, writes, hangs or takes much memory: all are refused in one line that names the file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.mutations.worker import Worker
from tests.security.recordings import Recordings


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker("tests.security.recordings:Recordings", tmp_path_factory.mktemp("recordings")) as worker:
        yield worker


@pytest.mark.parametrize("number", range(len(Recordings.attacks)), ids=[a.name for a in Recordings.attacks])
def test_refused(number: int, worker: Worker) -> None:
    verdict = worker.verdict_on(number)
    expected = "fine" if Recordings.attacks[number].is_answered else "refused"
    assert verdict.kind == expected, f"{verdict.kind}: {verdict.detail}"
