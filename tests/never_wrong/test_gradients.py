"""Finding 4: gradients exactly as one by one: NaN, None and zero are three things."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, linear, sequences, vectors


def first_only(results: list[Any]) -> torch.Tensor:
    return results[0].sum()


# ---- What nobody uses sends nothing backward, zeros least of all.

UNUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "sqrt": lambda x: ((x * 0).sqrt(), x.exp().sqrt())[1],
    "log": lambda x: ((x * 0).log(), x.exp().log())[1],
    "log of a clamp": lambda x: ((x * 0).clamp(min=0).log(), x.exp().clamp(min=0).log())[1],
    "norm": lambda x: ((x * 0).norm(), (x + 1).norm())[1],
    "vector_norm": lambda x: (torch.linalg.vector_norm(x * 0), torch.linalg.vector_norm(x + 1))[1],
    "normalize": lambda x: (F.normalize(x * 0, dim=0, eps=0), F.normalize(x + 3, dim=0, eps=0))[1],
    "division": lambda x: (x / (x * 0), x / (x * x + 1))[1],
    "reciprocal": lambda x: ((x * 0).reciprocal(), x.exp().reciprocal())[1],
    "rsqrt": lambda x: ((x * 0).rsqrt(), x.exp().rsqrt())[1],
    "power": lambda x: ((x * 0) ** 0.5, x.exp() ** 0.5)[1],
    "power of itself": lambda x: ((x * 0) ** (x * 0 - 1), x.exp() ** x)[1],
    "acos": lambda x: ((x * 0 + 1).acos(), x.sigmoid().acos())[1],
    "atan2": lambda x: (torch.atan2(x * 0, x * 0), torch.atan2(x, x.exp()))[1],
    "std": lambda x: ((x * 0).std(), (x + torch.arange(3)).std())[1],
    "logsumexp of nothing": lambda x: ((x - torch.inf).logsumexp(0), x.logsumexp(0))[1],
    "softmax of nothing": lambda x: ((x - torch.inf).softmax(0), x.softmax(0))[1],
    "cosine_similarity": lambda x: (torch.cosine_similarity(x * 0, x, dim=0), torch.cosine_similarity(x + 1, x, dim=0))[1],
    "cdist": lambda x: (torch.cdist(x[None] * 0, x[None] * 0), torch.cdist(x[None], x[None] * 2))[1],
    "cholesky": lambda x: (torch.linalg.inv(torch.diag(x.exp())), torch.linalg.inv(torch.diag(x.exp() + 1)))[1],
    "used by what nobody uses": lambda x: ((x * 0).sqrt() * 2 + x, x.exp().sqrt() * 2 + x)[1],
    "part of several results": lambda x: torch.stack([(x * 0).sqrt(), x.exp().sqrt()])[1],
    "chosen by where": lambda x: torch.where(x > -100, x.exp().sqrt(), (x * 0).sqrt()),
    "detached": lambda x: (x * 0).sqrt().detach() + x.exp().sqrt(),
    "only compared": lambda x: x.exp().sqrt() if (x * 0).sqrt().sum() < 1 else x,
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    list(UNUSED),
)
def test_what_nobody_uses_sends_no_nan(name: str) -> None:
    inputs, layer = vectors(), linear()
    check(lambda x: UNUSED[name](layer(x)), inputs, sources=[*inputs, *layer.parameters()])


UNREACHED = {"sqrt": torch.sqrt, "log": torch.log, "norm": torch.norm, "reciprocal": torch.reciprocal}


@pytest.mark.parametrize(
    "name",
    list(UNREACHED),
)
def test_an_example_that_no_loss_reaches_sends_no_nan(name: str) -> None:
    """The derivatives of all examples but the first are infinite, and the loss is the first's alone."""
    weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
    columns = [torch.ones(3).double().requires_grad_(), *(torch.zeros(3).double().requires_grad_() for _ in range(2))]
    check(lambda x: UNREACHED[name](x * weight), columns, sources=[weight, *columns], loss=first_only)


def test_unused_outputs_of_one_operation() -> None:
    inputs = vectors(3, 3, 3)

    def function(x: torch.Tensor) -> Any:
        values, _vectors = torch.linalg.eigh(x + x.T)
        largest, _place = x.max(0)
        _low, high = torch.aminmax(x)
        mean, _ = torch.var_mean(x)[::-1]
        return values, largest, high, mean

    check(function, inputs, sources=inputs)


def test_eigenvectors_of_equal_eigenvalues_that_nobody_uses() -> None:
    inputs = vectors()

    def function(x: torch.Tensor) -> torch.Tensor:
        unused = torch.linalg.eigh(torch.eye(3, dtype=torch.float64) * x[0]).eigenvectors
        used = torch.linalg.eigh(torch.diag(x * 2)).eigenvalues
        return used if unused.shape == (3, 3) else unused

    check(function, inputs, sources=inputs)


