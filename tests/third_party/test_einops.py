"""einops: patterns, layers and packing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.third_party.checking import check, tensors

einops = pytest.importorskip("einops", reason="einops is not installed: make trials")
layers = pytest.importorskip("einops.layers.torch", reason="einops is not installed: make trials")

MATRICES = tensors((2, 4), (3, 4), (5, 4), (3, 4))
IMAGES = tensors((3, 4, 6), (3, 2, 2), (3, 6, 4))


def test_transpose() -> None:
    check(lambda x: einops.rearrange(x, "rows size -> size rows"), MATRICES, MATRICES)


def test_merge() -> None:
    check(lambda x: einops.rearrange(x * 2, "channels h w -> (h w) channels"), IMAGES, IMAGES)


def test_split() -> None:
    check(lambda x: einops.rearrange(x.tanh(), "rows (heads size) -> heads rows size", heads=2), MATRICES, MATRICES)


def test_patches() -> None:
    check(lambda x: einops.rearrange(x, "c (h p) (w q) -> (h w) (p q c)", p=2, q=2).exp(), IMAGES, IMAGES)


@pytest.mark.parametrize("how", ["mean", "max", "sum", "prod"])
def test_reduce(how: str) -> None:
    check(lambda x: einops.reduce(x, "c h w -> c", how), IMAGES, IMAGES)


def test_reduce_by_a_function() -> None:
    def log_sum(x: Any, axes: tuple[int, ...]) -> Any:
        return torch.logsumexp(x, axes)

    check(lambda x: einops.reduce(x, "c h w -> h", log_sum), IMAGES, IMAGES)


def test_repeat() -> None:
    check(lambda x: einops.repeat(x, "rows size -> rows copies size", copies=3).sin(), MATRICES, MATRICES)


def test_stack_of_a_list() -> None:
    check(lambda x: einops.rearrange(list(x), "rows size -> size rows"), MATRICES, MATRICES)


def test_einsum() -> None:
    check(lambda x: einops.einsum(x, x, "row size, other size -> row other"), MATRICES, MATRICES)


def test_pack_and_unpack() -> None:
    def function(x: Any) -> Any:
        packed, shapes = einops.pack([x, x[0], x.unsqueeze(1)], "* size")
        return packed, shapes, einops.unpack(packed.cumsum(0), shapes, "* size")

    check(function, MATRICES, MATRICES)


def test_parse_shape() -> None:
    check(lambda x: einops.parse_shape(x, "channels _ width"), IMAGES)


def test_layers() -> None:
    model = nn.Sequential(
        layers.Rearrange("c h w -> (h w) c"), nn.Linear(3, 5), nn.ReLU(), layers.Reduce("n c -> c", "max")
    ).double()
    check(model, IMAGES, [*IMAGES, *model.parameters()])


def test_mix() -> None:
    model = layers.EinMix("rows size -> rows out", weight_shape="size out", bias_shape="out", size=4, out=3).double()
    check(model, MATRICES, [*MATRICES, *model.parameters()])


def test_caught_error() -> None:
    def function(x: Any) -> Any:
        try:
            return einops.rearrange(x, "(pairs two) size -> pairs two size", two=2)
        except einops.EinopsError as error:
            return type(error).__name__, str(error)

    check(function, MATRICES, MATRICES)
