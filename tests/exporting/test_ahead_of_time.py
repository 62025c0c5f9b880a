"""What AOTInductor makes of an exported file, which runs in C++ without Python, gives what the model gives."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foldloom import blocks as fb
from foldloom.exporting.files import export_to
from foldloom.runtime import Model


class Add(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(left) + right)


def nested(source: random.Random, leaves: int) -> Any:
    if leaves == 1:
        return [source.random(), source.random()]
    split = source.randint(1, leaves - 1)
    return nested(source, split), nested(source, leaves - split)


@pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler: g++")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own
def test_one_library_for_every_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tree = fb.ForwardDeclaration(fb.PyObjectType(), 2)
    merge = fb.Record((tree(), tree())) >> Add()
    state = fb.OneOf(lambda tree: isinstance(tree, list), {True: fb.Vector(2), False: merge})
    tree.resolve_to(state)
    model = fb.compile(state)
    export_to(model, [tmp_path / "model.pt2"], parts=1)
    program = torch.export.load(tmp_path / "model.pt2")
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "compiled.pt2"))
    compiled, exported, source = (
        torch._inductor.aoti_load_package(package),
        Model(tmp_path / "model.pt2"),
        random.Random(0),
    )
    for count in (1, 2, 50):
        trees = [nested(source, source.randint(1, 12)) for _ in range(count)]
        batch = exported.batch(trees)
        outputs = compiled(*map(torch.from_numpy, batch.feeds.values()))
        np.testing.assert_allclose(torch.stack(batch.results(outputs)), model(trees).detach(), atol=1e-5)
