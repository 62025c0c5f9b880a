"""The judge of operators itself: that it finds what is wrong, and only that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from benchmarks import operators
from benchmarks.operators import EAGER_FAILS, ERROR, OUT_OF_SCOPE, RIGHT, WRONG, Verdict, judge, judge_all
from tests.tracing.rules.operator_database import database, named


class Broken:
    """Stands for `fl`: a batch that gives something else than each example alone."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change = change

    def batch(self, function: Callable[[int], Any]) -> Callable[[Sequence[int]], Any]:
        def run(examples: Sequence[int]) -> Any:
            return self.change([function(example) for example in examples])

        return run


def broken_verdict(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> Verdict:
    monkeypatch.setattr(operators, "fl", Broken(change))
    monkeypatch.setattr(operators, "lift", lambda tensor: tensor)
    return judge(named(name)[0], most_samples=2)


def test_the_judge_accepts_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = broken_verdict(monkeypatch, "exp", lambda results: results)
    assert verdict.verdict == RIGHT
    assert not verdict.in_fewer_steps  # nothing was recorded
    assert verdict.variants == ["function", "method", "in place"]


@pytest.mark.parametrize(
    ("name", "change", "detail"),
    [
        ("exp", lambda results: [[x + 1e-6 for x in outputs] for outputs in results], "output 0"),
        ("exp", lambda results: list(reversed(results)), "output 0"),
        ("exp", lambda results: [[x.float() for x in outputs] for outputs in results], "dtype"),
        ("exp", lambda results: [[x.unsqueeze(0) for x in outputs] for outputs in results], "shape"),
        ("exp", lambda results: [[x.detach() for x in outputs] for outputs in results], "gradient 0 is missing"),
        ("exp", lambda results: [[x + (x - x.detach()) for x in outputs] for outputs in results], "gradient 0"),
        ("sort", lambda results: [outputs[:1] for outputs in results], "1 tensors instead of 2"),
        ("nn.functional.dropout", lambda results: [[x.float() for x in outputs] for outputs in results], "float32"),
    ],
    ids=["value", "order", "dtype", "shape", "no gradient", "gradient", "number of outputs", "dtype of random numbers"],
)
def test_the_judge_finds_what_is_silently_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any], detail: str
) -> None:
    verdict = broken_verdict(monkeypatch, name, change)
    assert verdict.verdict == WRONG
    assert detail in verdict.detail


def test_the_judge_tells_errors_from_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(results: Any) -> Any:
        raise NotImplementedError(f"no rule, object at {hex(id(results))}")

    verdict = broken_verdict(monkeypatch, "exp", refuse)
    assert (verdict.verdict, verdict.detail) == (ERROR, "function: NotImplementedError: no rule, object at 0x…")


def test_the_judge_says_which_way_an_operator_took() -> None:
    assert judge(database()["exp"], most_samples=2).ways == ["direct rule"]
    assert judge(database()["kron"], most_samples=2).ways == ["vmap"]
    assert judge(database()["nonzero"], most_samples=2).ways == ["on demand"]
    one_by_one = judge(database()["nn.functional.linear_cross_entropy.chunked"], most_samples=2)
    assert (one_by_one.ways, one_by_one.steps) == (["one by one"], one_by_one.examples)
    assert not one_by_one.in_fewer_steps


def test_what_cannot_be_judged() -> None:
    assert judge(database()["zeros"]).verdict == OUT_OF_SCOPE
    assert judge(database()["jiterator_unary"]).verdict == EAGER_FAILS
    assert judge(database()["torch._scaled_mm"]).verdict == EAGER_FAILS


def test_workers_that_die_or_hang_are_replaced() -> None:
    def judge_name(name: str) -> Verdict:
        if name == "dies":
            os._exit(3)
        if name == "hangs":
            time.sleep(60)
        return Verdict(name, steps=1, examples=4)

    names = ["a", "dies", "b", "hangs", "c", "d"]
    verdicts = judge_all(names, judge_name, workers=2, seconds=1)
    assert [verdict.name for verdict in verdicts] == names
    assert [verdict.verdict for verdict in verdicts] == [RIGHT, ERROR, RIGHT, ERROR, RIGHT, RIGHT]
    assert verdicts[1].detail == "the process died with exit code 3"
    assert verdicts[3].detail == "took more than 1 seconds"


def test_the_table() -> None:
    verdicts = [
        Verdict("b", steps=1, examples=4, ways=["direct rule", "vmap"], variants=["function", "method"]),
        Verdict("a", WRONG, "output 0 | differs", steps=4, examples=4),
        Verdict("c", OUT_OF_SCOPE, "it takes no tensors"),
    ]
    summary = operators.summary(verdicts)
    assert (summary["run eagerly on the CPU"], summary["right, %"], summary["silently wrong"]) == (2, 50.0, 1)
    assert summary["in fewer steps than examples, %"] == 50.0
    table = operators.markdown(verdicts).splitlines()
    assert table[-3].startswith("| `a` | **wrong** |")
    assert table[-3].endswith("output 0 \\| differs |")
    assert table[-2].startswith("| `b` | right | direct rule, vmap | 1/4 | function, method |")
    assert table[-1].startswith("| `c` | **out of scope** |")


def test_examples_alike_differ_in_their_numbers() -> None:
    first, second = (operators.samples_of(named("add")[0], torch.float64, seed)[0].arguments for seed in (0, 1))
    assert operators.structure(first) == operators.structure(second)
    assert not torch.equal(first[0], second[0])


def test_numbers_are_spread() -> None:
    assert operators.spread(3, 6) == [0, 1, 2]
    assert operators.spread(100, 3) == [0, 50, 99]


def test_structures_are_kept() -> None:
    found = torch.sort(torch.ones(2))
    assert isinstance(operators.with_tensors(found, [torch.zeros(1), torch.zeros(2)]), torch.return_types.sort)
    nested = {"a": [torch.ones(1), (2, torch.ones(2))]}
    assert operators.map_tensors(lambda tensor: tensor.shape[0], nested) == {"a": [1, (2, 2)]}
