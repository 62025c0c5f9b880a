"""Common operators of torch's own database under the judge, and every form of argument that rules read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import foldloom as fl
from benchmarks import operators
from benchmarks.operators import RIGHT, judge
from tests.tracing.rules.operator_database import named

COMMON = [
    "add", "mul", "pow", "exp", "sigmoid", "clamp", "maximum", "where", "masked_fill",
    "sum", "mean", "amax", "argmax", "cumsum", "logsumexp", "var", "norm", "softmax", "log_softmax",
    "matmul", "bmm", "dot", "addmm", "einsum", "outer", "nn.functional.linear", "nn.functional.embedding",
    "cat", "stack", "unbind", "split", "narrow", "select", "__getitem__", "index_select", "gather", "scatter", "take_along_dim",
    "reshape", "view", "transpose", "permute", "unsqueeze", "expand", "flip", "roll", "tril", "sort", "topk",
    "nn.functional.relu", "nn.functional.gelu", "nn.functional.layer_norm", "nn.functional.dropout", "nn.functional.conv1d",
    "nn.functional.cross_entropy", "nn.functional.nll_loss", "nn.functional.mse_loss", "nn.functional.binary_cross_entropy_with_logits",
    "zeros_like", "rand_like", "nonzero", "masked_select", "item",
]  # fmt: skip
"""What models of the literature are made of: of functions that share a rule, one or two."""


ONCE_WRONG = [
    "roll", "select_scatter", "slice_scatter", "renorm", "as_strided", "as_strided_copy", "as_strided_scatter", "linspace.tensor_overload",
    "nn.functional.linear_cross_entropy.chunked", "double", "to", "nn.functional.binary_cross_entropy", "nn.functional.bilinear", "nn.functional.multi_margin_loss",
    "__rand__", "__ror__", "tensor_split", "resize_", "resize_as_", "t", "transpose", "squeeze",
]  # fmt: skip
"""What torch.vmap gets wrong, what depends on memory, what looks like a change in place, what changes its own shape."""


ON_DEMAND = {"nonzero", "masked_select", "item", "narrow", "rand_like"}
"""Those that may need values: of tensors that are given, they are there already. Random numbers are drawn at once."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMMON)
def test_common_operators_are_right(name: str) -> None:
    assert named(name)
    for op in named(name):
        verdict = judge(op, most_samples=2)
        assert (verdict.verdict, verdict.detail) == (RIGHT, "")
        assert verdict.in_fewer_steps or name in ON_DEMAND, f"{verdict.steps} steps for {verdict.examples} examples"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ONCE_WRONG)
def test_operators_with_pitfalls_are_right(name: str) -> None:
    for op in named(name):
        verdict = judge(op, most_samples=4)
        assert (verdict.verdict, verdict.detail) == (RIGHT, "")


def numbers(*shape: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


def places(*shape: int, below: int = 3) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(below, shape, generator=generator) for _ in range(3)]


X, Y, V, W, S = numbers(3, 4), numbers(3, 4, seed=1), numbers(4), numbers(4, seed=2), numbers()
IMAGE, SEQUENCE = numbers(2, 4, 6, 6), numbers(4, 9)
FLOATS = [x.detach().float() for x in X]
MASK = [x.detach() > 0 for x in X]
ROWS, ROW, COLUMN = places(2), places(), places(below=4)
CLASSES, CLASS = places(3, below=4), places(below=4)
WEIGHT = torch.nn.Parameter(torch.arange(24.0, dtype=torch.float64).reshape(6, 4).sin())
TABLE = torch.nn.Parameter(torch.arange(12.0, dtype=torch.float64).reshape(3, 4).cos())


KERNEL_1D = torch.nn.Parameter(torch.arange(24.0, dtype=torch.float64).reshape(2, 4, 3).cos())


KERNEL_2D = torch.nn.Parameter(torch.arange(72.0, dtype=torch.float64).reshape(2, 4, 3, 3).cos())


MATRIX_3D = torch.nn.Parameter(torch.arange(40.0, dtype=torch.float64).reshape(2, 4, 5).cos())


