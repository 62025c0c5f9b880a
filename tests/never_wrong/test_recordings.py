"""Finding 14: recordings and plans hold no weights and no state; looking changes nothing."""

from __future__ import annotations

import os
import pickle
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import assert_in_words, assert_same, linear, sequences, vectors


class Shifted(nn.Module):
    """Weights, a buffer, running statistics and an attribute, in plain code."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.scale, self.lin = kind, 2.0, linear()
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)
        self.register_buffer("shift", torch.randn(3, dtype=torch.float64))
        self.free = nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.constant = torch.randn(3, dtype=torch.float64)
        self.cell = fl.cell(linear())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        if self.kind == "buffer":
            return y + self.shift
        if self.kind == "computed buffer":
            return y + self.shift.exp()
        if self.kind == "statistics":
            return self.norm(y)
        if self.kind == "parameter":
            return y * self.free
        if self.kind == "computed parameter":
            return y * self.free.softmax(0)
        if self.kind == "cell and buffer":
            return self.cell(y[0]) + self.shift
        return y


KINDS = ("weights", "buffer", "computed buffer", "statistics", "parameter", "computed parameter", "cell and buffer")


def same_with(recorded: nn.Module, runs: nn.Module, inputs: list[torch.Tensor]) -> None:
    planned = fl.plan(fl.record_each(recorded, inputs))
    actual = fl.batch(runs).run(planned)
    assert_same([x.detach() for x in actual], [runs(x).detach() for x in inputs])


@pytest.mark.parametrize(
    "kind",
    list(KINDS),
)
def test_a_recording_runs_with_another_instance(kind: str) -> None:
    same_with(Shifted(kind).eval(), Shifted(kind).eval(), sequences())


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_recording_runs_after_a_change(kind: str) -> None:
    model, inputs = Shifted(kind).eval(), sequences()
    planned = fl.plan(fl.record_each(model, inputs))
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.dtype.is_floating_point:
                value.add_(0.5)
    actual = fl.batch(model).run(planned)
    assert_same([x.detach() for x in actual], [model(x).detach() for x in inputs])


@pytest.mark.parametrize(
    "kind",
    list(KINDS),
)
def test_a_recording_runs_after_a_buffer_was_replaced(kind: str) -> None:
    model, inputs = Shifted(kind).eval(), sequences()
    planned = fl.plan(fl.record_each(model, inputs))
    model.shift = torch.ones(3, dtype=torch.float64)
    model.norm.running_mean = torch.ones(3, dtype=torch.float64)
    model.free = nn.Parameter(torch.ones(3, dtype=torch.float64))
    actual = fl.batch(model).run(planned)
    assert_same([x.detach() for x in actual], [model(x).detach() for x in inputs])


DROPOUTS: dict[str, Callable[[nn.Module, torch.Tensor], torch.Tensor]] = {
    "function": lambda self, x: F.dropout(x * 1, 1.0, training=self.training),
    "module": lambda self, x: self.drop(x * 1),
    "branch": lambda self, x: x * 2 if self.training else x * 3,
    "in a cell": lambda self, x: self.cell(x * 1),
}


class Dropping(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.drop, self.cell = name, nn.Dropout(1.0), fl.cell(nn.Dropout(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return DROPOUTS[self.name](self, x)


@pytest.mark.parametrize("name", list(DROPOUTS))
def test_a_recording_runs_in_the_mode_that_holds_or_is_refused(name: str) -> None:
    model, inputs = Dropping(name), vectors()
    planned = fl.plan(fl.record_each(model, inputs))
    model.eval()
    try:
        actual = fl.batch(model).run(planned)
    except fl.errors.FoldloomError as error:
        assert_in_words(error, "train", "eval")
        return
    assert_same([x.detach() for x in actual], [model(x).detach() for x in inputs])


def test_statistics_of_training_are_not_recorded() -> None:
    """They change from example to example, in the order of a loop, which a plan does not keep."""
    model = Shifted("statistics")
    with pytest.raises(fl.errors.RecordingError, match=r"running statistics.*eval\(\).*fl\.batch"):
        fl.record_each(model, sequences(2, 4, 3))


# ---- Looking changes nothing.


class Lively(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3, dtype=torch.float64), nn.Dropout(0.5)
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x)) + torch.randn(3, dtype=torch.float64)


class Asking(Lively):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * 2 if y.sum() > 0 else torch.randn(3, dtype=torch.float64)


class Counting(Lively):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


LOOKS: dict[str, Callable[[nn.Module, list[torch.Tensor]], Any]] = {
    "explain": lambda model, inputs: str(fl.explain(model, inputs)),
    "show": lambda model, inputs: fl.show(model, inputs),
    "record": lambda model, inputs: fl.record(model, inputs[0]),
    "record_each": lambda model, inputs: fl.record_each(model, inputs),
    "plan": lambda model, inputs: fl.plan(fl.record_each(model, inputs)),
}


@pytest.mark.parametrize(
    "case",
    [
        f"{look}, {model}"
        for look in LOOKS
        for model in ("Lively", "Asking", "Counting")
        if model != "Asking" or look in ("explain", "show")
    ],
)
def test_looking_changes_nothing(case: str) -> None:
    look, name = case.split(", ")
    model = {"Lively": Lively, "Asking": Asking, "Counting": Counting}[name]()
    inputs = vectors(3, 2, 3)
    before, buffers = torch.get_rng_state(), [value.clone() for value in model.buffers()]
    grads = [x.grad for x in inputs]
    if name == "Lively" and look not in ("explain", "show"):
        with pytest.raises(fl.errors.RecordingError, match="running statistics"):
            LOOKS[look](model, inputs)
    else:
        assert LOOKS[look](model, inputs) is not None
    assert torch.equal(before, torch.get_rng_state())
    assert_same(list(model.buffers()), buffers)
    assert [x.grad for x in inputs] == grads
    assert model.count == 0


def changing() -> tuple[Callable[[torch.Tensor], Any], Callable[[], Any]]:
    """A function that changes tensors around it, and what they are."""
    layer = linear()
    table, shared = torch.zeros(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64)
    generator = np.random.default_rng(3)

    def function(x: torch.Tensor) -> Any:
        table.add_(1)
        shared[0] += x.detach()[0]
        x.detach().mul_(2)
        with torch.no_grad():
            layer.weight.mul_(0.5)
            layer.bias.data = layer.bias.data * 2
        y = layer(x)
        return y * random.random() * np.random.rand() + torch.randn(3, dtype=torch.float64)

    def state() -> Any:
        weights = [*layer.parameters()]
        numbers = [tensor.detach().clone() for tensor in (table, shared, *weights)]
        drawn = (torch.get_rng_state(), random.getstate()[1], np.random.get_state()[1])  # type: ignore[index]
        return numbers, [weight.data_ptr() for weight in weights], drawn, generator.bit_generator.state["state"]

    return function, state


def test_looking_changes_no_gradient() -> None:
    layer, inputs = linear(), vectors(3, 2, 3)
    layer.weight.grad = torch.ones(3, 3, dtype=torch.float64)
    before = layer.weight.grad

    def function(x: torch.Tensor) -> torch.Tensor:
        layer(x).sum().backward()
        return x * 2

    assert str(fl.explain(function, inputs))
    assert layer.weight.grad is before
    assert before.tolist() == [[1.0] * 3] * 3
    assert layer.bias.grad is None


@pytest.mark.parametrize("look", ["explain", "show"])
def test_looking_changes_no_tensor(look: str) -> None:
    function, state = changing()
    inputs = vectors(3, 2, 3)
    given = [x.detach().clone() for x in inputs]
    before = state()
    assert LOOKS[look](function, inputs) is not None  # type: ignore[arg-type]
    assert_same(state(), before)
    assert_same([x.detach() for x in inputs], given)


# ---- In another process.

MODEL = """
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lin = nn.Embedding(9, 3), nn.Linear(3, 3)

    def forward(self, words):
        return torch.tanh(self.lin(self.table(words))).sum(0) * 2

words = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([4, 5, 6])]
"""
READ = """
import pickle, plain_model, torch
import foldloom as fl
with open("plan", "rb") as file:
    planned = pickle.load(file)
model = plain_model.Plain()
torch.testing.assert_close(fl.batch(model).run(planned), [model(x) for x in plain_model.words])
"""


def test_a_plan_of_plain_code_runs_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "plain_model.py").write_text(MODEL)
    plain = runpy.run_path(str(tmp_path / "plain_model.py"))
    with (tmp_path / "plan").open("wb") as file:
        pickle.dump(fl.plan(fl.record_each(plain["Plain"](), plain["words"])), file)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", READ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{root}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_plan_of_plain_code_can_be_pickled() -> None:
    model, inputs = Shifted("weights").eval(), [x.detach() for x in sequences()]
    planned = pickle.loads(pickle.dumps(fl.plan(fl.record_each(model, inputs))))
    assert_same([x.detach() for x in fl.batch(model).run(planned)], [model(x).detach() for x in inputs])
