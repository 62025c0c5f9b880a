"""Compiled models: ordinary modules, their weights, their plans, and the processes that make them."""

from __future__ import annotations

import copy
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import foldloom as fl
from foldloom import blocks as fb
from tests.law import SCHEDULERS, assert_same, check_law, gradients
from tests.tree_lstm import Leaf, Merge, TreeLSTM, random_trees


class NestedMerge(Merge):
    def forward(self, left: Any, right: Any) -> Any:  # type: ignore[override]
        return super().forward(*left, *right)


def is_leaf(tree: Any) -> bool:
    return isinstance(tree, int)


def tree_block(leaf: nn.Module, merge: nn.Module) -> fb.Block:
    tree = fb.ForwardDeclaration(fb.PyObjectType(), (4, 4))
    block = fb.OneOf(is_leaf, {True: fb.Scalar("int64") >> leaf, False: fb.Record((tree(), tree())) >> merge})
    tree.resolve_to(block)
    return block


def tree_model() -> fb.Model:
    return fb.compile(tree_block(Leaf(10, 4), NestedMerge(4)) >> fb.GetItem(0) >> nn.Linear(4, 3))


def test_law() -> None:
    model = tree_model().double()
    check_law(model.one_example, random_trees(12), sources=list(model.parameters()))
    check_law(model.one_example, random_trees(12), sources=list(model.parameters()), stack=True)


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=str)
def test_model_equals_one_by_one(scheduler: fl.Scheduler) -> None:
    model = fb.compile(tree_model().root, scheduler=scheduler).double()
    trees = random_trees(12)
    expected = torch.stack([model.one_example(tree) for tree in trees])
    recordings = [model.record(tree) for tree in trees]
    for batch in (trees, recordings, model.plan(trees), model.plan(recordings), [*trees[:5], *recordings[5:]]):
        actual = model(batch)
        assert_same(actual, expected)
        assert_same(gradients(actual, list(model.parameters())), gradients(expected, list(model.parameters())))


def test_two_routes_for_one_model() -> None:
    """In blocks and on the fly: the same steps, values and gradients."""
    on_the_fly = TreeLSTM(hidden=4)
    leaf, merge = on_the_fly.leaf.function, NestedMerge(4).double()
    merge.gates = on_the_fly.merge.function.gates
    model = fb.compile(tree_block(leaf.float(), merge.float())).double()
    trees = random_trees(20)
    parameters = list(on_the_fly.parameters())
    assert {id(p) for p in model.parameters()} == {id(p) for p in parameters}
    from_blocks, from_code = model(trees), fl.batch(on_the_fly, stack=True)(trees)
    assert_same(from_blocks, from_code)
    assert_same(gradients(from_blocks, parameters), gradients(from_code, parameters))
    block_plan, code_plan = model.plan(trees), fl.plan([fl.record(on_the_fly, tree) for tree in trees])
    assert block_plan.statistics() == code_plan.statistics()


def test_blocks_and_code_record_into_one_graph() -> None:
    model = tree_model().double()
    score = fl.cell(nn.Linear(3, 1).double())

    def best(trees: Any) -> Any:
        return [score(model.one_example(tree)) for tree in trees]

    forests = [random_trees(3, seed=1), random_trees(2, seed=2)]
    check_law(best, forests, sources=list(model.parameters()))
    assert fl.plan([fl.record(best, forest) for forest in forests]).statistics().steps < 20


def test_state_dict() -> None:
    model, other = tree_model(), tree_model()
    assert list(model.state_dict()) == [
        "cells.Leaf.embed.weight",
        "cells.Leaf.gates.weight",
        "cells.Leaf.gates.bias",
        "cells.NestedMerge.gates.weight",
        "cells.NestedMerge.gates.bias",
        "cells.Linear.weight",
        "cells.Linear.bias",
    ]
    trees = random_trees(5)
    assert not torch.equal(model(trees), other(trees))
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream))
    assert torch.equal(model(trees), other(trees))


