"""No recording or plan on disk runs code, writes, hangs or takes much memory: all are refused in one line that names the file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import foldloom as fl
from benchmarks.mutations.recordings import SENTENCES, Scorer
from benchmarks.mutations.worker import Worker
from foldloom.errors import CellMismatchError
from foldloom.tracing.functions.calls import Call
from foldloom.tracing.storing.ops import _changes_arguments, _functions_of_torch
from tests.security.recordings import Recordings, recording, weight_changed_by


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker("tests.security.recordings:Recordings", tmp_path_factory.mktemp("recordings")) as worker:
        yield worker


@pytest.mark.parametrize("number", range(len(Recordings.attacks)), ids=[a.name for a in Recordings.attacks])
def test_refused(number: int, worker: Worker) -> None:
    verdict = worker.verdict_on(number)
    expected = "fine" if Recordings.attacks[number].is_answered else "refused"
    assert verdict.kind == expected, f"{verdict.kind}: {verdict.detail}"


def test_a_weight_that_cannot_be_made_of_others(tmp_path: Path) -> None:
    fl.save(fl.record_each(Scorer(), SENTENCES), tmp_path / "saved")
    product = recording("", weight_changed_by("torch:_VariableFunctionsClass.mm", weights=2))
    product.craft(tmp_path / "saved", tmp_path / "forged")
    with pytest.raises(CellMismatchError, match=r"weight that torch:.*mm makes of others, which fails .*be a matrix"):
        fl.batch(Scorer()).run(fl.plan(fl.load(tmp_path / "forged")))


MADE: dict[str, Any] = {
    "m": lambda: torch.rand(2, 2) + 0.1,
    "w": lambda: torch.rand(2, 2, requires_grad=True),
    "v": lambda: torch.rand(2) + 0.1,
    "p": lambda: torch.rand(1, 2, 3, 3),
    "n": lambda: torch.tensor([[0, 1], [1, 0]]),
    "i": lambda: torch.tensor([0, 1]),
    "b": lambda: torch.tensor([[True, False], [False, True]]),
    "0": lambda: 0, "1": lambda: 1, "h": lambda: 0.5, "T": lambda: True, "N": lambda: None,
}  # fmt: skip
CALLS = [
    "m",
    "w",
    "mv",
    "mm",
    "mmm",
    "vv",
    "wm",
    "mn",
    "mi",
    "m0",
    "m1",
    "mh",
    "mmh",
    "m0i",
    "m0im",
    "pvv",
    "p",
    "p1",
    "mvvT",
    "mmmmmm",
    "mvvvvT",
    "mT",
    "m1T",
    "mhTT",
    "bm",
    "mb",
    "mvvNNTh",
    "im",
    "mm1",
    "mhh",
]


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    of_autograd = tensor.requires_grad, tensor.grad_fn, tensor._backward_hooks
    return tensor.tolist(), *of_autograd, tensor.is_leaf and tensor.grad, tensor.is_shared(), tensor._version


def test_no_function_that_a_recording_may_call_changes_what_it_is_given() -> None:
    """All that there are, with arguments of many kinds. Most refuse most of them."""
    answered = set()
    for function in _functions_of_torch():
        for kinds in CALLS:
            arguments = tuple([MADE[kind]() for kind in kinds])
            before = [_state(argument) for argument in arguments if isinstance(argument, torch.Tensor)]
            try:
                if _changes_arguments(Call(function, arguments, {}, (), ())):
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function(*arguments)
            except Exception:
                continue
            answered.add(function)
            after = [_state(argument) for argument in arguments if isinstance(argument, torch.Tensor)]
            assert after == before, f"{function} of {kinds}"
    assert len(answered) > 600