# ---- Backward from a part.


@pytest.mark.parametrize(
    "name",
    ["linear", "LSTMCell", "Embedding", "cell", "Sequential", "tied"],
)
def test_backward_from_the_first_result(name: str) -> None:
    """Each example has weights of its own, the first example's only get gradients."""
    modules: dict[str, Callable[[], nn.Module]] = {
        "linear": linear,
        "LSTMCell": lambda: nn.LSTMCell(3, 3, dtype=torch.float64),
        "Embedding": lambda: nn.Sequential(nn.Embedding(5, 3, dtype=torch.float64)),
        "cell": lambda: fl.cell(linear()),
        "Sequential": lambda: nn.Sequential(linear(), nn.Tanh(), linear()),
        "tied": linear,
    }
    own = [modules[name]() for _ in range(3)]
    if name == "tied":
        own[2].weight = own[0].weight
    inputs = vectors()

    def function(number: int) -> torch.Tensor:
        if name == "Embedding":
            return own[number](torch.tensor([number, 1])) * 2
        result = own[number](inputs[number] * 2)
        return result[0] if isinstance(result, tuple) else result

    sources = [*inputs, *(weight for module in own for weight in module.parameters())]
    check(function, [0, 1, 2], sources=sources, loss=first_only)
    check(function, [0, 1, 2], sources=sources)


def test_leaves_have_no_grad_where_backward_did_not_come() -> None:
    def build() -> Program:
        inputs, layer, other = vectors(), linear(), linear()

        def function(x: torch.Tensor) -> Any:
            return layer(x).sum(), other(x).sum()

        def run(*columns: Any) -> Any:
            return function(*columns)

        return Program(
            run, [inputs], left=lambda: [x.grad for x in (*inputs, *layer.parameters(), *other.parameters())]
        )

    def backward(results: list[Any]) -> torch.Tensor:
        results[1][0].backward()
        return torch.zeros(())

    check_program(build, loss=backward)


