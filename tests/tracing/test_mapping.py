"""`fl.vmap`: what `torch.vmap` gives and raises, and what `torch.vmap` refuses."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vjp

import foldloom as fl
from tests.law import assert_same

Pair = namedtuple("Pair", "first second")

X, Y, Z = (torch.randn(shape, dtype=torch.float64) for shape in ((3, 4, 5), (3, 4, 5), (3,)))


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def identity(x: Any) -> Any:
    return x


def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2 + y, y.sin()


def nothing() -> Tensor:
    return torch.ones(3)


VALUES: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[Any, ...]]] = {
    "one input": (torch.sin, {}, (X,)),
    "several inputs": (torch.mul, {}, (X, Y)),
    "several outputs": (both, {}, (X, Y)),
    "a list of outputs": (lambda x: [x, x * 2], {}, (X,)),
    "a dict of outputs": (lambda x: {"a": x, "b": {"c": x.sum()}}, {}, (X,)),
    "an ordered dict of outputs": (lambda x: OrderedDict([("b", x), ("a", x + 1)]), {}, (X,)),
    "a named tuple of outputs": (lambda x: Pair(x, x.sum()), {}, (X,)),
    "nested inputs": (lambda d, p: d["x"] * p[0] + p[1][0], {}, ({"x": X}, (Y, [X]))),
    "in_dims": (torch.mul, {"in_dims": 1}, (X, Y)),
    "in_dims for each input": (lambda x, y: x * y, {"in_dims": (0, 1)}, (X, X.transpose(0, 1))),
    "negative in_dims": (lambda x: x.sum(0), {"in_dims": -1}, (X,)),
    "negative nested in_dims": (lambda p: p[0] + p[1], {"in_dims": ((-1, -2),)}, ((X, X.transpose(1, 2)),)),
    "in_dims of None": (torch.mul, {"in_dims": (0, None)}, (X, Y[0])),
    "in_dims of None for what is no tensor": (lambda x, n: x * n, {"in_dims": (0, None)}, (X, 3)),
    "nested in_dims": (lambda d: d["x"] * d["y"], {"in_dims": ({"x": 0, "y": None},)}, ({"x": X, "y": Y[0]},)),
    "in_dims that hold for a whole structure": (
        lambda p, y: p[0] * p[1] + y,
        {"in_dims": (1, 0)},
        ((X, Y), Y.transpose(0, 1)),
    ),
    "out_dims": (torch.sin, {"out_dims": 2}, (X,)),
    "negative out_dims": (torch.sin, {"out_dims": -1}, (X,)),
    "out_dims for each output": (both, {"out_dims": (1, 2)}, (X, Y)),
    "one out_dim in a tuple": (torch.sin, {"out_dims": (1,)}, (X,)),
    "nested out_dims": (lambda x: ({"a": x, "b": x}, x), {"out_dims": ({"a": 1, "b": 2}, 0)}, (X,)),
    "out_dims that hold for a whole structure": (lambda x: ({"a": x, "b": x}, x), {"out_dims": (1, 0)}, (X,)),
    "an output that is not mapped": (lambda x, y: (x, y * 2), {"in_dims": (0, None), "out_dims": (0, None)}, (X, Y)),
    "an output that is no tensor": (lambda x: (x, 3, "b"), {"out_dims": (0, None, None)}, (X,)),
    "in_dims and out_dims": (lambda x: x.T, {"in_dims": 1, "out_dims": 1}, (X,)),
    "an output that is the same for all": (lambda x: torch.ones(2), {}, (X,)),
    "numbers": (lambda x: x * 2, {}, (Z,)),
    "a module": (nn.Linear(5, 2).double(), {}, (X,)),
    "a partial function": (partial(torch.add, alpha=3), {}, (X, Y)),
    "a method": (X[0, 0].dot, {}, (Y[0],)),
    "a batch of none": (lambda x: x * 2, {}, (torch.zeros(0, 3),)),
    "whole numbers": (lambda x: x * 2, {}, (torch.arange(3),)),
    "truth": (lambda x: x > 0, {}, (Z,)),
    "chunks": (both, {"chunk_size": 2, "out_dims": (1, 0)}, (X, Y)),
    "chunks of one": (torch.sin, {"chunk_size": 1}, (X,)),
    "a chunk larger than the batch": (torch.sin, {"chunk_size": 100}, (X,)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    function, settings, args = VALUES[name]
    expected = torch.vmap(function, **settings)(*args)
    actual = fl.vmap(function, **settings)(*args)
    assert type(actual) is type(expected)
    assert_same(actual, expected)


ERRORS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[Any, ...]]] = {
    "no inputs": (nothing, {}, ()),
    "no tensors": (identity, {"in_dims": (None,)}, (3,)),
    "a number": (identity, {}, (3,)),
    "sizes that differ": (torch.mul, {}, (X, X.transpose(0, 1))),
    "an output that is no tensor": (lambda x: 3, {}, (X,)),
    "one output that is no tensor": (lambda x: (x, "b"), {}, (X,)),
    "None": (lambda x: None, {}, (X,)),
    "in_dims of a wrong type": (identity, {"in_dims": [0]}, (X,)),
    "in_dims of a wrong type within": (identity, {"in_dims": (0.5,)}, (X,)),
    "too few in_dims": (torch.mul, {"in_dims": (0,)}, (X, Y)),
    "in_dims of another structure": (identity, {"in_dims": ({"a": 0},)}, ([X],)),
    "an in_dim that is not there": (identity, {"in_dims": 3}, (X,)),
    "a negative in_dim that is not there": (identity, {"in_dims": -4}, (X,)),
    "an in_dim of a number": (identity, {}, (torch.tensor(1.0),)),
    "out_dims of a wrong type": (identity, {"out_dims": 0.5}, (X,)),
    "out_dims of a wrong type within": (identity, {"out_dims": ("a",)}, (X,)),
    "too many out_dims": (identity, {"out_dims": (0, 0)}, (X,)),
    "too few out_dims": (both, {"out_dims": (0,)}, (X, Y)),
    "out_dims of another structure": (both, {"out_dims": {"a": 0}}, (X, Y)),
    "an out_dim that is not there": (identity, {"out_dims": 3}, (X,)),
    "an output that is mapped": (identity, {"out_dims": None}, (X,)),
    "random numbers": (lambda x: x + torch.rand(2), {}, (torch.zeros(2, 2),)),
    "random numbers like a tensor": (lambda x: x + torch.randn_like(x), {}, (X,)),
    "dropout": (nn.Dropout(), {}, (X,)),
    "what the function raises": (lambda x: x @ torch.ones(7), {"in_dims": 2}, (X,)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    function, settings, args = ERRORS[name]
    raised = []
    for vmap in (torch.vmap, fl.vmap):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            vmap(function, **settings)(*args)
        raised.append(caught.value)
    assert type(raised[0]) is type(raised[1])
    if name != "what the function raises":  # torch tells the shapes of the batch there
        assert str(raised[0]) == str(raised[1])


@pytest.mark.parametrize("settings", [{"randomness": "some"}, {"chunk_size": 0}, {"chunk_size": -1}])
def test_errors_of_settings(settings: dict[str, Any]) -> None:
    raised = []
    for vmap in (torch.vmap, fl.vmap):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            vmap(torch.sin, **settings)(X)
        raised.append((type(caught.value), str(caught.value)))
    assert raised[0] == raised[1]


def test_keyword_arguments_are_not_mapped() -> None:
    def scaled(x: Tensor, scale: Any = 4.0) -> Tensor:
        return x * scale

    for settings in ({}, {"scale": 2.0}, {"scale": Z}):
        assert_same(fl.vmap(scaled)(torch.ones(2, 3), **settings), torch.vmap(scaled)(torch.ones(2, 3), **settings))


def test_it_wraps_the_function() -> None:
    assert fl.vmap(both).__name__ == "both"


def test_arguments_changed_in_place() -> None:
    x, y = X.clone(), X.clone()
    expected, actual = torch.vmap(lambda x: x.add_(1))(x), fl.vmap(lambda x: x.add_(1))(y)
    assert_same([actual, y], [expected, x])


# ---- Nesting and other transforms.

VMAPS = {"fl in fl": (fl.vmap, fl.vmap), "torch in fl": (fl.vmap, torch.vmap), "fl in torch": (torch.vmap, fl.vmap)}


@pytest.mark.parametrize("name", VMAPS)
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ({}, {}),
        ({"in_dims": 1}, {"in_dims": 1}),
        ({"in_dims": (0, None)}, {"in_dims": (None, 0)}),
        ({"out_dims": 1}, {"out_dims": 0}),
        ({"in_dims": -1, "out_dims": -1}, {}),
    ],
)
def test_nesting(name: str, outer: dict[str, Any], inner: dict[str, Any]) -> None:
    first, second = VMAPS[name]
    expected = torch.vmap(torch.vmap(torch.mul, **inner), **outer)(X, Y)
    assert_same(first(second(torch.mul, **inner), **outer)(X, Y), expected)


def cubic(weight: Tensor, x: Tensor) -> Tensor:
    return (weight * x**3).sum()


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "gradients of each example": lambda vmap: vmap(grad(cubic, argnums=1), in_dims=(None, 0))(torch.ones(5), X),
    "gradients of each example, by vjp": lambda vmap: vmap(lambda x: vjp(torch.sin, x)[1](torch.ones(4, 5))[0])(X),
    "jacobians of each example": lambda vmap: vmap(jacrev(torch.sin))(X[0]),
    "a gradient through it": lambda vmap: grad(lambda w: vmap(cubic, in_dims=(None, 0))(w, X).sum())(torch.ones(5)),
    "a vjp through it": lambda vmap: vjp(lambda x: vmap(torch.sin)(x), X)[1](Y),
    "a jacobian through it": lambda vmap: jacrev(lambda x: vmap(torch.sin)(x))(X[0]),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_inside_and_outside(name: str) -> None:
    assert_same(TRANSFORMED[name](fl.vmap), TRANSFORMED[name](torch.vmap))


def test_an_ensemble_of_modules() -> None:
    models = [nn.Linear(5, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)

    def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(models[0], (parameters, buffers), (x,))

    expected = torch.vmap(call, in_dims=(0, 0, None))(parameters, buffers, X[0])
    assert_same(fl.vmap(call, in_dims=(0, 0, None))(parameters, buffers, X[0]), expected)


def test_gradients_of_arguments_and_weights() -> None:
    layer, gradients = nn.Linear(5, 2), []
    for vmap in (torch.vmap, fl.vmap):
        x = X.clone().requires_grad_()
        vmap(lambda x: layer(x).tanh().sum(), in_dims=1)(x).square().sum().backward()
        gradients.append([x.grad, layer.weight.grad])
        layer.zero_grad()
    assert_same(gradients[1], gradients[0])


# ---- Random numbers.


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_the_same_random_numbers(chunk_size: int | None) -> None:
    def noisy(x: Tensor) -> Tensor:
        return x + torch.rand(5)

    found = []
    for vmap in (torch.vmap, fl.vmap):
        torch.manual_seed(3)
        found.append([vmap(noisy, randomness="same", chunk_size=chunk_size)(torch.zeros(3, 5)), torch.rand(2)])
    assert_same(found[1], found[0])


def test_the_same_random_numbers_after_waiting() -> None:
    def noisy(x: Tensor) -> Tensor:
        return torch.rand(()) + (torch.rand(()) if x > 0 else 0) + torch.rand(())

    torch.manual_seed(3)
    found = fl.vmap(noisy, randomness="same")(torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert found[0] == found[2] != found[1] == found[3]


def test_different_random_numbers() -> None:
    torch.manual_seed(3)
    found = fl.vmap(lambda x: x + torch.rand(()), randomness="different")(torch.zeros(100))
    assert len(found.unique()) > 90


def test_refused_random_numbers_leave_the_generator_alone() -> None:
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        fl.vmap(lambda x: x + torch.rand(()))(torch.zeros(3))
    after = torch.rand(2)
    torch.manual_seed(3)
    assert_same(after, torch.rand(2))


# ---- What torch.vmap refuses.


def collatz(n: Tensor) -> Tensor:
    steps = torch.zeros((), dtype=torch.int64)
    while n > 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


def power(x: Tensor, n: Tensor) -> Tensor:
    if n == 0:
        return torch.ones_like(x)
    half = power(x, n // 2)
    return half * half * x if n % 2 else half * half


REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "if": (lambda x: x if x.sum() > 0 else -2 * x, (X,)),
    "while": (collatz, (torch.tensor([6, 27, 1, 9]),)),
    "item": (lambda x: x * x.max().item(), (X,)),
    "nonzero": (lambda x: x[x > 0].nonzero().sum(), (X,)),
    "tolist": (lambda x: torch.tensor(sorted(x.tolist())), (Z.view(3, 1),)),
    "recursion": (power, (torch.full((4,), 1.1, dtype=torch.float64), torch.tensor([0, 3, 7, 2]))),
    "an index": (lambda x, n: x[: int(n)].sum(), (X[0], torch.tensor([1, 3, 2, 0]))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_torch_refuses(name: str) -> None:
    function, args = REFUSED[name]
    with pytest.raises(RuntimeError):
        torch.vmap(function)(*args)
    expected = torch.stack([function(*slices) for slices in zip(*args, strict=True)])
    assert_same(fl.vmap(function)(*args), expected)
    assert_same(fl.vmap(fl.vmap(function))(*[arg.unsqueeze(0) for arg in args]), expected.unsqueeze(0))


def test_results_of_different_shapes() -> None:
    with pytest.raises(
        ValueError, match=r"tensors of one shape, got \(1, 5\) and \(2, 5\) for different examples. `fl.batch` returns"
    ):
        fl.vmap(lambda x, n: x[: int(n)])(X[:2], torch.tensor([1, 2]))


def test_results_of_different_structure() -> None:
    with pytest.raises(ValueError, match="results of one structure"):
        fl.vmap(lambda x: (x, x) if x > 0 else x)(torch.tensor([1.0, -1.0]))
