"""Results drive autograd, and everything built on it, as plain PyTorch does."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.law import assert_same, loss_of, weight_grads_collected
from tests.tree_lstm import TreeLSTM, random_trees


@pytest.fixture(params=[True, False], ids=["weights collected", "weights ordinary"])
def model(request: pytest.FixtureRequest) -> Any:
    with weight_grads_collected(enough_rows=6 if request.param else 10**9):
        yield TreeLSTM()


TREES = random_trees(8)


def grads_of(model: Any) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_backward_fills_grad(model: Any) -> None:
    loss_of(fl.one_by_one(model)(TREES)).backward()
    expected = grads_of(model)
    model.zero_grad()
    loss_of(fl.batch(model)(TREES)).backward()
    assert_same(grads_of(model), expected)


def test_gradients_accumulate_over_batches(model: Any) -> None:
    for trees in (TREES[:3], TREES[3:]):
        loss_of(fl.batch(model)(trees)).backward()
    actual = grads_of(model)
    model.zero_grad()
    for trees in (TREES[:3], TREES[3:]):
        loss_of(fl.one_by_one(model)(trees)).backward()
    assert_same(actual, grads_of(model))


def test_autograd_grad_of_some_parameters(model: Any) -> None:
    chosen = [model.merge.gates.weight, model.leaf.embed.weight]
    expected = torch.autograd.grad(loss_of(fl.one_by_one(model)(TREES)), chosen)
    assert_same(torch.autograd.grad(loss_of(fl.batch(model)(TREES)), chosen), expected)
    only_bias = [model.merge.gates.bias]
    expected = torch.autograd.grad(loss_of(fl.one_by_one(model)(TREES)), only_bias)
    assert_same(torch.autograd.grad(loss_of(fl.batch(model)(TREES)), only_bias), expected)


def test_two_losses_from_one_batch(model: Any) -> None:
    """Two backward passes over one graph do not mix up what weights receive."""
    results = fl.batch(model)(TREES)
    reference = fl.one_by_one(model)(TREES)
    for first, second in zip(results, reference, strict=True):
        assert_same(
            torch.autograd.grad(loss_of(first), list(model.parameters()), retain_graph=True, allow_unused=True),
            torch.autograd.grad(loss_of(second), list(model.parameters()), retain_graph=True, allow_unused=True),
        )


def test_backward_twice_without_retaining_says_so(model: Any) -> None:
    loss = loss_of(fl.batch(model)(TREES))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_create_graph(model: Any) -> None:
    parameters = list(model.parameters())

    def second(run: Any) -> Any:
        first = torch.autograd.grad(loss_of(run(TREES)), parameters, create_graph=True)
        return torch.autograd.grad(torch.stack([(grad**2).sum() for grad in first]).sum(), parameters)

    assert_same(second(fl.batch(model)), second(fl.one_by_one(model)))


def test_gradgradcheck() -> None:
    step = fl.cell(lambda x, y: torch.tanh(x * y) + x)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        return fl.batch(lambda a, b: step(step(a, b), b), stack=True)(list(x), list(y))

    x, y = (torch.randn(3, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(function, (x, y))
    assert torch.autograd.gradgradcheck(function, (x, y))


def test_hooks_on_parameters_results_and_modules(model: Any) -> None:
    seen: list[str] = []
    weight = model.merge.gates.weight
    handle = weight.register_hook(lambda grad: (seen.append("weight"), grad * 2)[1])  # type: ignore[func-returns-value]
    model.merge.function.register_forward_hook(lambda *_: seen.append("module"))
    h, _ = fl.batch(model)(TREES)[0]
    h.register_hook(lambda grad: seen.append("result"))
    h.sum().backward()
    assert seen[-2:] == ["result", "weight"]
    assert seen.count("weight") == 1
    assert seen.count("module") > 0
    doubled = weight.grad.clone()
    handle.remove()
    model.zero_grad()
    fl.one_by_one(model)(TREES)[0][0].sum().backward()
    assert_same(doubled, 2 * weight.grad)


def test_a_hook_on_a_cell_is_a_hook_on_its_module(model: Any) -> None:
    seen: list[str] = []
    for module in (model.leaf, model.merge):
        module.register_forward_hook(lambda *_: seen.append("hook"))
    fl.batch(model)([(1, 2)])
    assert len(seen) >= 2


def test_autocast_to_bfloat16() -> None:
    model = TreeLSTM(hidden=8).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = fl.batch(model)(TREES)
        expected = fl.one_by_one(model)(TREES)
    assert [h.dtype for h, _ in actual] == [h.dtype for h, _ in expected]
    for (h, c), (other_h, other_c) in zip(actual, expected, strict=True):
        torch.testing.assert_close(h, other_h, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(c, other_c, rtol=2e-2, atol=2e-2)
    sum(h.float().sum() for h, _ in actual).backward()
    assert all(parameter.grad.dtype is torch.float32 for parameter in model.parameters())
    # Outside of autocast the same cells compute in float32 again.
    assert fl.batch(model)(TREES)[0][0].dtype is torch.float32


def test_no_grad_and_inference_mode(model: Any) -> None:
    expected = fl.one_by_one(model)(TREES)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            actual = fl.batch(model)(TREES)
        assert_same(actual, expected)
        assert not any(tensor.requires_grad for result in actual for tensor in result)


def test_optimiser_follows_the_same_path() -> None:
    torch.manual_seed(3)
    first = TreeLSTM()
    second = copy.deepcopy(first)
    for model, run in ((first, fl.batch(first)), (second, fl.one_by_one(second))):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            loss_of(run(TREES)).backward()
            optimizer.step()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_state_dict_has_the_names_of_the_module_itself() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = fl.cell(nn.BatchNorm1d(3))

    plain, marked = Plain(), Marked()
    assert list(plain.state_dict()) == list(marked.state_dict())
    plain.norm.weight.data.fill_(5)
    marked.load_state_dict(plain.state_dict())
    assert marked.norm.weight.tolist() == [5, 5, 5]
    assert [name for name, _ in marked.named_parameters()] == [name for name, _ in plain.named_parameters()]


def test_to_train_and_eval_reach_the_module_in_a_cell() -> None:
    marked = nn.Sequential(fl.cell(nn.Dropout(0.5)), fl.cell(nn.Linear(2, 2))).eval()
    assert not marked[0].function.training
    assert marked[0](torch.ones(4)).tolist() == [1, 1, 1, 1]
    assert marked.train()[0].function.training
    marked.to(torch.float64)
    assert marked[1].function.weight.dtype is torch.float64


def test_trying_a_cell_leaves_no_trace() -> None:
    """Types are inferred by calling the cell: buffers and random numbers must not show it."""
    norm = fl.cell(nn.BatchNorm1d(3))
    state = torch.get_rng_state()
    fl.record(fl.cell(nn.Dropout(0.5)), torch.ones(3))
    with pytest.raises(fl.errors.CellError, match="batch norm in training"):
        fl.record(norm, torch.ones(3))
    assert torch.equal(state, torch.get_rng_state())
    assert norm.num_batches_tracked.item() == 0
    assert norm.running_var.tolist() == [1, 1, 1]


def test_a_batch_is_freed_when_its_results_are() -> None:
    class Witness:
        """Lives in the graph, as part of a hook."""

        def see(self, grad: torch.Tensor) -> None:
            pass

    witnesses: list[weakref.ref[Witness]] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        result = torch.tanh(x @ weight)
        if result.requires_grad:
            witness = Witness()
            result.register_hook(witness.see)
            witnesses.append(weakref.ref(witness))
        return result

    weight = torch.eye(2, requires_grad=True)
    step = fl.cell(watched)
    gc.collect()
    gc.disable()
    try:
        result = fl.batch(lambda x: step(step(step(x))), stack=True)([torch.ones(2), torch.ones(2)])
        # One more was made when the cell was tried, and went with what it returned then.
        witnesses = [witness for witness in witnesses if witness() is not None]
        assert len(witnesses) == 3
        result.sum().backward()
        del result
        assert all(witness() is None for witness in witnesses), "the graph is part of a reference cycle"
    finally:
        gc.enable()


def test_weights_are_put_back_when_a_cell_fails() -> None:
    class Fussy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if (x > 100).any():
                raise ValueError("too large")
            return self.linear(x) * 10

    fussy = Fussy()
    step = fl.cell(fussy)
    with weight_grads_collected(1), pytest.raises(fl.errors.CellError, match="too large"):
        fl.batch(lambda x: step(step(step(step(x)))))([torch.ones(2) * 99, torch.ones(2)])
    assert type(fussy.linear.weight) is nn.Parameter


def test_modes_inside_the_function() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
    scaled = fl.cell(lambda x: x * weight)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            fixed = scaled(x)
        return fixed + scaled(x)

    result = fl.batch(function, stack=True)([torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)])
    (gradient,) = torch.autograd.grad(result.sum(), weight)
    assert gradient.tolist() == [2, 2]

    linear = nn.Linear(2, 2)
    mapped = fl.cell(linear)

    def cast(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu"):
            low = mapped(x)
        return low, mapped(x)

    low, full = fl.batch(cast, stack=True)([torch.ones(2), torch.ones(2)])
    assert (low.dtype, full.dtype) == (torch.bfloat16, torch.float32)
