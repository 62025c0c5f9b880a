"""Items and slices of values, and rows of weights: known calls take a short way, and mean the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import foldloom as fl
from foldloom.tracing import fast_path
from foldloom.tracing.building.columns import Examples
from foldloom.tracing.flushing.reading import GivenReader
from tests.law.on_the_fly import check_on_the_fly, steps_of
from tests.tracing.plain import sequences, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


def _items(x: Tensor) -> Any:
    """Each of them twice, the second time known."""
    y = torch.outer(x, x)
    return [
        (
            y[0],
            y[-1],
            y[1],
            y[-2],
            y[0, 1],
            y[1:],
            y[:2],
            y[::2],
            y[:, 1],
            y[..., 0],
            y[None],
            y[:, None],
            y[y[0].argmax()],
        )
        for _ in range(2)
    ]


def test_items_of_values() -> None:
    xs = vectors()
    check_on_the_fly(_items, xs, sources=xs)


def test_items_of_sequences() -> None:
    def function(x: Tensor) -> Any:
        y = torch.tanh(x)
        return [(y[0], y[-1], y[len(y) - 1], y[0][1], y[:1], y[1:]) for _ in range(2)]

    xs = sequences()
    check_on_the_fly(function, xs, sources=xs)


def test_items_that_are_changed_in_place_change_what_they_are_of() -> None:
    def function(x: Tensor) -> Any:
        found = []
        for _ in range(2):
            y = torch.outer(x, x)
            y[1].mul_(2), y[-1, 0].add_(1), y[:, 2].zero_(), y[0:2].neg_()
            found.append((y, y.sum()))
        return found

    xs = vectors()
    check_on_the_fly(function, xs, sources=xs)


def test_an_index_that_is_out_of_range_raises_what_torch_raises() -> None:
    def function(x: Tensor) -> Any:
        y = x * 2
        found = [y[2]]
        messages = []
        for index in (2, 3, -4):
            try:
                found.append(y[index])
            except IndexError as error:
                messages.append(str(error))
        return found, messages

    check_on_the_fly(function, vectors())


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows, self.factors = nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(7))

    def forward(self, place: int, x: Tensor) -> Tensor:
        return (self.rows[place] * x).sum() * self.factors[place - 7] + self.rows[place, 1]


def test_rows_of_a_weight_are_one_lookup_where_they_vary() -> None:
    table, xs = Table(), vectors(7)
    check_on_the_fly(table, range(7), xs, sources=[*xs, *table.parameters()])
    batched = fl.batch(table)
    batched(range(7), xs)
    with fl.profile() as profile:
        batched(range(7), xs)
    assert sum(len(run.plan.steps) for run in profile.runs) < 12


def test_rows_of_a_weight_that_are_returned_are_views_of_it() -> None:
    weight = nn.Parameter(torch.randn(7, 3))

    def function(place: int) -> Any:
        row = weight[place]
        return row, row * 2

    batched = fl.batch(function)
    for _ in range(2):
        for place, (row, _) in enumerate(batched(range(7))):
            assert row._base is weight
            assert row.data_ptr() == weight[place].data_ptr()


def test_rows_of_a_table_that_are_changed_in_place_change_the_table() -> None:
    def counts(run: Any) -> Tensor:
        table = nn.Parameter(torch.zeros(6, 2), requires_grad=False)

        def function(place: int) -> Tensor:
            table[place].add_(place)
            return table[place] * 1

        results = run(function)(range(6))
        return torch.cat([table, torch.stack(results)])

    assert torch.equal(counts(fl.batch), counts(fl.one_by_one))


CELLS = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}


@pytest.mark.parametrize("kind", CELLS)
def test_recurrent_cells_of_a_batch_of_one(kind: str) -> None:
    cell = CELLS[kind](3, 4)

    def function(x: Tensor) -> Any:
        state: Any = (torch.zeros(1, 4), torch.zeros(1, 4)) if kind == "LSTM" else torch.zeros(1, 4)
        for _ in range(3):
            state = cell(x.unsqueeze(0), state)
        return state

    xs = vectors()
    check_on_the_fly(function, xs, sources=[*xs, *cell.parameters()])
    assert steps_of(function, xs) <= 6


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", ["mse_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"])
def test_losses_against_a_weight(loss: str, reduction: str) -> None:
    target = nn.Parameter(torch.rand(3))

    def function(x: Tensor) -> Any:
        return getattr(functional, loss)(torch.sigmoid(x), target, reduction=reduction)

    xs = vectors()
    check_on_the_fly(function, xs, sources=[*xs, target])


def test_constants_of_examples_that_take_turns() -> None:
    def function(x: Tensor) -> Any:
        total = torch.zeros(3)
        for _ in range(3):
            total += x
            if total.sum() > 1:
                total = total + torch.ones(3) * torch.zeros(())
        return total, torch.zeros(3), torch.zeros(3)

    xs = vectors()
    check_on_the_fly(function, xs, sources=xs, records=False)


def test_one_number_that_is_drawn() -> None:
    def function(seed: int, x: Tensor) -> Any:
        source = torch.Generator().manual_seed(seed)
        taken = [x * 1 for _ in range(5) if torch.rand((), generator=source) < 0.5]
        noise = torch.rand((), generator=source)
        noise.mul_(2)
        return sum(taken, x * noise), noise, float(torch.rand((), generator=source))

    xs = vectors()
    check_on_the_fly(function, range(3), xs, sources=xs, records=False)


def test_examples_of_nodes() -> None:
    """In C and in Python."""
    for segments, nodes in (([(0, 0)], 0), ([(0, 0), (1, 2), (3, 2), (2, 2)], 5), ([(1, 0), (0, 1), (1, 3)], 4)):
        found = Examples.of(segments, nodes, 2)
        assert found.of_node.tolist() == [
            example
            for (example, start), end in zip(segments, [*[s for _, s in segments[1:]], nodes], strict=True)
            for _ in range(start, end)
        ]
        filled = [e for (e, s), n in zip(segments, [*[s for _, s in segments[1:]], nodes], strict=True) if n > s]
        assert found.in_turn is (filled == sorted(set(filled)))
        assert found.total == max(2, *[e + 1 for e in filled], 0)


@pytest.mark.skipif(not fast_path.is_compiled, reason="C is off, or there was no compiler where Foldloom was installed")
def test_c_never_says_of_what_was_given_that_it_must_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bool, bool]] = []
    may_follow = GivenReader.may_follow

    def both(self: GivenReader, value: int) -> bool:
        found = may_follow(self, value)
        asked.append((found, self.read(value) is not None))
        return found

    monkeypatch.setattr(GivenReader, "may_follow", both)

    def function(x: Tensor, rows: Tensor) -> Any:
        taken = [
            x.sum().item() > 0,
            (rows[0] > 0).all().item(),
            rows[-1][0].item(),
            (x * 2)[1].item(),
            bool(rows[1, 2] > x[0]),
        ]
        return taken, torch.tensor(3).item(), (torch.stack([x, x + 1]).sum(0) > 0).any().item()

    fl.batch(function)([torch.randn(3) for _ in range(3)], [torch.randn(n, 3) for n in (2, 3, 4)])
    assert (False, True) not in asked
    assert (False, False) in asked
    assert (True, True) in asked
