"""Finding 4: requires_grad, grad_fn and is_leaf of values and results, and what asks for a value without its history."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, linear, vectors

LAYER = linear()
FROZEN = linear().requires_grad_(False)
BUFFER = torch.ones(3, dtype=torch.float64)


def history(x: torch.Tensor) -> Any:
    return x.requires_grad, x.grad_fn is None, x.is_leaf


def under_no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


def under_enable_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), torch.enable_grad():
        return x * 2


def detached_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.detach_()
    return y


def made_to_require_grad(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).detach().requires_grad_()


def set_to_require_grad(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).detach()
    y.requires_grad = True
    return y


def filled(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(3, dtype=torch.float64)
    y[0] = x[0] * 2
    return y


def filled_by_a_constant(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).detach()
    y[0] = 3.0
    return y


VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "computed": lambda x: x * 2,
    "detached": lambda x: (x * 2).detach(),
    "data": lambda x: (x * 2).data,
    "computed from detached": lambda x: x.detach() * 2,
    "detached and weights": lambda x: LAYER(x.detach()),
    "detached and frozen weights": lambda x: FROZEN(x.detach()),
    "frozen weights": FROZEN,
    "buffer": lambda x: BUFFER * 2,
    "constant": lambda x: torch.zeros(3) + 1,
    "like": lambda x: torch.zeros_like(x * 2),
    "new": lambda x: (x * 2).new_zeros(2),
    "index": lambda x: (x * 2).argmax(),
    "comparison": lambda x: (x * 2) > 0,
    "converted": lambda x: (x * 2).long(),
    "back and forth": lambda x: (x * 2).long().double(),
    "rounded": lambda x: (x * 2).round(),
    "sign": lambda x: (x * 2).sign(),
    "one_hot": lambda x: nn.functional.one_hot((x * 2).argmax(), 3),
    "under no_grad": under_no_grad,
    "under enable_grad": under_enable_grad,
    "no_grad decorator": torch.no_grad()(lambda x: LAYER(x)),
    "detach_": detached_in_place,
    "requires_grad_": made_to_require_grad,
    "requires_grad set": set_to_require_grad,
    "a place set": filled,
    "a place set to a constant": filled_by_a_constant,
    "weight": lambda x: LAYER.weight,
    "computed from weights": lambda x: LAYER.weight * 2,
    "detached weight": lambda x: LAYER.weight.detach(),
    "data of a weight": lambda x: LAYER.weight.data,
    "row of a weight": lambda x: LAYER.weight[0],
    "embedded": lambda x: nn.functional.embedding(torch.tensor([1, 2]), LAYER.weight.detach()),
    "given": lambda x: x,
    "given and detached": lambda x: x.detach(),
    "view of what was given": lambda x: x.view(3, 1),
}


@pytest.mark.parametrize(
    "name",
    list(VALUES),
)
def test_history_of_a_value(name: str) -> None:
    check(lambda x: history(VALUES[name](x)), vectors())


@pytest.mark.parametrize(
    "name",
    list(VALUES),
)
def test_history_of_a_result(name: str) -> None:
    inputs = vectors()
    check(VALUES[name], inputs, sources=[*inputs, *LAYER.parameters()])


@pytest.mark.parametrize(
    "name",
    list(VALUES),
)
def test_history_of_a_result_beside_one_that_has_one(name: str) -> None:
    inputs = vectors()
    check(lambda x: (LAYER(x) * 2, VALUES[name](x)), inputs, sources=[*inputs, *LAYER.parameters()])


def test_inputs_that_need_no_gradients() -> None:
    inputs = [x.detach() for x in vectors()]
    check(lambda x: (history(x * 2), x * 2, x, FROZEN(x), LAYER(x)), inputs, sources=LAYER.parameters())


def test_some_inputs_need_gradients() -> None:
    inputs = vectors()
    inputs[1] = inputs[1].detach()
    check(lambda x: (x * 2, (x * 2).requires_grad), inputs, sources=[inputs[0], inputs[2]])


def test_same_tensor_comes_back() -> None:
    inputs = vectors()
    assert all(result is x for result, x in zip(fl.batch(lambda x: x)(inputs), inputs, strict=True))
    assert all(result is LAYER.weight for result in fl.batch(lambda x: LAYER.weight)(inputs))


# ---- Without its history.


def error_of(call: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        try:
            return call(x)
        except (RuntimeError, TypeError, ValueError) as error:
            return type(error).__name__

    return function


def warned(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = torch.tensor(x)
    return made, [warning.category.__name__ for warning in caught]


OUTSIDE: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": error_of(lambda x: x.numpy()),
    "numpy by force": lambda x: x.numpy(force=True),
    "numpy of detached": lambda x: x.detach().numpy(),
    "numpy of data": lambda x: x.data.numpy(),
    "numpy of an index": lambda x: x.argmax().numpy(),
    "numpy under no_grad": error_of(lambda x: under_no_grad(x).numpy()),
    "asarray": error_of(np.asarray),
    "asarray of detached": lambda x: np.asarray(x.detach()),
    "numpy function": error_of(np.sum),
    "list": lambda x: x.tolist(),
    "item": lambda x: x.sum().item(),
    "torch.tensor": warned,
    "torch.tensor of a list": lambda x: torch.tensor([x[0].item(), 1.0]),
    "new_tensor": lambda x: torch.zeros(1).new_tensor(x.tolist()),
    "from_numpy": lambda x: torch.from_numpy(x.detach().numpy()) * 2,
    "numpy is a view": lambda x: x.detach().clone().numpy().base is None,
}


@pytest.mark.parametrize(
    "name",
    list(OUTSIDE),
)
def test_a_value_outside_of_torch(name: str) -> None:
    inputs = vectors()
    check(lambda x: OUTSIDE[name](x * 1.5), inputs)


def test_results_as_arrays() -> None:
    inputs = vectors()
    found = fl.batch(lambda x: ((x * 2).detach(), LAYER(x).argmax(), under_no_grad(x)))(inputs)
    for result, x in zip(found, inputs, strict=True):
        np.testing.assert_allclose(result[0].numpy(), x.detach().numpy() * 2)
        np.testing.assert_allclose(result[2].numpy(), x.detach().numpy() * 2)


# ---- Derivatives inside a program.


def grad_of(x: torch.Tensor) -> Any:
    return torch.autograd.grad((LAYER(x) ** 2).sum(), x, create_graph=True)[0]


def grad_of_a_leaf(x: torch.Tensor) -> Any:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad((LAYER(leaf) ** 2).sum(), leaf)[0]


def backward_to_a_leaf(x: torch.Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    (leaf**3).sum().backward()
    return leaf.grad


def descended(x: torch.Tensor) -> Any:
    """Gradient descent inside, as of energy-based models."""
    for _ in range(3):
        x = x.detach().requires_grad_()
        energy = (LAYER(x) ** 2).sum()
        (slope,) = torch.autograd.grad(energy, x)
        x = x - 0.1 * slope
    return x


def grad_of_a_value(x: torch.Tensor) -> Any:
    y = LAYER(x)
    z = y.sin() * y
    (slope,) = torch.autograd.grad(z.sum() + y.sum(), y, create_graph=True)
    return z * slope, slope.requires_grad


def grad_of_a_weight(x: torch.Tensor) -> Any:
    """Each example its own."""
    return torch.autograd.grad((LAYER(x) ** 2).sum(), (LAYER.weight, LAYER.bias))


def grad_after_a_wait(x: torch.Tensor) -> Any:
    y = LAYER(x)
    if y.sum() > 0:
        y = y * 2
    slopes = torch.autograd.grad((y * x).sum(), (x, y), create_graph=True)
    return sum(slopes) * y


def grad_of_rows(x: torch.Tensor) -> Any:
    rows = LAYER(torch.stack([x, x * 2]))
    return torch.autograd.grad((rows**3).sum(), rows)[0] + rows


def grad_for_several(x: torch.Tensor) -> Any:
    y, unused = LAYER(x), x * 3
    return torch.autograd.grad([y, y * x], [x, unused], [torch.ones(3).double(), y], allow_unused=True)


def grad_for_zeros(x: torch.Tensor) -> Any:
    return torch.autograd.grad(LAYER(x).sum(), [x, x * 3], materialize_grads=True)


def grad_of_what_is_unused(x: torch.Tensor) -> Any:
    try:
        return torch.autograd.grad(LAYER(x).sum(), x * 3)
    except RuntimeError as error:
        return str(error)[:60]


def grad_of_what_has_no_history(x: torch.Tensor) -> Any:
    try:
        return torch.autograd.grad(LAYER(x).sum(), (x * 3).detach())
    except RuntimeError as error:
        return str(error)[:60]


def grad_of_what_was_changed(x: torch.Tensor) -> Any:
    y = x * 2
    z = y * y
    y.add_(1)
    try:
        return torch.autograd.grad(z.sum(), x)
    except RuntimeError as error:
        return str(error)[:80]


def backward_of_several(x: torch.Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    torch.autograd.backward([leaf.sin(), (leaf**2).sum()], [leaf.detach(), None])
    first = leaf.grad.clone()
    leaf.grad = None
    (leaf * 2).backward(gradient=first)
    return first, leaf.grad


def backward_into_the_same(x: torch.Tensor) -> Any:
    leaf = x.detach().clone().requires_grad_()
    for _ in range(3):
        (leaf**2).sum().backward()
        with torch.no_grad():
            leaf -= 0.1 * leaf.grad
        leaf.grad.zero_()
    return leaf, leaf.grad


INSIDE = {
    function.__name__: function
    for function in (
        grad_of, grad_of_a_leaf, backward_to_a_leaf, descended, grad_of_a_value, grad_of_a_weight, grad_after_a_wait, grad_of_rows,
        grad_for_several, grad_for_zeros, grad_of_what_is_unused, grad_of_what_has_no_history, grad_of_what_was_changed,
        backward_of_several, backward_into_the_same,
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    list(INSIDE),
)
def test_derivatives_inside_a_program(name: str) -> None:
    inputs = vectors()
    check(lambda x: INSIDE[name](x * 1.5), inputs, sources=inputs)


def test_backward_inside_adds_to_weights() -> None:
    """One by one, a program may run backward for each example; a batch does the same."""

    def build() -> Program:
        layer, inputs = linear(), vectors()

        def function(x: torch.Tensor) -> Any:
            loss = (layer(x) ** 2).sum()
            loss.backward()
            return loss.item()

        return Program(function, [inputs], left=lambda: [layer.weight.grad, *(x.grad for x in inputs)])

    check_program(build)
