"""Functions, methods and operators of torch as they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import MATRIX, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


EXPRESSIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "operators": lambda x: (x + 1, 2 - x, x / 2, 2 / (x * x + 1), -x, +x, abs(x), (x * x) ** 1.5, 2**x, x % 2),
    "comparisons": lambda x: (x > 0, x <= 0.5, x == x, x != 1, (x > 0) & (x < 1), ~(x > 0), (x > 0) ^ True, (x > 1) | True),
    "methods": lambda x: (x.exp(), x.sum(), x.mean(0), x.clamp(-0.5, 0.5), x.pow(2), x.norm(), x.softmax(-1), x.sort().values),
    "functions": lambda x: (torch.exp(x), torch.maximum(x, -x), torch.where(x > 0, x, 0.0), torch.outer(x, x), torch.dot(x, x)),
    "functionals": lambda x: (functional.gelu(x), functional.pad(x, (1, 2)), functional.normalize(x, dim=0), functional.elu(x)),
    "several results": lambda x: (x.max(0), torch.topk(x, 2), torch.aminmax(x), torch.var_mean(x), *x.split(1)),
    "named results": lambda x: x.max(0).values * x.min(0).indices,
    "products": lambda x: (x @ MATRIX, MATRIX @ x, torch.einsum("i,ij->j", x, MATRIX), torch.linalg.vector_norm(x), x @ x),
    "indexing": lambda x: (x[0], x[-1], x[1:], x[::2], x[None], x[..., 1], x[torch.tensor([0, 2, 0])], x[[1, 2]], x[x.argmax()]),
    "shapes": lambda x: (x.view(3, 1), x.reshape(1, -1), x.expand(2, 3), x.unsqueeze(0).t(), x.repeat(2), x.flip(0), x.roll(1)),
    "joining": lambda x: (torch.cat([x, x * 2]), torch.stack([x, -x]), torch.stack([x, -x], 1), torch.hstack([x, x]), torch.vstack([x, x])),
    "conversions": lambda x: (x.float(), x.long(), x.to(torch.int32), x.bool(), x.type(torch.float32), x.to(x.float()), x.double(), x.half()),
    "numbers meet numbers": lambda x: (x * x.argmax(), x.float() * x.sum(), x.argmax() / 2, x.argmax() + 1, x.float() + x, x.sum() * x.argmax()),
    "complex": lambda x: (torch.complex(x, x * 2).abs(), (x * 1j).imag, torch.view_as_real(x + 1j * x), (x * 1j).conj().angle()),
    "likes": lambda x: (torch.zeros_like(x), torch.ones_like(x) * x, x.new_zeros(2), torch.full_like(x, 3.0), x.new_tensor([1.0, 2.0])),
    "python's own": lambda x: (sum(x), [y * 2 for y in x], dict(enumerate(x)), list(zip(x, x.flip(0), strict=True)), [*x], len(x)),
    "losses": lambda x: (functional.cross_entropy(x, torch.tensor(1)), functional.mse_loss(x, x * 2), functional.nll_loss(x, torch.tensor(2))),
    "detached": lambda x: (x.detach() * x, x.data * x, (x * 2).detach()),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_torch_as_it_is_written(name: str) -> None:
    inputs = vectors(4)
    check_on_the_fly(EXPRESSIONS[name], inputs, sources=inputs)
