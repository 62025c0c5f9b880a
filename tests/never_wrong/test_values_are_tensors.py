"""Finding 3: a value is a tensor where anyone looks."""

from __future__ import annotations

import copy
import io
import numbers
import pickle
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

import foldloom as fl
from tests.never_wrong.checking import check, linear, vectors

LAYER = linear()
WEIGHT = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))


@singledispatch
def dispatched(x: object) -> str:
    return "object"


@dispatched.register
def _(x: torch.Tensor) -> str:
    return "tensor"


def matched(x: object) -> Any:
    match x:
        case torch.Tensor():
            return "tensor"
        case [*_]:
            return "sequence"
    return "other"


def matched_with_attributes(x: object) -> Any:
    match x:
        case torch.Tensor(ndim=1, dtype=torch.float64):
            return "vector"
    return "other"


LOOKS: dict[str, Callable[[torch.Tensor], Any]] = {
    "isinstance": lambda x: isinstance(x, torch.Tensor),
    "isinstance of several": lambda x: isinstance(x, (list, torch.Tensor)),
    "isinstance of a parameter": lambda x: isinstance(x, nn.Parameter),
    "isinstance of a kind": lambda x: (isinstance(x, torch.DoubleTensor), isinstance(x, torch.FloatTensor)),
    "is_tensor": torch.is_tensor,
    "issubclass": lambda x: issubclass(type(x), torch.Tensor),
    "class": lambda x: x.__class__ is torch.Tensor,
    "type as text": lambda x: (x.type(), type(x).__name__, type(x).__module__),
    "match": matched,
    "match with attributes": matched_with_attributes,
    "singledispatch": dispatched,
    "isinstance of a number": lambda x: isinstance(x.sum(), numbers.Number),
    "Variable": lambda x: torch.autograd.Variable(x) * 2,
    "as_tensor": lambda x: torch.as_tensor(x) * 2,
    "asarray": lambda x: torch.asarray(x.detach()) * 2,
    "overrides": lambda x: torch.overrides.is_tensor_like(x),
    "is_floating_point": lambda x: (torch.is_floating_point(x), torch.is_complex(x), torch.numel(x)),
    "storage": lambda x: x.is_contiguous() and x.stride() == (1,) and x.storage_offset() == 0,
    "layout": lambda x: (x.layout, x.is_sparse, x.is_cuda, x.is_quantized, x.device.type),
    "result type": lambda x: torch.result_type(x, 1),
    "same storage": lambda x: x.view(3).data_ptr() == x.data_ptr(),
    "hash and equality": lambda x: (x in {x}, {x: 1}[x], x is x),
    "default_collate": lambda x: default_collate([x.detach(), x.detach() * 2]),
    "default_collate of dicts": lambda x: default_collate([{"a": x.detach()}, {"a": x.detach() * 2}]),
    "pytree": lambda x: pytree.tree_map_only(torch.Tensor, lambda y: y * 2, {"a": [x], "b": 3}),
    "format": lambda x: (f"{x.detach()}", str(x.detach()), repr([x.detach()[0]]), f"{x.detach()[0]:.2f}"),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(2, 3, dtype=torch.float64)),
    "pad_sequence": lambda x: nn.utils.rnn.pad_sequence([x, x[:2]], batch_first=True),
    "pack_sequence": lambda x: nn.utils.rnn.pack_sequence([x[:, None], x[:2, None]]).data,
    "parameters_to_vector": lambda x: nn.utils.parameters_to_vector([x, x * 2]),
    "tensor in a loop": lambda x: torch.stack([*x]) + sum(x),
}


@pytest.mark.parametrize(
    "name",
    list(LOOKS),
)
def test_a_value_is_a_tensor(name: str) -> None:
    inputs = vectors()
    check(lambda x: LOOKS[name](x * 1.5), inputs, sources=inputs)


@pytest.mark.parametrize(
    "name",
    list(LOOKS),
)
def test_what_was_given_is_a_tensor(name: str) -> None:
    inputs = vectors()
    check(LOOKS[name], inputs, sources=inputs)


def test_values_are_of_a_subclass_of_torchs_type() -> None:
    """The guide says so. Whatever leaves the batch is of torch's own type."""
    kinds: list[type] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        kinds.extend([type(x), type(x * 2)])
        return x * 2

    (result,) = fl.batch(function)(vectors(1))
    assert all(issubclass(kind, torch.Tensor) and kind is not torch.Tensor for kind in kinds)
    assert type(result) is torch.Tensor


DISTRIBUTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "Normal": lambda x: torch.distributions.Normal(x, x.exp()).log_prob(x * 2),
    "Categorical": lambda x: torch.distributions.Categorical(logits=x).log_prob(torch.tensor(1)),
    "Categorical of probabilities": lambda x: torch.distributions.Categorical(x.softmax(0)).entropy(),
    "Bernoulli": lambda x: torch.distributions.Bernoulli(x.sigmoid()).log_prob(torch.ones(3, dtype=torch.float64)),
    "Dirichlet": lambda x: torch.distributions.Dirichlet(x.exp()).mean,
    "Independent": lambda x: torch.distributions.Independent(torch.distributions.Normal(x, x.exp()), 1).log_prob(x),
    "MultivariateNormal": lambda x: torch.distributions.MultivariateNormal(x, torch.eye(3).double()).log_prob(x * 2),
    "kl": lambda x: torch.distributions.kl_divergence(
        torch.distributions.Normal(x, x.exp()), torch.distributions.Normal(x * 0, x.exp() * 2)
    ),
    "greedy": lambda x: torch.distributions.Categorical(logits=x).probs.argmax(),
    "mixture": lambda x: torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=x), torch.distributions.Normal(x, x.exp())
    ).log_prob(torch.tensor(0.5, dtype=torch.float64)),
}


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_distributions_with_validation(name: str) -> None:
    inputs = vectors()
    check(lambda x: DISTRIBUTIONS[name](LAYER(x)), inputs, sources=[*inputs, *LAYER.parameters()])


