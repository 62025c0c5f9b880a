"""What an installed wheel can do: C is in it, types are, and a batch equals one by one. ``make wheel`` runs it, not pytest."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import torch

import foldloom as fl
from foldloom.planning import native
from foldloom.tracing import fast_path

assert "site-packages" in str(Path(fl.__file__)), fl.__file__
assert fast_path.is_compiled, "the wheel has no C"
assert native.planning is not None, "the wheel has no C"
assert (importlib.resources.files(fl) / "py.typed").is_file()
assert (importlib.resources.files(fl) / "views" / "assets" / "page.html").is_file()

weight = torch.randn(3, 3, requires_grad=True)


def program(x: torch.Tensor) -> torch.Tensor:
    y = (x @ weight).tanh()
    return y.sum() if y[0] > 0 else y.mean()


examples = [torch.randn(3) for _ in range(5)]
batched, alone = fl.batch(program)(examples), fl.one_by_one(program)(examples)
torch.testing.assert_close(batched, alone)
for results in (batched, alone):
    assert torch.autograd.grad(torch.stack(results).sum(), weight)[0].abs().sum() > 0
print(f"foldloom {fl.__version__} works from its wheel")
