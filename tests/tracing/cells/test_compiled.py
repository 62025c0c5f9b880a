"""Cells with ``compile=True``: the same values and gradients, in fewer kernels; and what cannot be compiled is refused in words."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import foldloom as fl
from foldloom.errors import ArgumentError, CellError
from tests.law import assert_same, check_law, gradients
from tests.tree_lstm import Leaf, Merge, TreeLSTM, random_trees

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="compiling a cell takes a C++ compiler, g++")


class CompiledTreeLSTM(TreeLSTM):
    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.merge = fl.cell(Leaf(10, 4), compile=True), fl.cell(Merge(4), compile=True)
        self.double()


class Calls(TorchDispatchMode):
    """Which operations of torch are called, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


ELEMENTWISE = {"sigmoid", "tanh", "mul", "add", "sigmoid_backward", "tanh_backward"}


@pytest.fixture(scope="module")
def model() -> CompiledTreeLSTM:
    torch.manual_seed(0)
    return CompiledTreeLSTM()


def test_the_law(model: CompiledTreeLSTM) -> None:
    check_law(model, random_trees(6), sources=model.parameters())


def test_elementwise_work_is_one_kernel(model: CompiledTreeLSTM) -> None:
    batched, trees = fl.batch(model, stack=True), random_trees(8)
    batched(trees)
    with Calls() as forward:
        h, _ = batched(trees)
    with Calls() as backward:
        h.sum().backward()
    assert not ELEMENTWISE & forward.count.keys()
    assert not ELEMENTWISE - {"add"} & backward.count.keys()


def test_any_number_of_members(model: CompiledTreeLSTM) -> None:
    batched, one_by_one = fl.batch(model), fl.one_by_one(model)
    for count in (1, 2, 3, 40):
        trees = [(number % 10, 3) for number in range(count)]
        assert_same(batched(trees), one_by_one(trees))


def test_a_row_for_all_members_is_laid_out_for_the_kernel() -> None:
    scale = fl.cell(lambda x, y: torch.tanh(x * y) + x, compile=True)
    shared = torch.randn(3, dtype=torch.float64, requires_grad=True)
    xs = list(torch.randn(5, 3, dtype=torch.float64))
    check_law(lambda x: scale(x, shared), xs, sources=[shared])


def test_weights_and_tensors_from_outside_get_their_gradients() -> None:
    outside = torch.randn(4, dtype=torch.float64, requires_grad=True)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sigmoid(x * self.scale) * torch.tanh(outside)

    cell = fl.cell(Scaled(), compile=True)
    check_law(cell, list(torch.randn(5, 4, dtype=torch.float64)), sources=[outside, *cell.parameters()])


def test_results_that_are_parts_of_arguments() -> None:
    def halves(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left, right = x.chunk(2, 1)
        return left, torch.tanh(left) * right, right.neg()

    source = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    check_law(fl.cell(halves, compile=True), list(source.unbind()), sources=[source])


def test_weights_are_those_of_now() -> None:
    cell = fl.cell(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Softsign()), compile=True)
    xs = list(torch.randn(4, 3))
    batched = fl.batch(cell)
    before = batched(xs)
    cell.function[0].weight = nn.Parameter(torch.zeros(3, 3))
    after = batched(xs)
    torch.testing.assert_close(after, fl.one_by_one(cell)(xs))
    assert not torch.equal(after[0], before[0])


def test_dropout_follows_the_mode_and_draws_anew() -> None:
    cell = fl.cell(nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Dropout(0.5)), compile=True)
    batched, xs = fl.batch(cell, stack=True), torch.randn(40, 3)
    assert not torch.equal(batched(xs), batched(xs))
    cell.eval()
    torch.testing.assert_close(batched(xs), torch.sigmoid(torch.tanh(xs)))


def test_autocast_leaves_it_uncompiled() -> None:
    cell = fl.cell(nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Sigmoid()), compile=True)
    xs = torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert fl.batch(cell, stack=True)(xs).dtype is torch.bfloat16


def test_a_hook_is_heard() -> None:
    module = nn.Sequential(nn.Tanh(), nn.Sigmoid())
    heard: list[Tensor] = []
    module[0].register_forward_hook(lambda *call: heard.append(call[2]))
    fl.batch(fl.cell(module, compile=True))(torch.randn(5, 3))
    assert heard


