"""`fl.profile`: what is timed, what is advised, and what it costs those who do not ask."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom import blocks as fb
from foldloom.views.timing import BACKWARD, BACKWARD_GATHERS, FORWARD, GATHERS, PLANNING, RECORDING
from tests.views.programs import (
    TREES,
    Attention,
    TreeModel,
    chain,
    halve,
    ragged_sentences,
    samples,
    until_small,
    with_forgotten_basis,
)

ROOT = Path(__file__).parent.parent.parent


def profiled(function: Callable[..., Any], *columns: Any, backward: bool = True, **options: Any) -> fl.Profile:
    with fl.profile() as profile:
        results = fl.batch(function, **options)(*columns)
        if backward:
            torch.stack([result.sum() for result in results]).sum().backward()
    return profile


# ---- The advice, on the three cases that it must be right on, and on others.


def test_advice_for_ragged_attention_that_cannot_batch() -> None:
    profile = profiled(Attention(), ragged_sentences(22))
    assert profile.advice.cause == "lengths"
    assert profile.advice.text == (
        "`scaled_dot_product_attention` ran alone 18 times: its inputs have 20 different lengths (3 to 22); pad or bucket"
    )
    assert str(profile.advice.place).startswith("tests/views/programs.py:")
    assert profile.advice.place is not None
    assert profile.advice.place.function == "Attention.forward"


def test_advice_for_a_forgotten_shared_tensor_that_splits_a_signature() -> None:
    profile = profiled(with_forgotten_basis, samples(12))
    assert profile.advice.cause == "weights"
    assert profile.advice.text == (
        "`matmul` ran alone 12 times: it is given 12 different weights, each used by one example; make the tensor once, outside "
        "the function"
    )
    assert profile.advice.place is not None
    assert profile.advice.place.function == "with_forgotten_basis"


def test_advice_for_a_value_demanded_inside_a_loop() -> None:
    with fl.profile() as profile, fl.batching():
        total = 0.0
        for x in torch.randn(20, 8):
            total += torch.tanh(halve(x)).sum().item()
    assert profile.advice.cause == "demand"
    assert profile.advice.text == (
        "a value was asked for 20 times inside a loop, and each time everything waited for a batch of 2.9 nodes: what comes later does "
        "not need it, so ask after the loop"
    )
    assert str(profile.advice.place).startswith("tests/views/test_profile.py:")


def test_advice_for_a_value_that_the_loop_depends_on() -> None:
    profile = profiled(until_small, [torch.full((8,), 10.0**n) for n in range(4)])
    assert profile.advice.cause == "demand"
    assert "ask only every few rounds" in profile.advice.text


def test_advice_for_numbers_that_differ() -> None:
    profile = profiled(
        lambda x, power: torch.tanh(x**power), torch.rand(16, 8), [float(n) for n in range(16)], backward=False
    )
    assert profile.advice.cause == "settings"
    assert "`pow` ran alone 16 times: it is called with 16 different settings" in profile.advice.text


def test_advice_for_copies_of_a_module() -> None:
    copies = [nn.Linear(8, 8) for _ in range(12)]
    profile = profiled(lambda number, x: copies[number](x), range(12), torch.randn(12, 8))
    assert profile.advice.cause == "weights"
    assert "`Linear` ran alone 12 times" in profile.advice.text


def test_advice_for_the_other_scheduler() -> None:
    step, score = fl.cell(nn.GRUCell(8, 8)), fl.cell(nn.Linear(8, 2))

    def scores(length: int) -> Any:
        state, found = torch.zeros(8), []
        for _ in range(length):
            state = step(state, state)
            found.append(score(state))
        return torch.stack(found)

    assert profiled(scores, range(20, 30), scheduler=fl.ByDepth()).advice.text == (
        "by agenda takes 40 steps where by depth takes 68: write `scheduler=fl.ByAgenda()`"
    )


def test_heads_are_no_copies() -> None:
    """Three layers side by side, each used by every example: as it should be."""
    heads = [nn.Linear(8, 8) for _ in range(4)]
    profile = profiled(lambda x: torch.stack([head(x) for head in heads]).sum(0), torch.randn(12, 8))
    assert not profile.reasons


def test_no_advice_without_a_batch() -> None:
    with fl.profile() as profile:
        torch.ones(2).sum()
    assert profile.advice.text == "nothing was batched: call `fl.batch` inside `with fl.profile()`"
    assert str(profile).startswith("0 batches: 0 nodes in 0 steps")


# ---- The times.


def test_everything_is_timed() -> None:
    profile = profiled(TreeModel(), TREES)
    phases = {span.phase for span in profile.timer.spans}
    assert phases == {RECORDING, PLANNING, FORWARD, GATHERS, BACKWARD, BACKWARD_GATHERS}
    assert all(entry.forward > 0 and entry.backward > 0 and entry.gathers > 0 for entry in profile.operations)
    assert {(entry.name, entry.steps, entry.nodes, entry.widest) for entry in profile.operations} == {
        ("Embedding", 1, 9, 9), ("Bilinear", 3, 6, 3), ("Linear", 1, 3, 3),
    }  # fmt: skip
    assert sum(profile.phases.values()) == pytest.approx(profile.seconds)


def test_spans_follow_one_another() -> None:
    """No two things at once: what is counted twice would make shares of more than all."""
    profile = profiled(TreeModel(), TREES)
    spans = sorted(profile.timer.spans, key=lambda span: span.start)
    assert all(before.end <= after.start for before, after in pairwise(spans))


def test_every_step_has_a_backward() -> None:
    profile = profiled(chain, [3, 5])
    steps = Counter([(span.step, span.phase) for span in profile.timer.spans if span.phase in (FORWARD, BACKWARD)])
    assert steps == Counter({(step, phase): 1 for step in range(10) for phase in (FORWARD, BACKWARD)})


def test_two_backward_passes() -> None:
    with fl.profile() as profile:
        results = fl.batch(chain, stack=True)([2, 2])
        results.sum().backward(retain_graph=True)
        results.sum().backward()
    assert sum(span.phase == BACKWARD for span in profile.timer.spans) == 8


def test_results_are_the_same() -> None:
    model = TreeModel()
    expected = fl.batch(model, stack=True)(TREES)
    with fl.profile():
        actual = fl.batch(model, stack=True)(TREES)
    assert torch.equal(actual, expected)
    for one, other in zip(
        torch.autograd.grad(actual.sum(), list(model.parameters())),
        torch.autograd.grad(expected.sum(), list(model.parameters())),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_plans_made_before() -> None:
    model = TreeModel()
    planned = fl.plan([fl.record(model, tree) for tree in TREES])
    with fl.profile() as profile:
        fl.batch(model).run(planned)
    assert "18 nodes in 5 steps" in str(profile)
    assert profile.survey.schedules[0].name == "as planned"


def test_recordings_made_within() -> None:
    model = TreeModel()
    with fl.profile() as profile:
        fl.batch(model).run(fl.plan([fl.record(model, tree) for tree in TREES]))
    assert sum(span.phase == RECORDING for span in profile.timer.spans) == len(TREES)
    assert len(profile.survey.schedules) == 2


def test_compiled_block() -> None:
    model = fb.compile(fb.Map(fb.Scalar("int64") >> nn.Embedding(10, 4)) >> fb.Sum() >> nn.Linear(4, 2))
    with fl.profile() as profile:
        model([[1, 2, 3], [4]]).sum().backward()
    assert {entry.name for entry in profile.operations} >= {"Embedding", "Linear"}


def test_bytes_copied() -> None:
    profile = profiled(TreeModel(), TREES, scheduler=fl.ByDepth())
    copied = {entry.name: entry.bytes for entry in profile.operations}
    assert copied == {"Embedding": 0, "Bilinear": 10 * 4 * 4, "Linear": 0}  # ten rows of four float32


def test_one_by_one_is_told() -> None:
    profile = profiled(lambda x: (x + 1).as_strided((2,), (1,)), torch.randn(8, 4), backward=False)
    assert any("one by one" in str(reason) for reason in profile.reasons)


def test_trace(tmp_path: Path) -> None:
    profile = profiled(TreeModel(), TREES)
    events = json.loads(profile.trace(tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(profile.timer.spans)
    assert min(event["ts"] for event in spans) == 0
    assert {event["name"] for event in spans} >= {"Embedding", "Bilinear", "Linear", "recording", "planning"}
    assert {event["args"]["name"] for event in events if event["ph"] == "M"} >= {"forward", "backward", "gathers"}


def test_table() -> None:
    lines = str(profiled(TreeModel(), TREES, scheduler=fl.ByDepth())).splitlines()
    assert lines[0].startswith("1 batch: 18 nodes in 7 steps, ")
    assert lines[1] == "  mean batch 2.6, largest 9; 10 rows copied, 14 used in place (58%), 0 KiB"
    assert lines[4].startswith("Change first: ")
    titles = "operation steps nodes batch widest alone forward backward gathers KiB copied"
    assert titles in [" ".join(line.split()) for line in lines]


# ---- What it costs those who do not ask.


COUNT_CALLS = """
import sys
import types

