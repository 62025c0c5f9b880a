"""Functions over sequences of different lengths: the law, and the number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import foldloom as fl
from foldloom.errors import CellError
from tests.law.on_the_fly import check_on_the_fly, steps_of
from tests.tracing.plain import MATRIX, sequences

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "operators": lambda s: (s + 1, s * s, s @ MATRIX, s * MATRIX[0], s + s.sum(0), s - s[0], s / s.norm(dim=1, keepdim=True)),
    "reductions": lambda s: (s.sum(0), s.sum(), s.mean(0), s.amax(0), s.sum(1), s.max(), s.logsumexp(0), s.prod(0), s.max(0).values),
    "reductions that keep": lambda s: (s.sum(0, keepdim=True), s.mean(0, True), s.sum((0, 1)), s.sum(-2), s.std(1), s.cumsum(0)),
    "softmax": lambda s: (s.softmax(0), s.log_softmax(0), s.softmax(1), torch.softmax(s, dim=-2), functional.log_softmax(s, -1)),
    "attention": lambda s: (s @ s[0]).softmax(0) @ s,
    "attention by weighted rows": lambda s: ((s * s[-1]).sum(1).softmax(0).unsqueeze(1) * s).sum(0),
    "attention by broadcasting": lambda s: ((s * s[-1]).sum(1).softmax(0)[:, None] * s).sum(0),
    "self-attention": lambda s: (s @ s.t() / 3**0.5).softmax(-1) @ s,
    "indexing": lambda s: (s[0], s[-1], s[1:], s[:-1], s[::2], s[:, 1], s[0, 1], s[None], s[[0, -1]], s[torch.tensor([0])], s[..., 0]),
    "an index that is computed": lambda s: s[s.sum(1).argmax()],
    "joining": lambda s: (torch.cat([s, s * 2]), torch.cat([s, s], 1), torch.cat([s, torch.zeros(1, 3)]), torch.stack([s, s])),
    "shapes": lambda s: (s.t(), s.reshape(-1), s.flip(0), s.unsqueeze(1), s.unsqueeze(0), s.permute(1, 0), s.flatten(), s.roll(1, 0)),
    "rows one by one": lambda s: [row.tanh() * other for row, other in zip(s, s.flip(0), strict=True)],
    "taking apart": lambda s: (s.unbind(), s.unbind(1), s.split(1), s.chunk(2), [*s]),
    "extremes": lambda s: (s.argmax(0), s.argmin(1), s.sum(1).argmax(), s.topk(1, 0).values, s.sort(0).values, s.median(0).values),
    "truth": lambda s: ((s > 0).any(), (s > 0).all(0), (s > 0).sum(), (s > 0).sum(1), torch.where(s > 0, s, torch.zeros(()))),
    "integers": lambda s: (s.argmax(1).sum(), s.argmax(1) + 1, s.argmax(1).max(), s.argmax(1).float().mean()),
    "empty part": lambda s: (s[0:0].sum(0), s[0:0].softmax(0), s[len(s) :].sum(), s[1:].sum(0), s[1:].softmax(0)),
    "in three dimensions": lambda s: torch.stack([torch.stack([row, row * 2]) for row in s]).softmax(0).sum(1) @ MATRIX,
    "loss of all rows": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3),
    "summed loss of all rows": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3, reduction="sum"),
    "loss that leaves out": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3, ignore_index=1, reduction="sum"),
    "smoothed loss": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3, label_smoothing=0.1),
    "regression": lambda s: (functional.mse_loss(s, s.detach() * 2), functional.l1_loss(s[1:], s[:-1], reduction="sum")),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_lists_of_different_lengths(name: str) -> None:
    examples = sequences()
    check_on_the_fly(lambda rows: ROWS[name](torch.stack([row * 2 for row in rows])), examples, sources=examples)


@pytest.mark.parametrize("name", ROWS)
def test_tensors_of_different_lengths(name: str) -> None:
    """The same with one tensor for each example."""
    examples = sequences(2, 4, 1, 3)
    check_on_the_fly(ROWS[name], examples, sources=examples)


@pytest.mark.parametrize(
    "attend", [ROWS["attention"], ROWS["attention by weighted rows"], ROWS["attention by broadcasting"]]
)
def test_steps_of_attention_do_not_grow_with_the_number_of_lengths(attend: Callable[[torch.Tensor], Any]) -> None:
    def function(rows: torch.Tensor) -> Any:
        return attend(torch.stack([row.tanh() for row in rows]))

    assert 0 < steps_of(function, sequences(2, 3)) == steps_of(function, sequences(2, 3, 4, 5, 6, 7, 8, 9, 10))


def test_steps_of_summed_losses_do_not_grow_with_the_number_of_lengths() -> None:
    def function(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row * row).sum() for row in rows]).sum()

    assert 0 < steps_of(function, sequences(1, 2)) == steps_of(function, sequences(1, 2, 3, 4, 5, 6, 7, 8))


def test_the_loss_of_one_class_among_the_rows() -> None:
    scores = [rows.detach()[:, 0].requires_grad_() for rows in sequences(2, 5, 3, 1)]

    def loss(rows: torch.Tensor, target: int) -> torch.Tensor:
        return functional.cross_entropy(torch.stack([row * 2 for row in rows]), torch.tensor(target))

    check_on_the_fly(loss, scores, [1, 4, 0, 0], sources=scores)
    assert steps_of(loss, scores, [1, 4, 0, 0]) == 2
    assert [result.isnan().item() for result in fl.batch(loss)(scores, [1, -100, 0, 0])] == [False, True, False, False]
    with pytest.raises((IndexError, CellError), match="out of bounds"):
        fl.batch(loss)(scores, [1, 5, 0, 0])