def test_validation_refuses_as_in_torch() -> None:
    def function(x: torch.Tensor) -> str:
        try:
            torch.distributions.Normal(x, -x.exp())
        except ValueError:
            return "refused"
        return "taken"

    check(lambda x: function(x * 2), vectors())


def energy(x: torch.Tensor) -> torch.Tensor:
    return (LAYER(x).tanh() ** 2).sum()


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": torch.func.grad(energy),
    "grad_and_value": torch.func.grad_and_value(energy),
    "vjp": lambda x: torch.func.vjp(LAYER, x)[1](x * 2)[0],
    "jvp": lambda x: torch.func.jvp(LAYER, (x,), (x * 2,)),
    "jacrev": torch.func.jacrev(lambda x: LAYER(x).tanh()),
    "jacfwd": torch.func.jacfwd(lambda x: LAYER(x).tanh()),
    "hessian": torch.func.hessian(energy),
    "vmap": lambda x: torch.func.vmap(lambda row: LAYER(row).tanh())(torch.stack([x, x * 2])),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(energy))(torch.stack([x, x * 2])),
    "functional_call": lambda x: torch.func.functional_call(LAYER, {"weight": x.expand(3, 3), "bias": x}, (x,)),
    "jacobian": lambda x: torch.autograd.functional.jacobian(lambda y: LAYER(y).tanh(), x, create_graph=True),
    "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(energy, x, use_reentrant=False),
}


@pytest.mark.parametrize(
    "name",
    list(TRANSFORMS),
)
def test_transforms_inside_a_program(name: str) -> None:
    inputs = vectors()
    check(lambda x: TRANSFORMS[name](x * 1.5), inputs, sources=[*inputs, *LAYER.parameters()])


def test_grad_around_a_batch() -> None:
    inputs = [x.detach() for x in vectors()]

    def of(run: Callable[..., Any]) -> torch.Tensor:
        return torch.func.grad(lambda weight: sum(run(lambda x: torch.tanh(x @ weight).sum())(inputs)))(WEIGHT.detach())

    torch.testing.assert_close(of(fl.batch), of(lambda f: lambda xs: [f(x) for x in xs]))


def test_jvp_around_a_batch() -> None:
    inputs = [x.detach() for x in vectors()]

    def of(run: Callable[..., Any]) -> Any:
        def total(weight: torch.Tensor) -> Any:
            return sum(run(lambda x: torch.tanh(x @ weight).sum())(inputs))

        return torch.func.jvp(total, (WEIGHT.detach(),), (torch.ones_like(WEIGHT),))

    torch.testing.assert_close(of(fl.batch), of(lambda f: lambda xs: [f(x) for x in xs]))


def test_vmap_around_a_batch() -> None:
    inputs, weights = [x.detach() for x in vectors()], torch.stack([WEIGHT.detach(), 2 * WEIGHT.detach()])

    def of(run: Callable[..., Any]) -> Any:
        return torch.vmap(lambda weight: tuple(run(lambda x: torch.tanh(x @ weight))(inputs)))(weights)

    torch.testing.assert_close(of(fl.batch), of(lambda f: lambda xs: [f(x) for x in xs]))


def test_functional_call_around_a_batch() -> None:
    inputs, model = [x.detach() for x in vectors()], nn.Sequential(linear(), nn.Tanh())

    def of(run: Callable[..., Any]) -> Any:
        def total(weights: dict[str, torch.Tensor]) -> Any:
            return sum(run(lambda x: torch.func.functional_call(model, weights, (x,)).sum())(inputs))

        return torch.func.grad(total)(dict(model.named_parameters()))

    torch.testing.assert_close(of(fl.batch), of(lambda f: lambda xs: [f(x) for x in xs]))


def saved(x: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


COPIES: dict[str, Callable[[torch.Tensor], Any]] = {
    "copy": copy.copy,
    "copy of a list": lambda x: copy.copy([x, x * 2]),
    "deepcopy": lambda x: copy.deepcopy(x.detach()),
    "deepcopy of a dict": lambda x: copy.deepcopy({"a": x.detach()}),
    "deepcopy of what has a history": lambda x: _error_of(lambda: copy.deepcopy(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x.detach())),
    "torch.save": lambda x: saved(x.detach()),
}


def _error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except (RuntimeError, TypeError) as error:
        return type(error).__name__
    return "none"


@pytest.mark.parametrize(
    "name",
    list(COPIES),
)
def test_copies_of_a_value(name: str) -> None:
    inputs = vectors()
    check(lambda x: COPIES[name](x * 1.5), inputs, sources=inputs)


def test_a_function_of_torch_that_looks_at_types() -> None:
    inputs = vectors(3, 2, 3)
    mask = torch.tensor([[True, False], [True, True]])
    attention = nn.MultiheadAttention(3, 1, dtype=torch.float64)
    check(
        lambda x: (attention(x * 2, x, x, attn_mask=~mask)[0], F.embedding(torch.tensor([1, 0]), x * 2)),
        inputs,
        sources=[*inputs, *attention.parameters()],
    )
