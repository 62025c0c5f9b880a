"""Finding 7: cells that mix their members are noticed and refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import check, linear, vectors


def batch_norm() -> nn.Module:
    return nn.BatchNorm1d(3, dtype=torch.float64)


MIXING: dict[str, Callable[[], Any]] = {
    "mean": lambda: lambda x: x - x.mean(0),
    "mean kept": lambda: lambda x: x - x.mean(0, keepdim=True),
    "sum": lambda: lambda x: x / x.sum(0),
    "sum of all": lambda: lambda x: x / x.sum(),
    "norm of all": lambda: lambda x: x / x.norm(),
    "largest": lambda: lambda x: x - x.max(),
    "softmax": lambda: lambda x: x.softmax(0),
    "cumsum": lambda: lambda x: x.cumsum(0),
    "flip": lambda: lambda x: x.flip(0),
    "roll": lambda: lambda x: x.roll(1, 0),
    "sort": lambda: lambda x: x.sort(0).values,
    "first": lambda: lambda x: x - x[:1],
    "last": lambda: lambda x: x + x[-1],
    "count": lambda: lambda x: x / len(x),
    "product": lambda: lambda x: (x @ x.T) @ x,
    "attention": lambda: lambda x: torch.softmax(x @ x.T, -1) @ x,
    "attention unbatched": lambda: _attention(),
    "standard deviation": lambda: lambda x: (x - x.mean(0)) / (x.std(0, correction=0) + 1),
    "batch norm": batch_norm,
    "batch norm without statistics": lambda: nn.BatchNorm1d(3, track_running_stats=False, dtype=torch.float64),
    "batch norm inside": lambda: nn.Sequential(linear(), batch_norm(), nn.Tanh()),
    "layer norm over all": lambda: lambda x: nn.functional.layer_norm(x, x.shape),
    "position": lambda: lambda x: x + torch.arange(len(x), dtype=torch.float64)[:, None],
    "normalize": lambda: lambda x: nn.functional.normalize(x, dim=0),
    "reshaped": lambda: lambda x: x.T.reshape(x.shape),
    "recurrence over members": lambda: _recurrence(),
}


def _attention() -> Callable[[torch.Tensor], torch.Tensor]:
    module = nn.MultiheadAttention(3, 1, dtype=torch.float64)
    return lambda x: module(x, x, x)[0]


def _recurrence() -> Callable[[torch.Tensor], torch.Tensor]:
    module = nn.LSTM(3, 3, dtype=torch.float64)
    return lambda x: module(x)[0]


@pytest.mark.parametrize(
    "name",
    list(MIXING),
)
def test_mixing_is_refused(name: str) -> None:
    cell, inputs = fl.cell(MIXING[name]()), vectors(4)
    with pytest.raises(fl.errors.CellError, match=r"(?i)member|mix|batch norm"):
        fl.batch(lambda x: cell(x * 2))(inputs)


def test_mixing_of_the_second_argument_is_refused() -> None:
    cell, inputs = fl.cell(lambda x, y: x + y.mean(0)), vectors(4)
    with pytest.raises(fl.errors.CellError, match=r"(?i)member|mix"):
        fl.batch(lambda x: cell(x, x * 2))(inputs)


def test_mixing_in_the_second_result_is_refused() -> None:
    cell, inputs = fl.cell(lambda x: (x * 2, x - x.mean(0))), vectors(4)
    with pytest.raises(fl.errors.CellError, match=r"(?i)member|mix"):
        fl.batch(lambda x: cell(x)[0])(inputs)


def test_mixing_after_a_switch_to_training_is_refused() -> None:
    cell, inputs = fl.cell(batch_norm().eval()), vectors(4)
    fl.batch(lambda x: cell(x * 2))(inputs)
    cell.train()
    with pytest.raises(fl.errors.CellError, match=r"(?i)member|mix|batch norm"):
        fl.batch(lambda x: cell(x * 2))(inputs)


INNOCENT: dict[str, Callable[[], Any]] = {
    "linear": linear,
    "batch norm in eval mode": lambda: batch_norm().eval(),
    "layer norm": lambda: nn.LayerNorm(3, dtype=torch.float64),
    "softmax": lambda: lambda x: x.softmax(-1),
    "dropout in eval mode": lambda: nn.Dropout(0.5).eval(),
    "nan": lambda: lambda x: (x - 1e9).sqrt(),
    "infinite": lambda: lambda x: x / (x * 0).abs(),
    "constant": lambda: lambda x: torch.ones_like(x),
    "argmax": lambda: lambda x: nn.functional.one_hot(x.argmax(-1), 3) * x,
    "bilinear": lambda: lambda x: torch.bmm(x[:, None], x[:, :, None]).squeeze(-1),
    "group norm": lambda: lambda x: nn.functional.group_norm(x[:, :, None], 1)[:, :, 0],
}


@pytest.mark.parametrize("name", list(INNOCENT))
def test_cells_that_mix_nothing_are_taken(name: str) -> None:
    cell, inputs = fl.cell(INNOCENT[name]()), vectors(4)
    weights = list(cell.parameters()) if isinstance(cell, nn.Module) else []
    check(lambda x: cell(x * 2), inputs, sources=[*inputs, *weights])


def test_dropout_is_no_mixing() -> None:
    cell = fl.cell(nn.Dropout(0.5))
    assert len(fl.batch(lambda x: cell(x * 2))(vectors(4))) == 4


def test_trying_a_cell_changes_nothing() -> None:
    """It is run on made-up members: statistics and the generator stay as they were."""
    cell = fl.cell(nn.Sequential(nn.Dropout(0.5), linear()).eval())
    before = torch.get_rng_state()
    fl.batch(lambda x: cell(x * 2))(vectors(4)[:2])
    state = torch.get_rng_state()
    torch.set_rng_state(before)
    vectors(4)
    assert torch.equal(state, torch.get_rng_state())
