"""Views and copies: which of them a change in place reaches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import foldloom as fl
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import LINEAR, sequences

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_chunks_are_views() -> None:
    """Autograd forbids changing one of several views, so without it."""

    def function(x: torch.Tensor) -> Any:
        x = x * 1
        first, second = x.chunk(2)
        first.mul_(2)
        second += first
        x[0, 1] = 3.0
        return x, first, second

    check_on_the_fly(function, [torch.randn(4, 3) for _ in range(3)])


def _row_changed(x: torch.Tensor) -> Any:
    y = x[1]
    y.mul_(2)
    return x


def _row_of_list_changed(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    y = s[0]
    y.mul_(2)
    return s


def _rows_of_list_changed(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    y = s[0:1]
    s.mul_(2)
    return s, y


def _copy_changed(x: torch.Tensor) -> Any:
    y = x[[0, 1]]
    y.mul_(2)
    return x, y


def _copied_by_reshape(x: torch.Tensor) -> Any:
    y = x.t().reshape(-1)
    y.mul_(2)
    return x, y


def _alias(of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        of(x).mul_(2)
        return x

    return function


def _changed_without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x


def _row_of_a_list_that_changes(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    y = s[0]
    s[0] = x[2]
    return y, s.mul_(2), y


def _list_reshaped(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    s.unsqueeze(1).mul_(2)
    return s


def _transposed_in_place(x: torch.Tensor) -> Any:
    """Handles on the same memory see the same numbers, whatever shape another takes."""
    x = x.detach().clone()
    row, column = x[0], x[:, 1]
    x.t_()
    x[0, 1] = 5.0
    row.mul_(2)
    x.unsqueeze_(0).add_(1)
    return x, row, column


def _list_transposed_in_place(x: torch.Tensor) -> Any:
    s = torch.stack([*x.detach()])
    row, part = s[1], s[1:3]
    s.t_()
    s.mul_(2)
    part[0] = 7.0
    return s, row, part


def _row_at_a_computed_place(x: torch.Tensor) -> Any:
    row = x[x.sum(1).argmax()]
    row.mul_(2)
    kept = x[x.sum(1).argmin()]
    x.add_(1)
    return x, row, kept


def _reshaped_views(x: torch.Tensor) -> Any:
    x[1].reshape(3, 1).mul_(2)
    x.t().reshape(-1).mul_(3)
    x.t().contiguous().mul_(3)
    x[1:].flatten().add_(1)
    x.contiguous().add_(1)
    x.unsqueeze(0).reshape(-1)[2:4].zero_()
    return x, x.t().is_contiguous(), x.t().stride(), x[1:].storage_offset(), x.is_contiguous()


def _broadcast_views(x: torch.Tensor) -> Any:
    first, second = torch.broadcast_tensors(x, x[:1] * 2)
    x.mul_(2)
    return first, second, torch.atleast_3d(x), x


def _views_without_gradients(x: torch.Tensor) -> Any:
    row, s = x[1], torch.stack([*x])
    with torch.no_grad():
        row.mul_(3)
        x[:, 0].add_(1)
        x[2] = 4.0
        s[1].mul_(2)
        s[2] = 5.0
        s.add_(1)
    return x, row, s, s[1]


def _nested_lists(x: torch.Tensor) -> Any:
    s = torch.stack([*(x * 2)])
    part = s[1:]
    inner = part[1:3]
    row = inner[0]
    row.mul_(2)
    inner.add_(1)
    part[0, 1] = 9.0
    s.mul_(2)
    return s, part, inner, row


def _columns_of_a_list(x: torch.Tensor) -> Any:
    s = torch.stack([*(x * 2)])
    column, halves = s[:, 1], s.detach().unsqueeze(1).squeeze(1)
    s.mul_(2)
    column.add_(1)
    return s, column, halves, s[0]


def _identity_module(x: torch.Tensor) -> Any:
    nn.Identity()(x).add_(1)
    nn.Dropout(0.5).eval()(x).mul_(2)
    nn.Sequential(nn.Identity(), nn.Dropout(0.5).eval())(x).mul_(2)
    return x


def _in_place_after(x: torch.Tensor) -> Any:
    first, second = x * 2, x * 3
    chain = nn.Sequential(nn.Dropout(0.5).eval(), nn.ELU(inplace=True))
    return chain(first), first, nn.Sequential(LINEAR, _relu)(second), second


def _lies_transposed(x: torch.Tensor) -> Any:
    y = x.t() * 2
    y.reshape(-1).mul_(2)
    return y


def _in_place_result(x: torch.Tensor) -> Any:
    x = x.detach().clone()
    y = functional.relu(x, inplace=True)
    y.add_(2)
    return x


def _array_changed(x: torch.Tensor) -> Any:
    array = np.ones(3)
    values = torch.from_numpy(array)
    y = x.detach() * values  # what is saved for gradients changes with the array, in torch too
    array += 1
    return y, x.detach() * values


_relu = nn.ReLU(inplace=True)


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a row, not the first": _row_changed,
    "a row of a list": _row_of_list_changed,
    "a copy by index": _copy_changed,
    "a copy by reshape": _copied_by_reshape,
    "rows of a list": _rows_of_list_changed,
    "a row of a list that changes": _row_of_a_list_that_changes,
    "a list reshaped": _list_reshaped,
    "to": _alias(lambda x: x.to(torch.float64)),
    "cpu": _alias(lambda x: x.cpu()),
    "plus": _alias(lambda x: +x),
    "adjoint": _alias(lambda x: x.adjoint()),
    "hsplit": lambda x: (lambda y: _alias(lambda z: torch.hsplit(z, 1)[0])(y))(x.detach().clone()),
    "dropout in eval": _alias(lambda x: functional.dropout(x, 0.5, training=False)),
    "a change without gradients": _changed_without_gradients,
    "transposed in place": _transposed_in_place,
    "a list transposed in place": _list_transposed_in_place,
    "a row at a computed place": _row_at_a_computed_place,
    "views that may be copies": _reshaped_views,
    "views of several": _broadcast_views,
    "views changed without gradients": _views_without_gradients,
    "lists of lists": _nested_lists,
    "columns of a list": _columns_of_a_list,
    "modules that return what they are given": _identity_module,
    "the result of a change": _in_place_result,
    "ReLU(inplace=True)": lambda x: (_relu(x), x, nn.Sequential(_relu, nn.Tanh())(x - 0.5), _in_place_after(x)),
    "an array that changes": _array_changed,
    "a computed value that lies transposed": _lies_transposed,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_copies(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(lambda x: VIEWS[name](x * 1.5), inputs, sources=[*inputs, *LINEAR.parameters()], records=False)


def test_copies_of_transposed_values_do_not_change_with_them() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3))

    def program(x: torch.Tensor) -> Any:
        outer = torch.outer(x, x[:3]) * weight
        across = outer.t() * 2
        flat, more = across.reshape(-1), across.tanh().flatten()
        view = outer.reshape(-1)
        flat += 1
        across[0] = 0
        view.mul_(3)
        dense = across.contiguous()
        dense[0, 0] = 7
        return flat, across, more, outer, dense, across.stride(), flat.stride(), outer.is_contiguous()

    xs = [torch.randn(4) for _ in range(3)]
    for found, wanted in zip(fl.batch(program)(xs), [program(x) for x in xs], strict=True):
        assert found[5:] == wanted[5:]
        torch.testing.assert_close(found[:5], wanted[:5])