def test_names_of_cells_do_not_collide() -> None:
    def values(x: torch.Tensor) -> torch.Tensor:  # as the method of every dict
        return x

    block = fb.Vector(2) >> nn.Linear(2, 2) >> nn.Linear(2, 2) >> values >> (lambda x: x + 1) >> (lambda x: x + 2)
    assert list(fb.compile(block).cells) == [
        "Linear",
        "Linear_2",
        "values_2",
        "lambda",
        "lambda_2",
        "given",
    ]


def test_recordings_are_kept_on_disk_for_another_instance(tmp_path: Path) -> None:
    model, other = tree_model(), tree_model()
    other.load_state_dict(model.state_dict())
    trees = random_trees(6)
    (tmp_path / "kept").write_bytes(pickle.dumps([model.record(tree) for tree in trees]))
    kept = pickle.loads((tmp_path / "kept").read_bytes())
    random.Random(0).shuffle(kept)
    assert sorted(other(kept).sum(1).tolist()) == pytest.approx(sorted(model(trees).sum(1).tolist()), abs=1e-5)


def test_models_pickle_and_copy() -> None:
    model = tree_model()
    trees = random_trees(5)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(trees), model(trees))
        assert torch.equal(twin(model.plan(trees)), model(trees))
        with torch.no_grad():
            next(twin.parameters()).add_(1)
        assert not torch.equal(twin(trees), model(trees))


def test_several_models_at_once() -> None:
    one, other = tree_model(), tree_model()
    trees = random_trees(4)
    first, second = one(trees), other(trees)
    assert torch.equal(first, one(trees))
    assert torch.equal(second, other(trees))


def test_training() -> None:
    torch.manual_seed(1)
    model = tree_model()
    trees = random_trees(30)
    labels = torch.tensor([len(str(tree)) % 3 for tree in trees])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(trees), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]


def test_modules_in_training_and_evaluation() -> None:
    model = fb.compile(fb.Vector(100) >> nn.Dropout(0.5))
    ones = [[1.0] * 100]
    assert (model(ones) == 0).any()
    model.eval()
    assert (model(ones) == 1).all()


def test_dtype_of_the_weights_is_that_of_the_data() -> None:
    block = fb.Record(
        (fb.Vector(2), fb.Map(fb.Vector(2)) >> fb.Mean(), fb.OneHot(2), fb.Optional(fb.Vector(2)), fb.Length())
    )
    model = fb.compile(block >> fb.Concat() >> nn.Linear(9, 1))
    example = ([1, 2], [[1, 1]], 1, None, "abc")
    assert model([example]).dtype == torch.float32
    assert model.double()([example]).dtype == torch.float64
    assert model.to(torch.bfloat16)([example]).dtype == torch.bfloat16
    assert model.float()([example]).dtype == torch.float32


def test_autocast() -> None:
    model = tree_model()
    with torch.autocast("cpu", torch.bfloat16):
        assert model(random_trees(3)).dtype == torch.bfloat16
    assert model(random_trees(3)).dtype == torch.float32


def test_root_gives_tensors() -> None:
    sequence = fb.compile(fb.Map(fb.Vector(2)))([[[1, 2]], [], [[3, 4], [5, 6]]])
    assert isinstance(sequence, fl.Ragged)
    assert sequence.lengths.tolist() == [1, 0, 2]
    assert fb.compile(fb.Map(fb.Vector(2)))([[], []]).values.shape == (0, 2)
    with pytest.raises(
        fb.BlockTypeError, match=r"the output PyObjectType\(\) has Python objects in it, but a model gives tensors"
    ):
        fb.compile(fb.GetItem(0))
    with pytest.raises(
        fb.BlockTypeError,
        match=r"the output BroadcastSequenceType\(.* has an endless sequence in it. End it with fb.Zip",
    ):
        fb.compile(fb.Scalar() >> fb.Broadcast())
    with pytest.raises(fb.BlockTypeError, match=r"gives nothing and has no fb.Metric"):
        fb.compile(fb.Void())
    with pytest.raises(fl.errors.ArgumentError, match=r"nothing to compute: give the model at least one example"):
        fb.compile(fb.Scalar())([])
    with pytest.raises(fl.errors.ArgumentError, match=r"nothing to plan: give model.plan at least one example"):
        fb.compile(fb.Scalar()).plan([])


