"""Finding 10: everything is as it was when a call was made, not when it runs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, linear, vectors

SCALE = 1.0

Change = Callable[[nn.Module], None]


def scaled(module: Any) -> None:
    module.lin.weight.data *= 2


def replaced(module: Any) -> None:
    module.lin.weight.data = module.lin.weight.data * 2


def in_place(module: Any) -> None:
    with torch.no_grad():
        module.lin.weight.mul_(2)


def copied(module: Any) -> None:
    with torch.no_grad():
        module.lin.weight.copy_(torch.ones(3, 3))


def a_row(module: Any) -> None:
    with torch.no_grad():
        module.lin.weight[0] = 0


def filled(module: Any) -> None:
    nn.init.constant_(module.lin.bias, 0.5)


def other_parameter(module: Any) -> None:
    module.lin.weight = nn.Parameter(module.lin.weight.detach() * 2, requires_grad=False)


def other_module(module: Any) -> None:
    module.lin = copy.deepcopy(module.lin)
    module.lin.weight.data.zero_()


def loaded(module: Any) -> None:
    module.lin.load_state_dict({name: value * 2 for name, value in module.lin.state_dict().items()})


def slope(module: Any) -> None:
    module.leaky.negative_slope = 0.7


def probability(module: Any) -> None:
    module.dropout.p = 0.0 if module.dropout.p else 1.0


def epsilon(module: Any) -> None:
    module.norm.eps = 0.5


def mode(module: Any) -> None:
    module.dropout.train(not module.dropout.training)


def buffer(module: Any) -> None:
    module.shift.add_(1)


def other_buffer(module: Any) -> None:
    module.shift = module.shift + 1


def attribute(module: Any) -> None:
    module.factor *= 3


def statistics(module: Any) -> None:
    module.batch_norm.running_mean.add_(1)


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        scaled,
        replaced,
        in_place,
        copied,
        a_row,
        filled,
        other_parameter,
        other_module,
        loaded,
        slope,
        probability,
        epsilon,
        mode,
        buffer,
        other_buffer,
        attribute,
        statistics,
    )
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.leaky, self.dropout = linear(), nn.LeakyReLU(0.1), nn.Dropout(1.0)
        self.norm = nn.LayerNorm(3, dtype=torch.float64)
        self.batch_norm = nn.BatchNorm1d(3, dtype=torch.float64).eval()
        self.register_buffer("shift", torch.ones(3, dtype=torch.float64))
        self.factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.leaky(self.lin(x)) + self.shift) * self.factor
        return self.batch_norm(y[None])[0] + self.dropout(x * 2)


@pytest.mark.parametrize(
    "case",
    [f"{name}{waits}" for name in CHANGES for waits in ("", " after a wait")],
)
def test_change_between_two_calls(case: str) -> None:
    """Right or refused: the call before sees what was, the call after what is, and so do later examples."""
    name, waits = case.removesuffix(" after a wait"), case.endswith(" after a wait")

    def build() -> Program:
        model, inputs = Net().requires_grad_(False), [x.detach() for x in vectors()]

        def function(x: torch.Tensor) -> Any:
            before = model(x)
            positive = bool(before.sum() > 0) if waits else None
            CHANGES[name](model)
            return before, model(x), positive

        return Program(function, [inputs], left=lambda: [value.clone() for value in model.state_dict().values()])

    check_program(build, or_refused=True, generator=False)


def test_global_changed_between_two_calls() -> None:
    def build() -> Program:
        global SCALE
        SCALE, inputs = 1.0, vectors()

        def scale(x: torch.Tensor) -> torch.Tensor:
            return x * SCALE

        def function(x: torch.Tensor) -> Any:
            global SCALE
            first = scale(x)
            SCALE += 1
            return first, scale(x)

        return Program(function, [inputs], inputs)

    check_program(build)


def test_global_that_a_cell_reads() -> None:
    def build() -> Program:
        global SCALE
        SCALE, inputs = 1.0, vectors()
        scale = fl.cell(lambda x: x * SCALE)

        def function(x: torch.Tensor) -> Any:
            global SCALE
            first = scale(x)
            SCALE += 1
            return first, scale(x)

        return Program(function, [inputs], inputs)

    check_program(build, or_refused=True)


def test_attribute_that_a_cell_reads() -> None:
    class Scale(nn.Module):
        factor = 2.0
        count = 0

        def __init__(self) -> None:
            super().__init__()
            self.factor, self.count = 2.0, 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return x * self.factor

    def build(change: float = 1.0) -> Program:
        scale, inputs = fl.cell(Scale()), vectors()

        def function(x: torch.Tensor) -> Any:
            first = scale(x)
            scale.function.factor += change
            return first, scale(x), scale(x[:2])

        return Program(function, [inputs], inputs)

    check_program(build, or_refused=True)
    check_program(lambda: build(0.0))


def test_weight_changed_by_one_example_after_a_wait() -> None:
    def build() -> Program:
        layer, inputs = linear().requires_grad_(False), [x.detach() for x in vectors(4)]

        def function(x: torch.Tensor) -> Any:
            first = layer(x)
            if first.sum() > 0:
                with torch.no_grad():
                    layer.weight.mul_(0.5)
            return first, layer(x)

        return Program(function, [inputs], left=lambda: layer.weight.clone())

    check_program(build, or_refused=True)


# ---- Copies and views of values follow, or do not follow, changes in place.


def changed(make: Callable[[torch.Tensor], Any], wait: bool = False) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        other = make(y)
        if wait and y.sum() > 100:
            y = y * 2
        y.add_(1)
        y[0] = 5.0
        return y, (other.copy() if isinstance(other, np.ndarray) else other)

    return function


COPIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "clone": torch.clone,
    "view": lambda y: y.view(3, 1),
    "reshape": lambda y: y.reshape(1, 3),
    "slice": lambda y: y[:2],
    "transposed": lambda y: y[None].T,
    "expanded": lambda y: y.expand(2, 3),
    "detached": lambda y: y.detach(),
    "data": lambda y: y.data,
    "numpy": lambda y: y.numpy(),
    "from_numpy": lambda y: torch.from_numpy(y.numpy()),
    "contiguous": lambda y: y.contiguous(),
    "to": lambda y: y.to(torch.float64),
    "to another dtype": lambda y: y.to(torch.float32),
    "index": lambda y: y[torch.tensor([0, 1])],
    "unsqueezed": lambda y: y.unsqueeze(0),
    "flattened": lambda y: y.flatten(),
    "split": lambda y: y.split(2)[0],
    "unbound": lambda y: y.unbind()[0],
    "real": lambda y: y.real,
    "diagonal": lambda y: y.expand(3, 3).diagonal(),
}


@pytest.mark.parametrize("name", list(COPIES))
def test_copies_and_changes_in_place(name: str) -> None:
    check(changed(COPIES[name]), [x.detach() for x in vectors()])


@pytest.mark.parametrize("name", list(COPIES))
def test_copies_and_changes_in_place_after_a_wait(name: str) -> None:
    check(changed(COPIES[name], wait=True), [x.detach() for x in vectors()])


def through_numpy(x: torch.Tensor) -> Any:
    """A change of the array is a change of the value."""
    y = x * 2
    array = y.numpy()
    array[0] = 7
    return y * 1, array.copy()


def through_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0:1]
    row.fill_(7)
    y.view(-1)[1] = 8
    return y, row


def asked_then_changed(x: torch.Tensor) -> Any:
    y = x * 2
    before = y.tolist()
    y = y + 0
    y[1] = 0
    return before, y.tolist(), y


def relu_in_place(x: torch.Tensor) -> Any:
    y = x * 2
    z = F.relu(y, inplace=True)
    return y, z


THROUGH = {f.__name__: f for f in (through_numpy, through_a_view, asked_then_changed, relu_in_place)}


@pytest.mark.parametrize("name", list(THROUGH))
def test_changes_through_another_name(name: str) -> None:
    inputs = vectors()
    check(THROUGH[name], [x.detach() for x in inputs])
    if name in ("asked_then_changed", "relu_in_place"):
        check(THROUGH[name], inputs, sources=inputs)


# ---- Running statistics arrive in the order of the examples.


@pytest.mark.parametrize(
    "case",
    ["batch norm", "batch norm by name", "after a wait", "cumulative", "two calls"],
)
def test_running_statistics(case: str) -> None:
    def build() -> Program:
        momentum = None if case == "cumulative" else 0.5
        norm, inputs = nn.BatchNorm1d(3, momentum=momentum, dtype=torch.float64), vectors(4, 5, 3)

        def function(x: torch.Tensor) -> Any:
            if case == "batch norm by name":
                return F.batch_norm(x, norm.running_mean, norm.running_var, training=True, momentum=0.5)
            if case == "after a wait" and x.detach().sum() > 0:
                x = x * 2
            y = norm(x)
            return norm(y * 2) if case == "two calls" and x.shape[0] == 5 else y

        left = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
        return Program(function, [inputs], [*inputs, *norm.parameters()], lambda: left)

    check_program(build)


def test_numbers_of_python_are_those_of_the_call() -> None:
    def function(x: torch.Tensor) -> Any:
        settings, results = {"scale": 1.0}, []
        for number in range(3):
            settings["scale"] = math.exp(number)
            results.append(x * settings["scale"])
        places = [0, 1]
        first = x[places]
        places[0] = 2
        shape = [3, 1]
        viewed = x.view(shape)
        shape.clear()
        return results, first, x[places], viewed

    inputs = vectors()
    check(function, inputs, sources=inputs)
