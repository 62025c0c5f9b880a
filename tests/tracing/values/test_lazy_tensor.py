"""A value that is not computed yet: what is known of it at once, and what Python makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import sequences, vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def test_shape_dtype_and_device_are_known_at_once() -> None:
    """A recording refuses to wait for values, so none of these asks for one."""
    seen: list[Any] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.stack([x[0] * 2, x[1], x[0] + x[1]])
        seen.append((y.shape, y.dtype, y.device, y.ndim, y.numel(), y.size(-1), y.dim(), len(y), y.is_floating_point()))
        best = y.argmax(1)
        seen.append((best.shape, best.dtype, (best > 0).dtype, best.float().dtype, best.is_complex(), best.nelement()))
        return y @ x.t()

    fl.record(function, vector(2, 3))
    assert seen[0] == ((3, 3), torch.float64, torch.device("cpu"), 2, 9, 3, 2, 3, True)
    assert seen[1] == ((3,), torch.int64, torch.bool, torch.float32, False, 3)


def test_shapes_of_lists_are_known_at_once() -> None:
    shapes = []
    fl.record(lambda rows: shapes.append(torch.stack([row * 2 for row in rows])[1:].softmax(0).shape), vector(4, 3))
    assert shapes == [(3, 3)]


def _another_default_dtype(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float32)
    number = torch.tensor(1.5)
    torch.set_default_dtype(torch.float64)
    return number * 1


VALUES: dict[str, Callable[[torch.Tensor], Any]] = {
    "default dtype": _another_default_dtype,
    "as_tensor": torch.as_tensor,
    "tensor of values": lambda x: torch.tensor([x.detach()[0, 0], 1.0]),
    "a scalar of numpy": lambda x: np.float64(2.0) * x,
    "isinstance": lambda x: (isinstance(x, torch.Tensor), torch.is_tensor(x)),
    "logsumexp of nothing": lambda x: torch.stack([*x.detach()])[4:].logsumexp(0),
    "floor_divide of what is detached": lambda x: x.detach() // 0.3 + x,
}


@pytest.mark.parametrize("name", VALUES)
def test_values_outside_of_operations(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(lambda x: VALUES[name](x * 1.5), inputs, sources=inputs, records=False)


def test_the_array_of_a_value_is_its_memory() -> None:
    def function(x: torch.Tensor) -> Any:
        zeros = torch.zeros(3)
        array = zeros.numpy()
        array[0] = 1.0
        before = zeros * x.detach()
        array[1] = 1.0
        return before, zeros * x.detach()

    inputs = vectors()
    for found, x in zip(fl.batch(function)(inputs), inputs, strict=True):
        expected = function(x)
        torch.testing.assert_close(found, expected)


def test_the_array_of_a_view_is_not_written_to() -> None:
    """Torch's own would be the memory of the tensor."""

    def function(x: torch.Tensor) -> Any:
        y = x * 2
        y.detach().numpy()[0] = 1.0
        return y

    with pytest.raises(fl.errors.ArgumentError, match="Write to a copy"):
        fl.batch(function)(vectors())


def test_values_can_be_attributes_of_values() -> None:
    """The last reference to a value may be an attribute of another: both are freed, and no later value is mistaken for them."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(50):
            y, before = x * 2, y
            y.before = before  # type: ignore[attr-defined]
        return y if bool(y.sum() > 0) else -y

    inputs = vectors()
    for _ in range(5):
        check_on_the_fly(function, inputs, records=False)