class Product(nn.Module):
    """A weight large enough to note its uses, used in elementwise work and in a product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(128, 128, dtype=torch.float64) / 12)

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sigmoid(x) * self.weight[0] * 2) @ torch.tanh(self.weight * 0.1).t() + torch.tanh(x) @ self.weight


def test_weights_that_note_their_uses_lose_nothing() -> None:
    cell = fl.cell(Product(), compile=True)
    xs = list(torch.randn(3, 128, dtype=torch.float64))
    expected = gradients(fl.one_by_one(lambda x: cell(cell(x)))(xs), list(cell.parameters()))
    assert_same(gradients(fl.batch(lambda x: cell(cell(x)))(xs), list(cell.parameters())), expected)


def _cut(x: Tensor, y: Tensor) -> Tensor:
    return x[:, :2] * 2 + torch.tanh(y)


def _turned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (torch.tanh(x) * 2).unsqueeze(1), torch.tanh(torch.stack((y, y * 2), 2)).transpose(1, 2)


def _only_added(x: Tensor, y: Tensor) -> Tensor:
    return x[:, :2] + y + y


def _detached(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x) * 2, torch.sigmoid(y.detach()) * 3


def _nothing_tracked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.tanh(x.detach()) * 2, y


def _same_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    product = torch.tanh(y) * 2
    return product, product, x


def _reshaped(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(x.view(x.shape[0] * 2, 2)).sigmoid().view(x.shape[0], 4)


@pytest.mark.parametrize("function", [_cut, _turned, _only_added, _detached, _nothing_tracked, _same_twice, _reshaped])
def test_shapes_views_and_results_without_gradients(function: Callable[..., Any]) -> None:
    xs = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    ys = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    cell = fl.cell(function, compile=True)
    check_law(cell, list(xs.unbind()), list(ys.unbind()), sources=[xs, ys])


def test_whole_numbers_among_the_arguments() -> None:
    cell = fl.cell(lambda x, n: (torch.tanh(x) * 2, n.float() * 0.5 + 1), compile=True)
    xs = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    check_law(cell, list(xs.unbind()), [3, 1, 4, 1], sources=[xs])


def test_complex_numbers_stay_uncompiled() -> None:
    cell = fl.cell(lambda z, y: torch.tanh(z.abs() * y) * 2, compile=True)
    zs = torch.randn(4, 3, dtype=torch.complex128, requires_grad=True)
    ys = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    check_law(cell, list(zs.unbind()), list(ys.unbind()), sources=[ys])
    expected = torch.autograd.grad(sum(r.sum() for r in fl.one_by_one(cell)(zs, ys)), zs)
    assert_same(torch.autograd.grad(sum(r.sum() for r in fl.batch(cell)(zs, ys)), zs), expected)


def test_autocast_leaves_no_trace() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Sigmoid())
    batched, xs = fl.batch(fl.cell(module, compile=True), stack=True), torch.randn(5, 3)
    with torch.autocast("cpu", torch.bfloat16):
        batched(xs)
    torch.testing.assert_close(batched(xs), module(xs))


def test_a_module_that_changes_its_dtype_or_its_parts() -> None:
    module = nn.Sequential(nn.Embedding(10, 4), nn.Tanh(), nn.Sigmoid())
    cell = fl.cell(module, compile=True)
    fl.batch(cell)([1, 2, 3])
    module[0] = nn.Embedding(10, 4)
    torch.testing.assert_close(fl.batch(cell, stack=True)([1, 2, 3]), module(torch.tensor([1, 2, 3])))
    cell.double()
    torch.testing.assert_close(fl.batch(cell, stack=True)([1, 2, 3]), module(torch.tensor([1, 2, 3])))


def test_a_cell_is_compiled_where_it_is_made() -> None:
    with pytest.raises(ArgumentError, match="is a cell already: write `compile=True` where it is made one"):
        fl.cell(fl.cell(nn.Tanh()), compile=True)


def test_it_travels(model: CompiledTreeLSTM) -> None:
    copied, trees = pickle.loads(pickle.dumps(model)), random_trees(5)
    assert copied.merge.is_compiled
    assert_same(fl.batch(copied)(trees), fl.one_by_one(model)(trees))


def test_gradients_of_inputs_alone(model: CompiledTreeLSTM) -> None:
    states = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def merged(x: Tensor) -> Any:
        return model.merge(x, x, x, x)

    expected = gradients(fl.one_by_one(merged)(states), [states])
    assert_same(gradients(fl.batch(merged)(states), [states]), expected)


def test_second_derivatives_are_refused(model: CompiledTreeLSTM) -> None:
    states = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    h, _ = fl.batch(lambda x: model.merge(x, x, x, x), stack=True)(states)
    with pytest.raises(CellError, match=r"no second derivatives\. Leave out `compile=True`"):
        torch.autograd.grad(h.sum(), states, create_graph=True)


def _by_count(x: Tensor) -> Tensor:
    return x.tanh().sigmoid() if len(x) > 4 else x.tanh()


def _unless_alone(x: Tensor) -> Tensor:
    return x.tanh().sigmoid() if x.shape[0] > 1 else (x * 1).tanh().sigmoid()


def _in_place(x: Tensor) -> Tensor:
    return (x * 2).tanh_().sigmoid()


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = torch.tanh(x)
    return torch.sigmoid(y) * x


def _by_value(x: Tensor) -> Tensor:
    return x.tanh().sigmoid() if x.sum() > -1e9 else x


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_by_count, "depends on how many members there are"),
        (_unless_alone, "one alone is treated in another way"),
        (_in_place, r"changes a tensor in place \(tanh_\)"),
        (_without_gradients, "changes what holds for all that comes after"),
        (_by_value, "data-dependent"),
    ],
)
def test_what_cannot_be_compiled(function: Callable[[Tensor], Tensor], reason: str) -> None:
    batched = fl.batch(fl.cell(function, compile=True))
    with pytest.raises(
        CellError, match=rf"cannot be compiled for \(float32\[3\]\): .*{reason}.*Leave out `compile=True`"
    ):
        batched(torch.randn(5, 3))


def test_what_has_nothing_to_compile_runs_as_it_is() -> None:
    cell = fl.cell(nn.Linear(3, 2), compile=True)
    xs = torch.randn(4, 3)
    torch.testing.assert_close(fl.batch(cell, stack=True)(xs), F.linear(xs, cell.weight, cell.bias))
