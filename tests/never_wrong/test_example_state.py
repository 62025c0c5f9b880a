"""Finding 1: what an example writes to a module while it waits belongs to it, and later examples see it as in a loop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.never_wrong.checking import Program, check_program, linear, steps_run, vectors


class Net(nn.Module):
    """A module whose forward is any function of it and one example."""

    def __init__(self, forward: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.lin, self.child = linear(), nn.Module()
        self.count, self.h = 0, None
        self.history: list[Any] = []
        self.register_buffer("average", torch.zeros(3, dtype=torch.float64))
        self.run = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.run(self, x)


def left_on(model: Net) -> Any:
    return {name: value for name, value in vars(model).items() if name in ("count", "history", "h", "flag", "cache")}


def net(forward: Callable[[Any, torch.Tensor], Any]) -> Callable[[], Program]:
    def build() -> Program:
        model, inputs = Net(forward), vectors(4)
        return Program(model, [inputs], [*inputs, *model.parameters()], lambda: left_on(model))

    return build


def attribute(self: Any, x: torch.Tensor) -> Any:
    self.h = self.lin(x) * 2
    if self.h.sum() > 0:
        self.h = self.h + 1
    return self.h


def attribute_of_a_child(self: Any, x: torch.Tensor) -> Any:
    self.child.state = x * 2
    if self.child.state.sum() > 0:
        return self.child.state + 1
    return self.child.state


def attribute_that_is_a_number(self: Any, x: torch.Tensor) -> Any:
    self.flag = float((x * 2).detach().sum())
    positive = bool(self.lin(x).sum() > 0)
    return x * self.flag, self.flag, positive


def attribute_set_by_setattr(self: Any, x: torch.Tensor) -> Any:
    setattr(self, "flag", x * 3)  # noqa: B010
    positive = bool(self.lin(x).sum() > 0)
    return getattr(self, "flag") if positive else self.__dict__["flag"]  # noqa: B009


def attribute_set_in_its_dict(self: Any, x: torch.Tensor) -> Any:
    self.__dict__["flag"] = x * 3
    positive = bool(self.lin(x).sum() > 0)
    return self.flag, positive


def attribute_deleted(self: Any, x: torch.Tensor) -> Any:
    self.flag = x * 2
    positive = bool(self.lin(x).sum() > 0)
    result = self.flag
    del self.flag
    return result, positive, hasattr(self, "flag")


def list_made_anew(self: Any, x: torch.Tensor) -> Any:
    self.history = []
    for row in x:
        self.history.append(row * 2)
        if self.history[-1] > 0:
            self.history.append(row * 3)
    return list(self.history)


def stateful_recurrence(self: Any, x: torch.Tensor) -> Any:
    self.h = None
    for _ in range(3):
        self.h = self.lin(x) if self.h is None else torch.tanh(self.lin(self.h))
        if self.h.sum() > 1:
            break
    return self.h


def counter(self: Any, x: torch.Tensor) -> Any:
    self.count += 1
    if self.lin(x).sum() > 0:
        self.count += 10
    return x * self.count, self.count


def counter_without_waiting(self: Any, x: torch.Tensor) -> Any:
    self.count += 1
    return self.lin(x) * self.count


def counter_after_waiting(self: Any, x: torch.Tensor) -> Any:
    if self.lin(x).sum() > 0:
        self.count += 1
    return x * self.count


def carried_over(self: Any, x: torch.Tensor) -> Any:
    before = self.h
    self.h = self.lin(x).detach()
    positive = bool(self.h.sum() > 0)
    return x if before is None else x + before, positive


def made_by_the_first(self: Any, x: torch.Tensor) -> Any:
    positive = bool(self.lin(x).sum() > 0)
    if not hasattr(self, "cache"):
        self.cache = x.detach() * 2
    return self.cache * x, positive


def moving_average(self: Any, x: torch.Tensor) -> Any:
    self.average = 0.9 * self.average + 0.1 * x.detach()
    positive = bool((x - self.average).sum() > 0)
    return x - self.average, positive


def training_switched(self: Any, x: torch.Tensor) -> Any:
    self.eval()
    positive = bool(self.lin(x).sum() > 0)
    seen = self.training
    self.train()
    return x * 2, positive, seen


def restored_at_last(self: Any, x: torch.Tensor) -> Any:
    self.flag, before = x * 2, self.h
    self.h = x
    try:
        positive = bool((self.flag + self.h).sum() > 0)
        return self.h + self.flag, positive
    finally:
        self.h, self.flag = before, None


MODULES: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    function.__name__: function
    for function in (
        attribute,
        attribute_of_a_child,
        attribute_that_is_a_number,
        attribute_set_by_setattr,
        attribute_set_in_its_dict,
        attribute_deleted,
        list_made_anew,
        stateful_recurrence,
        counter,
        counter_without_waiting,
        counter_after_waiting,
        carried_over,
        made_by_the_first,
        moving_average,
        training_switched,
        restored_at_last,
    )
}


@pytest.mark.parametrize(
    "name",
    list(MODULES),
)
def test_attributes_of_modules(name: str) -> None:
    check_program(net(MODULES[name]))


def test_attribute_written_by_a_hook() -> None:
    def build() -> Program:
        layer, inputs = linear(), vectors()
        layer.register_forward_hook(lambda module, given, result: setattr(module, "last", result * 2))

        def function(x: torch.Tensor) -> Any:
            positive = bool(layer(x).sum() > 0)
            return layer.last, positive

        return Program(function, [inputs], [*inputs, *layer.parameters()])

    check_program(build)


def test_attribute_of_a_module_that_is_called_by_a_function() -> None:
    def build() -> Program:
        model, inputs = Net(attribute), vectors()

        def function(x: torch.Tensor) -> Any:
            first = model(x)
            return first, model(first), model.h

        return Program(function, [inputs], [*inputs, *model.parameters()], lambda: left_on(model))

    check_program(build)


def test_the_last_example_leaves_its_attribute_behind() -> None:
    def build() -> Program:
        model, inputs = Net(attribute), vectors()
        return Program(model, [inputs], left=lambda: model.h.detach() * 1)  # type: ignore[attr-defined]

    check_program(build)


def test_copies_of_a_module_that_share_weights_run_together() -> None:
    layer, inputs = linear(), vectors(8)

    def function(x: torch.Tensor) -> torch.Tensor:
        own = copy.copy(layer)
        return own(x).tanh()

    def deep(x: torch.Tensor) -> torch.Tensor:
        own = copy.deepcopy(layer, {id(weight): weight for weight in layer.parameters()})
        return own(x).tanh()

    for program in (function, deep):
        check_program(lambda program=program: Program(program, [inputs], [*inputs, *layer.parameters()]))  # type: ignore[misc]
        assert steps_run(program, inputs) == 2
