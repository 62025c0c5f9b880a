"""What is refused, and the words that say what to write instead."""

from __future__ import annotations

import pytest
from torch import nn

import foldloom as fl
from tests.tracing.plain import vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_backward_inside_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match="Return the loss"):
        fl.batch(lambda x: (x * 2).sum().backward())(vectors())


def test_refused_methods_say_what_to_do_instead() -> None:
    for call in (
        lambda x: x.register_hook(lambda grad: grad * 2),
        lambda x: x.retain_grad(),
        lambda x: x.requires_grad_(False),
    ):
        with pytest.raises(fl.errors.ArgumentError, match=r"Return the value|Write `x = x\.detach"):
            fl.batch(lambda x, call=call: call(x * 2))(vectors())


def test_a_module_made_inside_the_function_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match=r"Make modules and parameters before(.|\n)*test_refusals\.py"):
        fl.batch(lambda x: nn.Linear(3, 2)(x))(vectors())


def test_a_list_that_the_function_changes_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match=r"xs = list\(xs\)"):
        fl.batch(lambda xs: xs.pop() * 2)([vectors(2)])
    with pytest.raises(fl.errors.ArgumentError, match=r"xs = list\(xs\)"):
        fl.batch(lambda xs: xs.update(y=xs["x"] * 2))([{"x": vector(3)}])
