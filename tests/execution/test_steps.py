"""What the executor keeps, copies and checks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from foldloom.execution import pool
from foldloom.execution.backward import ledgers, weight_grads
from tests.law import check_law, weight_grads_collected
from tests.tree_lstm import TreeLSTM, random_trees


def test_a_step_calls_its_cell_once_for_all_members() -> None:
    sizes: list[int] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        sizes.append(len(x))
        return x + 1

    step = fl.cell(watched)

    def count(n: int) -> Any:
        x: Any = 0.0
        for _ in range(n):
            x = step(x)
        return x

    assert [r.item() for r in fl.batch(count)([3, 1, 2, 3])] == [3, 1, 2, 3]
    probes, runs = sizes[:-3], sizes[-3:]
    assert probes == [3, 3, 1, 1]
    assert runs == [4, 3, 2]


def test_slices_share_memory_with_the_arena() -> None:
    pointers: list[set[int]] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        pointers.append({x.untyped_storage().data_ptr()})
        return x + 1

    step = fl.cell(watched)
    with torch.no_grad():
        fl.batch(lambda x: step(step(step(x))))([1.0, 2.0])
    *_, second, third = pointers
    assert second == third


def test_pool_hands_memory_out_again_only_when_nobody_holds_it() -> None:
    cpu, shape = torch.device("cpu"), (pool.SMALLEST,)
    first = pool.empty(shape, torch.float32, cpu)
    pointer = first.data_ptr()
    view = first[3:4]
    del first
    second = pool.empty(shape, torch.float32, cpu)
    assert second.data_ptr() != pointer, "a view still holds it"
    del view
    third = pool.zeros(shape, torch.float32, cpu)
    assert third.data_ptr() == pointer
    assert not third.any()


def test_results_that_a_user_keeps_are_never_overwritten() -> None:
    wide = fl.cell(lambda x: x.expand(-1, 200_000) + 1)
    with torch.no_grad():
        batched = fl.batch(lambda x: wide(x), stack=True)
        kept = batched([torch.zeros(1)] * 2)
        batched([torch.full((1,), 5.0)] * 2)
    assert (kept == 1).all()


class Uses(nn.Module):
    """Every way in which a weight can be used late, and some in which it cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, padding_idx=1)
        self.linear = nn.Linear(3, 3)
        self.no_bias = nn.Linear(3, 3, bias=False)
        self.matrix = nn.Parameter(torch.randn(3, 3))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
        self.double()

    def forward(self, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(self.table(row) + x) + x @ self.matrix + torch.mm(x, self.matrix)
        x = self.no_bias(torch.stack((x, -x), 1)).sum(1) + x.matmul(self.matrix)
        x = self.frozen(x) + F.linear(x, self.matrix * 2) + self.matrix.sum(0)
        pair = torch.stack((x, x + 1), 1)
        return torch.tanh(self.attention(pair, pair, pair)[0].sum(1) + F.linear(x, self.matrix.t(), self.linear.bias))


def test_weight_grads_of_every_use() -> None:
    module = Uses()
    uses = fl.cell(module)

    def function(rows: list[int], x: torch.Tensor) -> Any:
        for row in rows:
            x = uses(row, x)
        return x

    inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    sources = [p for p in (*module.parameters(), *inputs) if p.requires_grad]
    check_law(function, [[1, 2, 1], [0], [5, 5, 5, 1]], inputs, sources=sources)


def test_weight_grads_take_one_product_for_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[int] = []
    add = ledgers.ProductLedger.add

    def counted(self: Any, total: Any, left: torch.Tensor, right: torch.Tensor) -> Any:
        products.append(len(left))
        return add(self, total, left, right)

    monkeypatch.setattr(ledgers.ProductLedger, "add", counted)
    step = fl.cell(nn.Linear(2, 2))

    def chain(x: torch.Tensor) -> Any:
        for _ in range(50):
            x = step(x)
        return x

    with weight_grads_collected(enough_rows=40):
        fl.batch(chain, stack=True)([torch.ones(2), torch.ones(2)]).sum().backward()
    assert products == [40, 40, 20]


@pytest.mark.parametrize("padding_idx", [None, 1])
@pytest.mark.parametrize("create_graph", [False, True])
def test_sparse_gradients_of_a_table_are_joined_once(padding_idx: int | None, create_graph: bool) -> None:
    table = nn.Embedding(12, 3, padding_idx=padding_idx, sparse=True, dtype=torch.float64)
    read = fl.cell(table)
    add = fl.cell(lambda state, row: state + row * state.sin())

    def function(rows: list[int]) -> Any:
        state = read(rows[0])
        for row in rows[1:]:
            state = add(state, read(row))
        return state

    batches = [[1, 2, 3], [0], [5, 7, 9, 8]]
    grads = []
    for run in (fl.one_by_one(function), fl.batch(function, scheduler=fl.OneByOne())):
        with weight_grads_collected(enough_rows=2):
            loss = torch.stack(run(batches)).sin().sum()
        (grad,) = torch.autograd.grad(loss, [table.weight], create_graph=create_graph)
        grads.append(grad)
    assert all(grad.is_sparse for grad in grads)
    torch.testing.assert_close(grads[1].to_dense(), grads[0].to_dense())
    if not create_graph:
        assert grads[1]._nnz() == sum(row != padding_idx for rows in batches for row in rows)


def test_an_op_of_one_step_keeps_its_ordinary_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    seen = fl.cell(nn.Linear(2, 2))
    seen.function.register_forward_pre_hook(lambda module, _: made.append(type(module.weight)))
    with weight_grads_collected(1):
        fl.batch(seen)([torch.ones(2), torch.ones(2)])
        fl.batch(lambda x: seen(seen(x)))([torch.ones(2), torch.ones(2)])
    assert made[-3:] == [nn.Parameter, weight_grads.LateWeight, weight_grads.LateWeight]


def test_dropout_differs_between_members_and_repeats_with_the_seed() -> None:
    drop = fl.cell(nn.Dropout(0.5))
    batched = fl.batch(lambda x: drop(x), stack=True)
    torch.manual_seed(5)
    first = batched([torch.ones(64)] * 2)
    torch.manual_seed(5)
    assert torch.equal(first, batched([torch.ones(64)] * 2))
    assert not torch.equal(first[0], first[1])


def test_device_follows_the_model() -> None:
    """The meta device stands in for a GPU: it computes shapes and nothing else."""
    model = TreeLSTM().to("meta")
    h, c = fl.batch(model, stack=True)(random_trees(5))
    assert h.device.type == c.device.type == "meta"
    assert h.shape == (5, 4)