def test_an_optimiser_sees_the_difference() -> None:
    """Weight decay moves weights whose gradient is zero, and leaves those without one."""

    def step(run: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        used, unused, inputs = linear(), linear(), vectors()
        optimiser = torch.optim.AdamW([*used.parameters(), *unused.parameters()], lr=0.1, weight_decay=0.5)

        def function(x: torch.Tensor) -> torch.Tensor:
            scores = unused(x)
            return used(x) if scores.detach().sum() < 1000 else scores

        sum(result.sum() for result in run(function)(inputs)).backward()
        optimiser.step()
        return [weight.detach() for weight in (*used.parameters(), *unused.parameters())]

    for actual, expected in zip(step(fl.batch), step(lambda f: lambda xs: [f(x) for x in xs]), strict=True):
        torch.testing.assert_close(actual, expected)


# ---- Weights that no result reaches have no gradient.


def _through(module: nn.Module) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        result = module(x[:, None] if isinstance(module, nn.LSTM) else x)
        return result[0] if isinstance(result, tuple) else result

    return function


class _Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(3, 3, 3, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bilinear(x, x)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear": linear,
    "LSTM": lambda: nn.LSTM(3, 3, dtype=torch.float64),
    "GRUCell": lambda: nn.GRUCell(3, 3, dtype=torch.float64),
    "Sequential": lambda: nn.Sequential(linear(), nn.Tanh(), nn.LayerNorm(3, dtype=torch.float64)),
    "cell": lambda: fl.cell(linear()),
    "Bilinear": _Twice,
    "MultiheadAttention": _Attention,
}


USES = ("never", "detached", "asked", "no_grad", "made into zeros", "argmax")


@pytest.mark.parametrize(
    "case",
    [f"{name}, {use}" for name in MODULES for use in USES],
)
def test_weights_that_no_result_reaches(case: str) -> None:
    name, use = case.split(", ")
    inputs, module, used = sequences(2, 4, 3), MODULES[name](), linear()
    run = _through(module)

    def function(x: torch.Tensor) -> torch.Tensor:
        kept = used(x)
        if use == "detached":
            kept = kept + run(x).detach().sum()
        elif use == "asked" and run(x).sum() > 0:
            kept = kept + 1
        elif use == "no_grad":
            with torch.no_grad():
                kept = kept + run(x).sum()
        elif use == "made into zeros":
            kept = kept + (torch.zeros_like(run(x)).sum() * 2)
        elif use == "argmax":
            kept = kept[run(x).sum(0).argmax() % 2]
        elif use == "never":
            run(x)
        return kept

    check(function, inputs, sources=[*inputs, *module.parameters(), *used.parameters()])


def test_embeddings_that_no_result_reaches() -> None:
    table, other = nn.Embedding(5, 3, dtype=torch.float64), nn.Embedding(5, 3, dtype=torch.float64)
    words = [torch.tensor([1, 2]), torch.tensor([3]), torch.tensor([1, 4, 0])]
    check(lambda x: (table(x), other(x))[0], words, sources=[table.weight, other.weight])
    check(lambda x: table(x) + other(x).detach(), words, sources=[table.weight, other.weight])


def test_a_weight_that_one_example_uses() -> None:
    inputs, layers = vectors(), [linear(), linear(), linear(), linear()]
    sources = [*inputs, *(weight for layer in layers for weight in layer.parameters())]
    check(lambda x, n: layers[n](x), inputs, [0, 2, 2], sources=sources)
    check(lambda x, n: layers[n](x), inputs, [0, 2, 2], sources=sources, loss=first_only)


def test_zero_and_none_beside_each_other() -> None:
    """Multiplied by zero is a gradient of zeros; unused is none."""
    inputs, one, other = vectors(), linear(), linear()
    check(lambda x: (one(x) * 0 + x, other(x))[0], inputs, sources=[*inputs, *one.parameters(), *other.parameters()])


def test_inputs_that_are_not_used() -> None:
    inputs, others = vectors(), vectors()
    check(lambda x, y: x * 2 if y.sum() < 100 else y, inputs, others, sources=[*inputs, *others])
    check(lambda x, y: (x * 2, y * 3)[0], inputs, others, sources=[*inputs, *others])


class Through(torch.autograd.Function):
    """A product that torch's function modes do not see."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


@pytest.mark.parametrize("again", [False, True], ids=["gradients", "gradients of gradients"])
@pytest.mark.parametrize("other", [lambda w: w + 2, lambda w: w * w, torch.exp], ids=["sum", "product", "exp"])
def test_a_weight_beside_what_is_computed_from_it(other: Callable[[torch.Tensor], torch.Tensor], again: bool) -> None:
    """In one step, of which backward reaches a part: the weight has its own gradient and what comes through the other, once each."""
    weight, inputs = nn.Parameter(torch.rand(3, dtype=torch.float64)), vectors(6)

    def both(x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(torch.addcmul(x, weight, other(weight)).exp())

    def program(x: torch.Tensor) -> torch.Tensor:
        return both(both(x) * weight)

    def found(run: Callable[..., Any]) -> list[torch.Tensor]:
        loss = torch.stack(run([(x,) for x in inputs])[:4]).square().sum()
        grads = torch.autograd.grad(loss, [weight, inputs[0]], create_graph=again)
        if again:
            grads = torch.autograd.grad(torch.cat(grads).square().sum(), [weight, inputs[0]])
        return list(grads)

    expected = found(lambda examples: [program(*example) for example in examples])
    batched = fl.batch(program)
    for _ in range(3):  # the second time, what was captured is one operation
        for one, wanted in zip(found(batched._together), expected, strict=True):
            torch.testing.assert_close(one, wanted)


def test_a_part_of_a_step_that_has_results_without_gradients_too() -> None:
    """What is captured returns a tensor and whether to go on; backward reaches the tensors of some examples."""
    layer = linear()

    def step(x: torch.Tensor) -> Any:
        y = layer(x) * 2
        return y, y.argmax()

    def program(x: torch.Tensor) -> torch.Tensor:
        y, first = step(x)
        for _ in range(3):
            y, first = step(y)
        return y if first > 0 else x

    inputs, batched = vectors(6), fl.batch(program)
    for _ in range(3):
        for count in (6, 3):
            results = [batched._together([(x,) for x in inputs]), [program(x) for x in inputs]]
            one, wanted = (torch.autograd.grad(torch.stack(found[:count]).sum(), layer.weight) for found in results)
            torch.testing.assert_close(one, wanted)


def test_second_gradients_of_a_cell_of_which_backward_reaches_a_part() -> None:
    layer, weight = linear(), nn.Parameter(torch.rand(3, dtype=torch.float64))
    hidden = fl.cell(lambda x: Through.apply(x, weight).tanh())
    plain = fl.cell(lambda x: torch.tanh(layer(x)) + x)
    inputs = vectors(6)
    for cell in (plain, hidden):

        def program(x: torch.Tensor, n: int, cell: Any = cell) -> torch.Tensor:
            for _ in range(n):
                x = torch.tanh(cell(x))
            return x

        def found(run: Callable[..., Any], cell: Any = cell) -> list[torch.Tensor]:
            weights = list(layer.parameters()) if cell is plain else [weight]
            loss = torch.stack(run(list(zip(inputs, [1, 2, 3] * 2, strict=True)))[:4]).square().sum()
            grads = torch.autograd.grad(loss, weights, create_graph=True)
            return list(torch.autograd.grad(torch.cat([grad.square().flatten() for grad in grads]).sum(), weights))

        expected = found(lambda examples, program=program: [program(*example) for example in examples])
        for one, wanted in zip(found(fl.batch(program)._together), expected, strict=True):
            torch.testing.assert_close(one, wanted)