SCALES = torch.nn.Parameter(torch.arange(1.0, 5.0, dtype=torch.float64))
PLACES = torch.tensor([5, 6])
WEIGHTS = (WEIGHT, TABLE, KERNEL_1D, KERNEL_2D, MATRIX_3D, SCALES)
ATTENTION = torch.nn.MultiheadAttention(4, 2, dtype=torch.float64)


def attend(x: torch.Tensor, **settings: Any) -> Any:
    weights = ATTENTION.in_proj_weight, ATTENTION.in_proj_bias
    last = ATTENTION.out_proj.weight, ATTENTION.out_proj.bias
    return functional.multi_head_attention_forward(x, x, x, 4, 2, *weights, None, None, False, 0.0, *last, **settings)


FORMS: dict[str, tuple[Callable[..., Any], list[list[torch.Tensor]]]] = {
    # Elementwise: broadcasting, numbers without dimensions, dtypes that differ.
    "a vector and a matrix": (lambda v, x: v * x + x / v, [V, X]),
    "a number and a matrix": (lambda s, x: torch.maximum(s, x) - s, [S, X]),
    "floats and a double number": (lambda x, s: x * s.detach(), [FLOATS, S]),
    "floats and doubles": (lambda x, y: x + y, [FLOATS, Y]),
    "whole numbers and doubles": (lambda i, s: i * s + i**2, [ROWS, S]),
    "two numbers": (lambda s, i: s * i - i / 2, [S, ROW]),
    "clamped by values": (lambda x, v: torch.clamp(x, min=v, max=v + 1), [X, V]),
    "a weight with more dimensions": (lambda v: v + WEIGHT, [V]),
    "operators of a weight and a value": (
        lambda x: (TABLE + x, TABLE - x, x - TABLE, TABLE / x, TABLE.detach() // x.detach(), (TABLE + 2) ** x, x > TABLE, 2 - x, 2**x),
        [X],
    ),
    "operators of whole numbers": (lambda i: (PLACES & i, i | PLACES, PLACES ^ 1, PLACES << i, i >> 1, 7 & i, PLACES % (i + 1)), [ROWS]),
    "operators of booleans": (lambda m, x: ((m & (x < 1)) | ~m) ^ m, [MASK, X]),
    "where": (lambda m, x, s: (torch.where(m, x, 0.0), torch.where(m, x, s), x.where(m, s)), [MASK, X, S]),
    "masked fill": (lambda x, m, s: (x.masked_fill(m, 2), torch.masked_fill(x, m, s)), [X, MASK, S]),
    "a mask that is broadcast": (lambda x, m: x.masked_fill(m[0], -torch.inf), [X, MASK]),
    "casts": (lambda x, i: (x.to(i), x.type_as(i), x.to(torch.float32), x.float(), x.to("cpu")), [X, ROWS]),
    "layouts of memory": (
        lambda x: (x.to(memory_format=torch.channels_last), x.clone(memory_format=torch.channels_last)),
        [IMAGE],
    ),
    "constants alike": (lambda x: (torch.zeros_like(x), x.new_ones(2), torch.full_like(x, 2, dtype=torch.int64)), [X]),
    "one hot": (lambda i: functional.one_hot(i, 5), [ROWS]),
    # Reductions: whole, over one dimension or several, kept or not, by position and by name.
    "sums": (
        lambda x: (x.sum(), x.sum(0), x.sum(dim=-1, keepdim=True), x.sum((0, 1)), x.sum(axis=1), x.sum(1, True)),
        [X],
    ),
    "sums in another dtype": (lambda x: (x.sum(dtype=torch.float32), torch.sum(x, 1, dtype=torch.float32)), [X]),
    "reductions of numbers": (lambda s: (s.sum(), s.sum(0), s.max(), s.softmax(0), s.cumsum(-1), s.std(0)), [S]),
    "means": (lambda x: (x.mean(), x.mean(-1), torch.mean(x, dim=(0,), keepdim=True)), [X]),
    "largest": (lambda x: (x.max(), x.max(1), x.max(dim=0, keepdim=True).values, torch.amax(x, (0, 1)), x.min()), [X]),
    "the larger of two": (lambda x, v: (torch.max(x, v), torch.min(v, x)), [X, V]),
    "where the largest is": (lambda x: (x.argmax(), x.argmax(-1), torch.argmin(x, dim=0, keepdim=True)), [X]),
    "deviations": (
        lambda x: (x.std(), x.var(1), x.std(0, False), torch.var(x, dim=1, correction=2), torch.var_mean(x)),
        [X],
    ),
    "all and any": (lambda m: (m.all(), m.any(0), torch.any(m, dim=1, keepdim=True), m.count_nonzero()), [MASK]),
    "sorted": (lambda x: (x.sort(), x.sort(0, True), torch.argsort(x, dim=-2), x.topk(2), x.topk(k=1, dim=0)), [X]),
    "medians": (lambda x: (x.median(), x.median(1), x.kthvalue(2), x.kthvalue(1, 0, True), x.mode(0)), [X]),
    "cumulated": (lambda x: (x.cumsum(0), x.cumprod(-1), torch.logcumsumexp(x, dim=1), x.cummax(0), x.diff()), [X]),
    "softmax": (
        lambda x: (x.softmax(-1), torch.log_softmax(x, dim=0), torch.softmax(x, 1, torch.float32), x.logsumexp((0, 1))),
        [X],
    ),
    "norms": (
        lambda x: (x.norm(), x.norm(1), x.norm(dim=-1), torch.norm(x, 2, 0, True), torch.norm(x, "fro", (0, 1))),
        [X],
    ),
    "norms of linear algebra": (
        lambda x: (torch.linalg.vector_norm(x), torch.linalg.vector_norm(x, 1, 0), torch.linalg.norm(x, "nuc")),
        [X],
    ),
    "normalized": (lambda x: (functional.normalize(x), functional.normalize(x, dim=0, p=1.0)), [X]),
    "similarities": (
        lambda x, y: (torch.cosine_similarity(x, y), torch.cosine_similarity(x, y, dim=0), torch.pairwise_distance(x, y)),
        [X, Y],
    ),
    # Shapes.
    "reshaped": (lambda x: (x.view(2, 6), x.reshape(-1), x.flatten(), x.unsqueeze(1), x.unflatten(1, (2, 2))), [X]),
    "reshaped as another": (lambda x, y: (x.t().reshape_as(y), x.view_as(y), x[:1].expand_as(y)), [X, Y]),
    "turned": (
        lambda x: (x.t(), x.transpose(-1, 0), x.permute(1, 0), torch.permute(x, dims=(1, 0)), x.movedim(0, -1), x.mT),
        [X],
    ),
    "moved": (lambda x: (x.flip(0), x.flip([0, -1]), x.roll(1), x.roll((1, 2), (0, 1)), x.roll(1, dims=-1)), [X]),
    "a number moved": (lambda s: (s.roll(1), s.clone()), [S]),
    "repeated": (lambda x: (x.repeat(2, 1), x.repeat(2, 1, 3), x.tile((2,)), x[:, :1].expand(-1, 5)), [X]),
    "triangles": (lambda x: (x.tril(), torch.triu(x, diagonal=1)), [X]),
    "parts": (lambda x: (x.chunk(2, 1), x.split(2), x.split([1, 3], dim=-1), x.tensor_split(2, 1), x.unbind(1)), [X]),
    "joined": (lambda x, y: (torch.cat([x, y, TABLE]), torch.cat((x, y), dim=-1), torch.stack([x, TABLE], -1)), [X, Y]),
    "padded": (lambda x: (functional.pad(x, (1, 2)), functional.pad(x, (0, 1, 2, 0), value=3)), [X]),
    "padded at the border": (lambda x: functional.pad(x, (1, 2), mode="reflect"), [SEQUENCE]),
    "scattered views": (
        lambda x, v: (torch.select_scatter(x, v, 0, 1), torch.slice_scatter(x, v.unsqueeze(0), start=2)),
        [X, V],
    ),
    # Indices, of all and of each.
    "plain indices": (lambda x: (x[1], x[-1], x[:, 2], x[..., None], x[1:, ::2], x.select(-1, 0), x.narrow(0, 1, 2)), [X]),
    "own rows": (lambda x, i: (x[i], x[i, 1:], x.index_select(0, i), torch.index_select(x, dim=1, index=i)), [X, ROWS]),
    "own places": (lambda x, i, j: (x[i, j], x[i], x[0, j], x[j - 4 + 1]), [X, ROW, COLUMN]),
    "rows of a table": (lambda i: (TABLE[i], TABLE.index_select(0, i), functional.embedding(i, TABLE)), [ROWS]),
    "rows for all": (lambda x: (x[[0, 2]], x.index_select(-1, torch.tensor([3, 0]))), [X]),
    "gathered": (lambda x, c: (x.gather(1, c.unsqueeze(1)), torch.gather(x, -1, c.unsqueeze(-1)).squeeze(-1)), [X, CLASSES]),
    "scattered": (
        lambda x, y, c: (x.scatter_add(1, c.unsqueeze(1), y[:, :1]), x.scatter(1, c.unsqueeze(1), 2.0)),
        [X, Y, CLASSES],
    ),
    "added at places": (lambda x, i, y: x.index_add(0, i, y[:2], alpha=2), [X, ROWS, Y]),
    # Products.
    "products": (lambda x, v: (x @ v, v @ x.t(), x @ x.t(), v @ v, x.t().mm(x), x.mv(v), v.dot(v)), [X, V]),
    "products with weights": (
        lambda x, v: (WEIGHT @ v, x @ WEIGHT.t(), v @ SCALES, SCALES @ x.t(), WEIGHT @ x.t(), x @ MATRIX_3D),
        [X, V],
    ),
    "products of batches": (lambda z, x: (z @ x.t(), z.bmm(z.mT), MATRIX_3D.mT @ x.t()), [numbers(2, 3, 4), X]),
    "sums with products": (
        lambda x, v: (torch.addmm(v, x, WEIGHT.t()[:, :4], beta=2), torch.addmv(x.sum(1), x, v, alpha=3)),
        [X, V],
    ),
    "outer products": (lambda v, w: (torch.outer(v, w), torch.einsum("i,j->ij", v, w), torch.einsum("i,i", v, w)), [V, W]),
    "einsum": (lambda x, v: (torch.einsum("ij,j,kj->ik", x, v, WEIGHT), torch.einsum("ij", x), torch.einsum("ij->j", x)), [X, V]),
    "linear maps": (
        lambda x, v: (functional.linear(v, WEIGHT), functional.bilinear(x, x, MATRIX_3D.mT[:, :1].expand(-1, 4, -1))),
        [X, V],
    ),
    # Images, sequences and attention.
    "convolutions": (
        lambda s, i: (torch.conv1d(s, KERNEL_1D, padding=1), torch.conv2d(i, KERNEL_2D), torch.conv2d(i[0], KERNEL_2D, stride=2)),
        [SEQUENCE, IMAGE],
    ),
    "pooled": (
        lambda s, i: (
            functional.max_pool1d(s, 3), functional.avg_pool2d(i, 2), functional.max_pool2d(i, 2, return_indices=True),
            functional.adaptive_avg_pool1d(s, 1), functional.adaptive_max_pool2d(i[0], 2), functional.interpolate(i, scale_factor=2),
        ),
        [SEQUENCE, IMAGE],
    ),
    "normalized in groups": (
        lambda x, i: (functional.layer_norm(x, (4,), SCALES), functional.group_norm(i, 2, SCALES), functional.rms_norm(x, (4,))),
        [X, IMAGE],
    ),
    "attention": (
        lambda x, y, m: (
            functional.scaled_dot_product_attention(x, y, y),
            functional.scaled_dot_product_attention(x, y, x, is_causal=True),
            functional.scaled_dot_product_attention(x[None], y[None], x[None], attn_mask=m[:, :3] | torch.eye(3).bool()),
        ),
        [X, Y, MASK],
    ),
    "attention with heads": (lambda x, y: (ATTENTION(x, y, y), ATTENTION(x, x, x, need_weights=False)), [X, Y]),
    "attention with masks": (
        lambda x, m: (
            attend(x, attn_mask=m[:, :3] & ~torch.eye(3).bool(), average_attn_weights=False),
            attend(x, key_padding_mask=m[:, 0] & m[:, 1] & ~m.all()),
        ),
        [X, MASK],
    ),
    # Losses.
    "losses of elements": (
        lambda x, y: tuple(
            loss(x.sigmoid(), y.sigmoid().detach(), reduction=reduction)
            for loss in (
                functional.mse_loss, functional.l1_loss, functional.huber_loss, functional.binary_cross_entropy,
                functional.kl_div, functional.poisson_nll_loss, functional.soft_margin_loss,
            )
            for reduction in ("none", "mean", "sum")
        ),
        [X, Y],
    ),
    "weighted losses of elements": (
        lambda x, y: (
            functional.binary_cross_entropy(x.sigmoid(), y.sigmoid().detach(), y.exp().detach()),
            functional.mse_loss(x, y, weight=y.exp()),  # type: ignore[call-arg]
            functional.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=SCALES.detach()),
            functional.kl_div(x, y.softmax(-1), reduction="batchmean"),
        ),
        [X, Y],
    ),
    "losses of classes": (
        lambda x, v, c, k: (
            functional.cross_entropy(x, c), functional.cross_entropy(v, k), functional.cross_entropy(x, c, ignore_index=1),
            functional.cross_entropy(x, c, SCALES.detach()), functional.cross_entropy(x, c, label_smoothing=0.1, ignore_index=2),
            functional.cross_entropy(x, x.softmax(-1)), functional.nll_loss(x, c, reduction="none"),
            functional.cross_entropy(x, c, reduction="sum", weight=SCALES.detach()), functional.cross_entropy(v, v.softmax(0), label_smoothing=0.2),
        ),
        [X, V, CLASSES, CLASS],
    ),
    "margins": (
        lambda x, y, c, k: (
            functional.triplet_margin_loss(x, y, y.flip(0)), functional.multi_margin_loss(x, c), functional.multi_margin_loss(x[0], k, reduction="sum"),
            functional.margin_ranking_loss(x, y, y.sign(), margin=0.5), functional.hinge_embedding_loss(x, y.sign(), reduction="sum"),
            functional.cosine_embedding_loss(x, y, y[:, 0].sign()), functional.multilabel_soft_margin_loss(x, y.sigmoid(), reduction="none"),
        ),
        [X, Y, CLASSES, CLASS],
    ),
}  # fmt: skip