def test_examples_may_be_tensors_where_blocks_take_tensors() -> None:
    model = fb.compile(fb.Function(torch.neg).set_input_type(2))
    assert model([torch.ones(2), torch.zeros(2)]).tolist() == [[-1, -1], [0, 0]]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_plans_are_made_in_workers(start: str) -> None:
    model = tree_model()
    trees = random_trees(10)
    loader: Any = DataLoader(trees, batch_size=4, collate_fn=model.plan, num_workers=2, multiprocessing_context=start)  # type: ignore[arg-type]
    results = torch.cat([model(plan) for plan in loader])
    torch.testing.assert_close(results, model(trees))
    kept = [model.record(tree) for tree in trees]
    loader = DataLoader(kept, batch_size=4, collate_fn=model.plan, num_workers=1, multiprocessing_context=start)  # type: ignore[arg-type]
    torch.testing.assert_close(torch.cat([model(plan) for plan in loader]), model(trees))


def test_weights_are_never_pickled_with_plans() -> None:
    big = nn.Embedding(10_000, 100)
    bias = nn.Parameter(torch.zeros(100_000))
    block = fb.AllOf(fb.Scalar("int64") >> big, fb.Void() >> fb.FromTensor(bias) >> fb.Function(lambda x: x[:, :1]))
    model = fb.compile(block)
    model([1])
    planner = pickle.dumps(model.plan)
    assert len(planner) < 20_000
    assert len(pickle.dumps(model.record(3))) < 5_000
    elsewhere = pickle.loads(planner)
    first, second = model(elsewhere([1, 2]))
    assert torch.equal(first, big.weight[[1, 2]])
    assert second.shape == (2, 1)


def test_a_planner_elsewhere_says_what_it_was_never_told() -> None:
    elsewhere = pickle.loads(pickle.dumps(tree_model().plan))
    with pytest.raises(fb.BlockInputError, match=r"has no item 1.* asks for\n  in Pipe\[0\] > OneOf"):
        elsewhere([[3]])


def second_row(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[:, 1]


def test_lengths_that_a_planner_elsewhere_never_met() -> None:
    model = fb.compile(fb.Map(fb.Vector(2)) >> fb.Stack() >> fb.Function(second_row))
    elsewhere = pickle.loads(pickle.dumps(model.plan))
    examples = [[[1, 1]] * length for length in (2, 3, 9)]
    assert model(elsewhere(examples)).tolist() == [[1, 1]] * 3
    model = fb.compile(fb.Map(fb.Vector(2)) >> fb.Stack() >> fb.Function(lambda matrix: matrix[:, 1]))
    elsewhere = pickle.loads(pickle.dumps(model.plan))
    with pytest.raises(fb.BlockError, match=r"cell <lambda> meets \(float32\[9, 2\]\) for the first time in a process"):
        elsewhere(examples[2:])
    model.record(examples[2])
    assert model(pickle.loads(pickle.dumps(model.plan))(examples[2:])).tolist() == [[1, 1]]


def test_functions_that_cannot_travel() -> None:
    model = fb.compile(fb.InputTransform(lambda x: x) >> fb.Scalar())
    with pytest.raises(fb.BlockError, match=r"must then be importable: write them with `def` at the top of a module"):
        pickle.dumps(model.plan)


def test_reading_order_is_that_of_the_examples() -> None:
    model = fb.compile(fb.Map(fb.Scalar()) >> fb.Sum())
    examples = [[float(n)] * (n % 7) for n in range(50)]
    assert model(examples).tolist() == [sum(example) for example in examples]


def test_threads_do_not_mix_their_metrics() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model = fb.compile(fb.Map(fb.Scalar() >> fb.Metric("x")) >> fb.Void())
    batches = [[[n] * 200] for n in range(8)]
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(model.plan, batches))
    for number, plan in enumerate(plans):
        assert set(model(plan)[1]["x"].values.tolist()) == {float(number)}
