"""The law in the cases that are easy to get wrong, each by name."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import foldloom as fl
from tests.law import check_law, weight_grads_collected
from tests.tree_lstm import TreeLSTM, random_trees


def vector(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_tree_lstm() -> None:
    model = TreeLSTM()
    check_law(model, random_trees(12), sources=model.parameters())


def test_closure_over_a_tensor_that_needs_gradients() -> None:
    weight = vector(3, 3)
    derived = (weight * 2).exp()
    step = fl.cell(lambda x: torch.tanh(x @ derived))

    def chain(x: torch.Tensor, length: int) -> torch.Tensor:
        for _ in range(length):
            x = step(x)
        return x

    inputs = [vector(3) for _ in range(4)]
    derived.retain_grad()
    check_law(chain, inputs, [1, 3, 2, 3], sources=[weight, derived, *inputs])


def test_closure_that_is_computed_anew_for_every_batch() -> None:
    model = nn.Module()
    model.raw = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
    step = fl.cell(lambda x: torch.tanh(x @ model.cooked))
    inputs = [torch.randn(3, dtype=torch.float64) for _ in range(3)]
    for scale in (1.0, 2.0):
        model.cooked = model.raw * scale
        check_law(lambda x: step(step(x)), inputs, sources=[model.raw])


def test_parametrized_module() -> None:
    module = parametrizations.weight_norm(nn.Linear(3, 3).double())
    step = fl.cell(module)
    inputs = [vector(3) for _ in range(3)]
    check_law(lambda x: step(step(x)), inputs, sources=[*module.parameters(), *inputs])


def test_weights_tied_between_two_cells() -> None:
    one, two = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
    two.weight = one.weight
    first, second = fl.cell(one), fl.cell(two)
    inputs = [vector(3) for _ in range(3)]
    check_law(lambda x: first(second(first(x))), inputs, sources=[one.weight, one.bias, two.bias, *inputs])


def test_shared_sub_results() -> None:
    double, add = fl.cell(lambda x: 2 * x), fl.cell(lambda x, y: x * y)

    def powers(x: torch.Tensor, rounds: int) -> list[torch.Tensor]:
        base = double(x)
        results = [base]
        for _ in range(rounds):
            results.append(add(results[-1], base))
        return [*results, base, results[0]]

    inputs = [vector(2) for _ in range(3)]
    check_law(powers, inputs, [1, 4, 2], sources=inputs)


def test_outputs_used_twice_and_never() -> None:
    three = fl.cell(lambda x: (x.sin(), x.cos(), x * 3))

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sine, _, _ = three(x)
        a, _, b = three(sine)
        three(b)
        return a, a

    inputs = [vector(2) for _ in range(3)]
    check_law(function, inputs, sources=inputs)


def test_integer_and_boolean_values() -> None:
    best = fl.cell(lambda x: (x.argmax(-1), x.max(-1).values > 0))
    table = fl.cell(nn.Embedding(4, 4).double())
    keep = fl.cell(lambda flag, x: torch.where(flag[:, None], x, -x))

    def function(x: torch.Tensor, given: int, flag: bool) -> Any:
        row, positive = best(x)
        return keep(positive, table(row)), keep(flag, table(given)), row, positive

    inputs = [vector(4) for _ in range(4)]
    sources = [*table.parameters(), *inputs]
    check_law(function, inputs, [0, 3, 1, 2], [True, False, True, True], sources=sources)


def test_constants_and_results_side_by_side() -> None:
    """One step reads, in the same place, values that were given and values that were computed."""
    add = fl.cell(lambda x, y: x * y + x)
    given = torch.randn(3, 2, dtype=torch.float64)

    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return add(x, given[number]) if number % 2 else add(add(x, x), add(given[number], x))

    inputs = [vector(2) for _ in range(3)]
    check_law(function, inputs, [0, 1, 2], sources=inputs)


def test_rows_of_a_batched_encoder() -> None:
    encoder = nn.Linear(3, 4).double()
    states = encoder(torch.randn(5, 3, dtype=torch.float64))
    reduce = fl.cell(lambda x, y: torch.tanh(x + 2 * y))

    def fold(rows: list[torch.Tensor]) -> torch.Tensor:
        total = rows[0]
        for row in rows[1:]:
            total = reduce(total, row)
        return total

    check_law(fold, [list(states[:2]), list(states[2:]), list(states)], sources=encoder.parameters())


def test_the_same_value_twice_in_one_call() -> None:
    product = fl.cell(lambda x, y: x * y)
    inputs = [vector(2) for _ in range(3)]
    check_law(lambda x: product(product(x, x), product(x, x)), inputs, sources=inputs)


def test_initial_state_shared_by_all() -> None:
    start = vector(3)
    step = fl.cell(nn.GRUCell(2, 3).double())

    def run(words: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        state = start
        for word in words:
            state = step(word, state)
        return step(words[0], start), state

    sentences = [[vector(2) for _ in range(n)] for n in (1, 4, 2)]
    check_law(run, sentences, sources=[start, *step.parameters(), *[word for s in sentences for word in s]])


def test_nested_arguments_and_results() -> None:
    lstm = fl.cell(nn.LSTMCell(2, 3).double())
    named = fl.cell(lambda pair: {"sum": pair["a"] + pair["b"], "rest": [pair["a"], (pair["b"],)]})

    def function(word: torch.Tensor, steps: int) -> Any:
        state = (torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
        for _ in range(steps):
            state = lstm(word, state)
        return named({"a": state[0], "b": state[1]})

    words = [vector(2) for _ in range(3)]
    check_law(function, words, [1, 3, 2], sources=[*lstm.parameters(), *words])


def test_settings_split_steps() -> None:
    scale = fl.cell(lambda x, by=1.0: x * by)
    inputs = [vector(2) for _ in range(4)]
    check_law(lambda x, by: scale(scale(x, by=by), by=2.0), inputs, [1.0, 2.0, 3.0, 2.0], sources=inputs)
    recordings = [fl.record(lambda x, by: scale(x, by=by), x, by) for x, by in zip(inputs, (1, 2, 3, 2), strict=True)]
    assert fl.plan(recordings).statistics().steps == 3


def test_empty_batch() -> None:
    assert fl.batch(TreeLSTM())([]) == []


def test_empty_sequences() -> None:
    step = fl.cell(lambda x, y: x + y)

    def total(items: list[float]) -> Any:
        result = torch.tensor(1.0, dtype=torch.float64)
        for item in items:
            result = step(result, item)
        return [result] if items else []

    check_law(total, [[], [1.0], [], [2.0, 3.0]])
    check_law(total, [[], []])


def test_example_that_calls_no_cell() -> None:
    double = fl.cell(lambda x: 2 * x)
    check_law(lambda x: double(x) if x > 1 else x, [1.0, 2.0, 0.5])


def test_single_node_graph() -> None:
    double = fl.cell(lambda x: 2 * x)
    inputs = [vector(2)]
    check_law(double, inputs, sources=inputs)


def test_stacked_results() -> None:
    model = TreeLSTM()

    def function(tree: Any) -> Any:
        states = []

        def visit(tree: Any) -> Any:
            state = model.leaf(tree) if isinstance(tree, int) else model.merge(*visit(tree[0]), *visit(tree[1]))
            states.append(state)
            return state

        root = visit(tree)
        return {"root": root, "h": [h for h, _ in states], "both": states, "size": len(states)}

    check_law(function, random_trees(7), sources=model.parameters(), stack=True)


def test_complex_and_low_precision_values() -> None:
    rotate = fl.cell(lambda x, by: x * by[:, None])
    values = [torch.randn(2, dtype=torch.complex128) for _ in range(3)]
    check_law(lambda x: rotate(rotate(x, 1j), 2 + 1j), values)
    half = fl.cell(lambda x: x + 1)
    assert fl.batch(half)([torch.ones(2, dtype=torch.bfloat16)])[0].dtype is torch.bfloat16


def test_chain_of_100_000_steps() -> None:
    weight = torch.tensor(0.999, dtype=torch.float64, requires_grad=True)
    step = fl.cell(lambda x: x * weight)

    def chain(length: int) -> torch.Tensor:
        x: Any = torch.ones((), dtype=torch.float64)
        for _ in range(length):
            x = step(x)
        return x

    long, short = fl.batch(chain)([100_000, 50_000])
    (long + short).backward()
    assert weight.grad is not None
    expected = sum(n * 0.999 ** (n - 1) for n in (100_000, 50_000))
    torch.testing.assert_close(weight.grad.item(), expected, rtol=1e-6, atol=1e-12)


def test_deep_tree_of_weights_collected() -> None:
    model = TreeLSTM(hidden=8)
    tree: Any = 1
    for word in range(200):
        tree = (tree, word % 10)
    with weight_grads_collected(enough_rows=7):
        check_law(model, [tree, 3], sources=model.parameters())


def test_same_inputs_same_plan_same_results() -> None:
    model, trees = TreeLSTM(), random_trees(20)
    recordings = [fl.record(model, tree) for tree in trees]
    assert str(fl.plan(recordings).plan) == str(fl.plan(recordings).plan)
    first, second = (fl.batch(model, stack=True)(trees) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_batch_inside_a_batched_function() -> None:
    inner = fl.cell(lambda x: x * 2)
    outer = fl.cell(lambda x: x + 1)

    def function(numbers: list[float]) -> Any:
        return outer(sum(fl.batch(inner)(numbers)))

    check_law(function, [[1.0, 2.0], [3.0]])


def test_a_cell_inside_a_cell_computes_on_the_batch() -> None:
    inner = fl.cell(lambda x: x.sum(-1))
    outer = fl.cell(lambda x: inner(x) * 2)
    inputs = [vector(3) for _ in range(3)]
    check_law(outer, inputs, sources=inputs)


def test_copied_model_keeps_to_its_own_weights() -> None:
    model, trees = TreeLSTM(), random_trees(4)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.merge.gates.weight.zero_()
    check_law(twin, trees, sources=twin.parameters())
    check_law(model, trees, sources=model.parameters())


@pytest.mark.parametrize("threads", [1, 2])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    model, trees = TreeLSTM(), random_trees(6)
    torch.set_num_threads(threads)
    try:
        check_law(model, trees, sources=model.parameters())
    finally:
        torch.set_num_threads(1)


class Point(NamedTuple):
    x: Any
    y: Any


def test_named_tuples_as_arguments() -> None:
    total = fl.cell(lambda point: point.x + 2 * point.y)
    inputs = [vector(2) for _ in range(3)]
    check_law(lambda x: total(Point(x, total(Point(x, x)))), inputs, sources=inputs)


def test_settings_that_are_equal_but_not_the_same() -> None:
    scale = fl.cell(lambda x, by: x * by)
    results = fl.batch(lambda by: scale(3, by=by))([2, 2.0, True])
    assert [result.dtype for result in results] == [torch.int64, torch.float32, torch.int64]
    assert [result.item() for result in results] == [6, 6.0, 3]


def test_cells_named_like_inputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = fl.cell(nn.Linear(2, 2).double())
            self.tracked = fl.cell(nn.Linear(2, 2).double())

        def forward(self, x: torch.Tensor) -> Any:
            return self.tracked(self.constant(x))

    model = Model()
    check_law(model, [vector(2) for _ in range(2)], sources=model.parameters())


def test_stop_gradient_inside_a_cell() -> None:
    """Some uses of a weight need gradients and some do not, in whatever order."""
    linear = nn.Linear(3, 3).double()

    def frozen_first(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = linear(x)
        return linear(x) - target * 0.5

    module = nn.Module()
    module.linear = linear
    module.forward = frozen_first
    step = fl.cell(module)
    inputs = [vector(3) for _ in range(3)]
    check_law(lambda x: step(step(x)), inputs, sources=[*linear.parameters(), *inputs])


def test_vmap_inside_a_cell() -> None:
    linear = nn.Linear(3, 3).double()

    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(self.linear)(x)

    step = fl.cell(Mapped())
    inputs = [vector(3) for _ in range(3)]
    check_law(lambda x: step(step(x)), inputs, sources=[*linear.parameters(), *inputs])


def test_batch_inside_a_cell_keeps_its_gradients() -> None:
    linear = nn.Linear(2, 2).double()
    inner = fl.cell(linear)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fl.batch(lambda row: inner(inner(row)), stack=True)(list(self.linear(x)))

    outer = fl.cell(Outer())
    inputs = [vector(2) for _ in range(3)]
    check_law(lambda x: outer(outer(x)), inputs, sources=[*linear.parameters(), *inputs])


def test_dtype_changed_after_a_cell_was_used() -> None:
    model, trees = TreeLSTM().float(), random_trees(4)
    fl.batch(model)(trees)
    model.double()
    check_law(model, trees, sources=model.parameters())


def test_an_unpickled_model_keeps_to_its_own_weights() -> None:
    model, trees = TreeLSTM(), random_trees(3)
    loaded = pickle.loads(pickle.dumps(model))
    others = [TreeLSTM() for _ in range(20)]
    check_law(loaded, trees, sources=loaded.parameters())
    assert len({cell.key for m in (model, loaded, *others) for cell in (m.leaf, m.merge)}) == 2 * 22