NOT_BY_RULES = {
    "reductions of numbers", "medians", "norms of linear algebra", "constants alike", "turned", "deviations", "weighted losses of elements", "rows for all",
    "linear maps", "floats and a double number",
}  # fmt: skip
"""Where some of the calls have no rule."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_argument(name: str) -> None:
    function, columns = FORMS[name]
    sources = [tensor for column in columns for tensor in column if tensor.requires_grad]
    sources += [*WEIGHTS, *ATTENTION.parameters()]
    expected = [function(*example) for example in zip(*columns, strict=True)]
    with operators.runs_noted() as runs:
        found = fl.batch(function)(*columns)
    actual_tensors, expected_tensors = operators.tensors(found), operators.tensors(expected)
    operators.check_outputs(actual_tensors, expected_tensors, only_shapes=False)
    needs = operators.differentiable(expected)
    operators.check_gradients(
        operators.gradients(lambda output: output, found, sources, needs),
        operators.gradients(lambda output: output, expected, sources, needs),
    )
    ways = {way for run in runs for way, _ in run.ways()}
    assert ways <= {"direct rule", "cell"} or name in NOT_BY_RULES, ways


@pytest.mark.parametrize("given", [True, False])
def test_memory_is_that_of_a_tensor_of_its_own(given: bool) -> None:
    def windows(x: torch.Tensor) -> torch.Tensor:
        return (x if given else x * 2).as_strided((3, 2), (1, 1), storage_offset=1)

    inputs = numbers(6)
    expected = [windows(x) for x in inputs]
    operators.check_outputs(operators.tensors(fl.batch(windows)(inputs)), expected, only_shapes=False)


def test_memory_of_a_view_is_not_known() -> None:
    with pytest.raises(fl.errors.ArgumentError, match=r"as_strided. of a view.*\(`x.clone\(\)`\)"):
        fl.batch(lambda x: x.t().as_strided((2,), (1,)))(X)


def test_what_has_no_derivative_is_refused_only_where_one_is_needed() -> None:
    inputs = numbers(4)
    halves, doubles = zip(*fl.batch(lambda x: (x // 0.5, x * 2))(inputs), strict=True)
    torch.stack(doubles).sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"derivative for aten::floor_divide is not implemented"):
        torch.stack(halves).sum().backward()
