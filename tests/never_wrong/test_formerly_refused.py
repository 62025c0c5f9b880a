"""Finding 13: what is reasonable is not refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, linear, sequences, vectors

LAYER = linear()


def row_of_another_dtype(x: torch.Tensor) -> Any:
    y = LAYER(x) * 2
    y[0] = torch.tensor([1, 2, 3])
    y[-1] = (x[0] * 3).float()
    return y


def place_set_by_a_number(x: torch.Tensor) -> Any:
    y = LAYER(x) * 2
    y[0, 1] = 3
    y[:, 0] = True
    return y


def mask_set(x: torch.Tensor) -> Any:
    y = LAYER(x) * 2
    y[y > 0] = 0
    return y


def mask_set_to_values(x: torch.Tensor) -> Any:
    y = LAYER(x) * 2
    mask = y > 0
    y[mask] = (x * 3)[mask]
    return y


def operation_without_derivative(x: torch.Tensor) -> Any:
    y = LAYER(x)
    unused = y.unique(), torch.histc(y.detach(), 3), y.sign(), torch.bucketize(y, torch.zeros(1).double())
    return y * 2, len(unused)


def floor_divided(x: torch.Tensor) -> Any:
    return LAYER(x).detach() // 0.3 + x


def without_derivative_under_no_grad(x: torch.Tensor) -> Any:
    y = LAYER(x)
    with torch.no_grad():
        z = torch.nextafter(y, y * 2)
    return y + z


def made_with_out(x: torch.Tensor) -> Any:
    buffer = torch.empty(3, dtype=torch.float64)
    torch.mul(x[0].detach(), 2, out=buffer)
    return buffer


def hooked(x: torch.Tensor) -> Any:
    y = LAYER(x)
    y.register_hook(lambda grad: grad * 2)
    return y * 3


def retained(x: torch.Tensor) -> Any:
    y = LAYER(x)
    y.retain_grad()
    return y * 3


def own_function(x: torch.Tensor) -> Any:
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return given * 1

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return -grad

    return Reverse.apply(LAYER(x))


def parameter_made_inside(x: torch.Tensor) -> Any:
    return nn.Parameter(torch.ones(3, dtype=torch.float64)) * x


def module_made_inside(x: torch.Tensor) -> Any:
    norm = nn.LayerNorm(3, dtype=torch.float64)
    return norm(LAYER(x))


def packed(x: torch.Tensor) -> Any:
    pack = nn.utils.rnn.pack_sequence([LAYER(x), x[:1]], enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(pack)[0]


REASONABLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "where of a mask": lambda x: torch.where(LAYER(x) > 0),
    "nonzero": lambda x: (LAYER(x) > 0).nonzero(),
    "argwhere": lambda x: torch.argwhere(LAYER(x) > 0),
    "masked_select": lambda x: LAYER(x).masked_select(x > 0),
    "mask as an index": lambda x: LAYER(x)[x > 0].sum(),
    "unique": lambda x: LAYER(x).argmax(-1).unique(),
    "values over rows": lambda x: LAYER(x).max(0).values,
    "indices over rows": lambda x: LAYER(x).max(0).indices,
    "max over rows unpacked": lambda x: [*LAYER(x).max(0)],
    "min over rows by name": lambda x: LAYER(x).min(dim=0).values * 2,
    "sort over rows": lambda x: LAYER(x).sort(0).values,
    "topk over rows": lambda x: LAYER(x).topk(1, 0).values,
    "median over rows": lambda x: LAYER(x).median(0).values,
    "cummax over rows": lambda x: LAYER(x).cummax(0).values,
    "max of a row": lambda x: LAYER(x).max(-1).values,
    "kthvalue over rows": lambda x: LAYER(x).kthvalue(1, 0).values,
    "aminmax by name": lambda x: torch.aminmax(LAYER(x)).max,
    "slogdet by name": lambda x: torch.linalg.slogdet(x.T @ x + torch.eye(3).double()).logabsdet,
    "svd by name": lambda x: torch.linalg.svd(LAYER(x), full_matrices=False).S,
    "repeat_interleave": lambda x: LAYER(x).repeat_interleave(torch.arange(1, len(x) + 1), 0),
    "split by computed sizes": lambda x: LAYER(x).split([1, len(x) - 1])[0],
    "index_add": lambda x: torch.zeros(3, 3).double().index_add(0, LAYER(x).argmax(-1), x),
    "scatter": lambda x: torch.zeros_like(x).scatter(1, LAYER(x).argmax(-1, keepdim=True), 1.0),
    "bincount": lambda x: LAYER(x).argmax(-1).bincount(minlength=3),
    "searchsorted": lambda x: torch.searchsorted(torch.tensor([0.0, 1.0]).double(), LAYER(x).detach()),
    "tensor_split": lambda x: torch.tensor_split(LAYER(x), 2)[0],
    **{
        function.__name__: function
        for function in (
            row_of_another_dtype,
            place_set_by_a_number,
            mask_set,
            mask_set_to_values,
            operation_without_derivative,
            floor_divided,
            without_derivative_under_no_grad,
            made_with_out,
            hooked,
            retained,
            own_function,
            parameter_made_inside,
            module_made_inside,
            packed,
        )
    },
}


@pytest.mark.parametrize(
    "name",
    list(REASONABLE),
)
def test_reasonable_over_ragged_values(name: str) -> None:
    inputs = sequences()
    check(REASONABLE[name], inputs, sources=[*inputs, *LAYER.parameters()])


@pytest.mark.parametrize(
    "name",
    list(REASONABLE),
)
def test_reasonable_over_values_of_one_shape(name: str) -> None:
    inputs = vectors(3, 2, 3)
    check(REASONABLE[name], inputs, sources=[*inputs, *LAYER.parameters()])


def test_spectral_norm_in_training() -> None:
    """Each call improves its vectors by one step, so that later examples see better ones."""

    def build() -> Program:
        module, inputs = nn.utils.parametrizations.spectral_norm(linear()), vectors()
        return Program(module, [inputs], [*inputs, *module.parameters()], lambda: list(module.buffers()))

    check_program(build)


@pytest.mark.parametrize("kind", ["BatchNorm1d", "InstanceNorm1d", "cell"])
def test_batch_norm_in_eval_mode_after_a_wait(kind: str) -> None:
    def build() -> Program:
        if kind == "InstanceNorm1d":
            norm: Any = nn.InstanceNorm1d(3, affine=True, track_running_stats=True, dtype=torch.float64).eval()
        else:
            norm = nn.BatchNorm1d(3, dtype=torch.float64).eval()
        norm.running_mean.normal_()
        run, inputs = fl.cell(norm) if kind == "cell" else norm, vectors(4, 3) if kind == "cell" else vectors(4, 2, 3)

        def function(x: torch.Tensor) -> Any:
            y = LAYER(x)
            y = y * 2 if y.sum() > 0 else y
            return run(y.T[None])[0] if kind == "InstanceNorm1d" else run(y)

        return Program(function, [inputs], [*inputs, *norm.parameters()], lambda: list(norm.buffers()))

    check_program(build)


def test_dropout_in_eval_mode_and_frozen_parts_after_a_wait() -> None:
    dropout, frozen, inputs = nn.Dropout(0.5).eval(), linear().requires_grad_(False), vectors()

    def function(x: torch.Tensor) -> Any:
        y = dropout(frozen(x))
        return dropout(LAYER(y)) if y.sum() > 0 else y

    check(function, inputs, sources=inputs)


def test_a_value_is_changed_after_its_array_was_looked_at() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        first = float(y.detach().numpy()[0])
        y[1] = first
        kept = y.clone()
        y.mul_(float(y.detach().numpy().sum()))
        array = y.detach().numpy()
        return y, kept, array.copy()

    xs = vectors(3)
    check(function, xs, sources=xs)


def test_a_value_is_not_changed_while_its_array_is_in_use() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        array = y.detach().numpy()
        y.mul_(3)
        return y, array

    check(function, vectors(3), or_refused=True)


def test_a_value_is_not_changed_after_its_array_was_written_to() -> None:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        y.detach().numpy()[0] = 5.0
        y.mul_(3)
        return y

    check(function, vectors(3), or_refused=True)