if {without_views}:
    # What `import foldloom` wants to have from there, and nothing of it.
    sys.modules["foldloom.views"] = types.SimpleNamespace(Page=0, Profile=0, explain=0, profile=0, show=0)
import torch
from torch import nn
import foldloom as fl

if not {without_views}:
    import foldloom.views

leaf, merge = fl.cell(nn.Embedding(10, 4)), fl.cell(nn.Bilinear(4, 4, 4))


def state(tree):
    return leaf(tree) if isinstance(tree, int) else merge(state(tree[0]), state(tree[1]))


def calls_of(depth):
    tree = 1
    for _ in range(depth):
        tree = (tree, 2)
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event in ("call", "c_call")

    run = fl.batch(lambda tree: torch.tanh(state(tree)), stack=True)
    for hook in (None, None, count):
        sys.setprofile(hook)
        run([tree, tree])
        sys.setprofile(None)
    return counted


shallow, deep = calls_of(5), calls_of(25)
print((deep - shallow) / 20, any(name.startswith("foldloom.views.") for name in sys.modules))
"""


def test_calls_per_step_are_unchanged() -> None:
    """Counted in processes of their own, one of which never sees the views."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", COUNT_CALLS.format(without_views=without_views)],
            capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout.split()
        for without_views in (True, False)
    ]  # fmt: skip
    assert [output[1] for output in outputs] == ["False", "True"]
    assert outputs[0][0] == outputs[1][0]
    assert float(outputs[0][0]) > 10


def called_files(work: Callable[[], Any]) -> set[Path]:
    files: set[Path] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            files.add(Path(frame.f_code.co_filename))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return files


def test_no_hook_calls_anything_where_nobody_watches() -> None:
    batched = fl.batch(until_small)
    examples = [torch.full((8,), 10.0**n) for n in range(3)]
    ours = {*(ROOT / "foldloom" / "views").iterdir(), ROOT / "foldloom" / "watching.py"}
    assert not called_files(lambda: batched(examples)) & ours
    with fl.profile():
        assert called_files(lambda: batched(examples)) & ours
    assert not called_files(lambda: batched(examples)) & ours
