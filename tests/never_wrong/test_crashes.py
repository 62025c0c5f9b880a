"""Finding 5: nothing crashes, whatever is called."""

from __future__ import annotations

import copy
import pickle
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import foldloom as fl
from tests.never_wrong.checking import check, exit_code_of_a_child, linear, vectors

# ---- What calls back into Python, or reaches for memory that a value does not have yet.

MEMORY: dict[str, Callable[[torch.Tensor], Any]] = {
    "apply_": lambda x: x.apply_(lambda number: number + 1),
    "map_": lambda x: x.map_(torch.ones(3, dtype=torch.float64), lambda one, other: one + other),
    "set_": lambda x: x.set_(torch.ones(2, dtype=torch.float64)),  # type: ignore[call-overload]
}

MORE_MEMORY: dict[str, Callable[[torch.Tensor], Any]] = {
    "data_ptr": lambda x: x.data_ptr() != 0,
    "storage": lambda x: len(x.untyped_storage()) == 24,
    "resize_": lambda x: x.resize_(3),
    "share_memory_": lambda x: x.share_memory_().is_shared(),
    "numpy": lambda x: x.numpy() + 1,
    "dlpack": lambda x: torch.from_dlpack(x) * 2,  # type: ignore[attr-defined]
    "memory view": lambda x: bytes(x.numpy().data)[:0],
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
}


@pytest.mark.parametrize("name", list(MEMORY))
def test_memory_of_a_value(name: str) -> None:
    """In a process of its own, because today some of these end the process."""
    inputs = [x.detach() for x in vectors()]
    assert exit_code_of_a_child(lambda: check(lambda x: MEMORY[name](x * 2), inputs, or_refused=True)) == 0


@pytest.mark.parametrize("name", list(MORE_MEMORY))
def test_more_memory_of_a_value(name: str) -> None:
    inputs = [x.detach() for x in vectors()]
    check(lambda x: MORE_MEMORY[name](x * 2), inputs, or_refused=True)


# ---- Weights that are converted to what they are.

CONVERSIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "to dtype": lambda w, x: w.to(x.dtype),
    "to like": lambda w, x: w.to(x),
    "to device": lambda w, x: w.to("cpu"),
    "type_as": lambda w, x: w.type_as(x),
    "double": lambda w, x: w.double(),
    "contiguous": lambda w, x: w.contiguous(),
    "cpu": lambda w, x: w.cpu(),
    "type": lambda w, x: w.type(x.dtype),
    "expand": lambda w, x: w.expand(3),
    "as_tensor": lambda w, x: torch.as_tensor(w),
    "resolve_conj": lambda w, x: w.resolve_conj(),
    "squeeze": lambda w, x: w.squeeze(),
    "flatten": lambda w, x: w.flatten(),
    "reshape": lambda w, x: w.reshape(3),
    "requires_grad_": lambda w, x: w.requires_grad_(),
}


@pytest.mark.parametrize("name", list(CONVERSIONS))
def test_weight_converted_to_what_it_is(name: str) -> None:
    weight, inputs = nn.Parameter(torch.ones(3, dtype=torch.float64)), vectors()

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = x + CONVERSIONS[name](weight, x)
        return x * weight

    check(function, inputs, sources=[*inputs, weight])


def test_a_weight_converted_very_often() -> None:
    weight, inputs = nn.Parameter(torch.ones(3)), [torch.ones(3)] * 4

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(500):
            x = x + weight.to(x.dtype)
        return x

    start = time.perf_counter()
    results = fl.batch(function)(inputs)
    assert time.perf_counter() - start < 5
    torch.testing.assert_close(results, [x + 500 for x in inputs])


# ---- Modules of other kinds.


def traced() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.Sequential(linear(), nn.Tanh()), torch.ones(3, dtype=torch.float64))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(linear(), nn.Tanh()))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "compiled": lambda: torch.compile(nn.Sequential(linear(), nn.Tanh()), backend="eager"),  # type: ignore[dict-item, return-value]
    "traced": traced,
    "scripted": scripted,
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(linear()),
    "spectral_norm in eval mode": lambda: nn.utils.parametrizations.spectral_norm(linear()).eval(),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(linear()),
    "cell of weight_norm": lambda: fl.cell(nn.utils.parametrizations.weight_norm(linear())),
    "cell of orthogonal": lambda: fl.cell(nn.utils.parametrizations.orthogonal(linear())),
    "pruned": lambda: prune.l1_unstructured(linear(), "weight", 0.5),
    "cell of pruned": lambda: fl.cell(prune.l1_unstructured(linear(), "weight", 0.5)),
    "deep copy": lambda: copy.deepcopy(nn.Sequential(linear(), nn.Tanh())),
    "pickled": lambda: pickle.loads(pickle.dumps(nn.Sequential(linear(), nn.Tanh()))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(MODULES))
def test_modules_of_other_kinds(name: str) -> None:
    module, inputs = MODULES[name](), vectors()
    check(lambda x: module(x * 2), inputs, sources=[*inputs, *module.parameters()])


def test_weight_norm_on_a_cell() -> None:
    plain, inputs = linear(), vectors()
    cell = nn.utils.parametrizations.weight_norm(fl.cell(copy.deepcopy(plain)))
    results = fl.batch(lambda x: cell(x * 2))(inputs)
    torch.testing.assert_close(results, [plain(x * 2) for x in inputs])
    torch.testing.assert_close([cell(x * 2) for x in inputs], results)


@pytest.mark.filterwarnings("ignore")
def test_compiled_function_inside() -> None:
    function, inputs = torch.compile(lambda x: torch.tanh(x) * 2, backend="eager"), vectors()
    check(lambda x: function(x * 2) + 1, inputs, sources=inputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["expression", "branch", "error"])
def test_scripted_function_inside(name: str) -> None:
    """In a process of its own, because today it may end the process."""

    @torch.jit.script
    def expression(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    @torch.jit.script
    def branch(x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            return torch.tanh(x) * 2
        return x

    def error(x: torch.Tensor) -> torch.Tensor:
        try:
            return expression(x, x)
        except RuntimeError:
            return expression(x)

    function, inputs = {"expression": expression, "branch": branch, "error": error}[name], vectors()
    assert exit_code_of_a_child(lambda: check(lambda x: function(x * 2) + 1, inputs, sources=inputs)) == 0
