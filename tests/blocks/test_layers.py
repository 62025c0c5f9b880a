"""The modules that come with blocks."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from foldloom import blocks as fb
from tests.blocks.checking import check
from tests.law import check_law


def test_fc_finds_its_size() -> None:
    layer = fb.FC(2, activation=None)
    block = fb.Vector(3) >> layer
    assert block.output_type == fb.TensorType([2])
    assert layer.weight.shape == (2, 3)
    model = fb.compile(block)
    examples = [[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(model(examples), functional.linear(torch.tensor(examples), layer.weight, layer.bias))
    check_law(model.double().one_example, examples, sources=list(model.parameters()))


def test_fc_of_one_shape_have_weights_of_their_own() -> None:
    one, other = fb.FC(3), fb.FC(3)
    fb.Vector(3) >> one >> other
    assert not torch.equal(one.weight, other.weight)


def test_fc_options() -> None:
    layer = fb.FC(4, activation=torch.tanh, initializer=nn.init.ones_, normalization_fn=lambda x: x / 10)
    check(fb.Vector(2) >> layer, ([1, 2], [torch.tanh(torch.tensor(0.3)).item()] * 4), depths=[1])
    dropping = fb.FC(50, input_keep_prob=0.5, output_keep_prob=0.5)
    model = fb.compile(fb.Vector(50) >> dropping)
    assert not torch.equal(model([[1.0] * 50]), model([[1.0] * 50]))
    model.eval()
    assert torch.equal(model([[1.0] * 50]), model([[1.0] * 50]))
    normed = fb.FC(3, weight_norm=True, activation=None)
    model = fb.compile(fb.Vector(2) >> normed).double()
    assert normed.lengths is not None
    torch.testing.assert_close(normed.lengths, normed.weight.norm(dim=1))
    check_law(model.one_example, [[1.0, 2.0], [3.0, -1.0]], sources=list(model.parameters()))
    with pytest.raises(fb.BlockTypeError, match=r"takes a vector, not a tensor of shape \[2, 2\]"):
        fb.Tensor([2, 2]) >> fb.FC(3)


def test_copies_of_layers_are_drawn_anew() -> None:
    block = fb.Vector(3) >> fb.FC(2) >> fb.FC(2)
    one, other = (fb.compile(b) for b in (block, block.copy()))
    assert not torch.equal(one.cells["FC"].weight, other.cells["FC"].weight)  # type: ignore[arg-type]
    assert list(one.state_dict()) == list(other.state_dict())


def test_embedding() -> None:
    table = fb.Embedding(3, 2)
    check(
        fb.Scalar("int64") >> table,
        *[(number, table.weight[row].tolist()) for number, row in [(0, 0), (2, 2), (4, 1), (-5, 2)]],
        depths=[1] * 4,
    )
    assert not fb.Embedding(3, 2, trainable=False).weight.requires_grad
    with pytest.raises(fb.BlockTypeError, match=r"cannot take"):
        fb.Scalar() >> fb.Embedding(3, 2, mod_inputs=False)
    exact = fb.compile(fb.Scalar("int64") >> fb.Embedding(3, 2, initializer=nn.init.zeros_, mod_inputs=False))
    assert exact([2]).tolist() == [[0, 0]]


def linear() -> nn.Module:
    return nn.Linear(2, 2)


def test_fractal_net() -> None:
    net = fb.FractalNet(1, 1, linear)
    (block,) = net.blocks
    x = torch.ones(1, 2)
    first, second = block.recursive  # type: ignore[misc]
    expected = (block.base(x) + second.base(first.base(x))) / 2
    torch.testing.assert_close(net(x), expected)
    model = fb.compile(fb.Vector(2) >> fb.FractalNet(2, 2, linear)).double()
    assert len(list(model.parameters())) == 2 * 2 * 7
    check_law(model.one_example, [[1.0, 2.0], [3.0, 4.0]], sources=list(model.parameters()))
    summed = fb.FractalNet(1, 1, linear, mixer=torch.add)
    assert summed(x).shape == (1, 2)


def test_fractal_net_drops_paths_in_training_only() -> None:
    net = fb.FractalNet(1, 2, linear, drop_path=True)
    x = torch.ones(200, 2)
    different = net(x).unique(dim=0)
    assert 2 < len(different) < 200
    net.eval()
    torch.testing.assert_close(net(x), net(x[:1]).expand(200, 2))
    whole_paths = fb.FractalNet(1, 2, linear, drop_path=True, p_local_drop_path=0.0)
    assert len(whole_paths(x).unique(dim=0)) == 3  # one for each depth
    with pytest.raises(ValueError, match=r"is at most 1, not 1.5"):
        fb.FractalNet(1, 1, linear, p_drop_base_case=0.75, p_drop_recursive_case=0.75)


def test_lazy_modules_of_torch() -> None:
    block = fb.Vector(3) >> nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d()).eval()
    assert block.output_type == fb.TensorType([2])
    assert fb.compile(block)([[1, 2, 3], [4, 5, 6]]).shape == (2, 2)
