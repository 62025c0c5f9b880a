"""torch.distributions, with validation on: its arguments and values are looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributions as d
from torch import nn

from tests.third_party.checking import check, tensors

VECTORS = tensors((3,), (2,), (5,), (3,))
MATRICES = tensors((2, 4), (3, 4), (5, 4))


@pytest.fixture(autouse=True)
def _validation() -> Iterator[None]:
    before = d.Distribution._validate_args
    d.Distribution.set_default_validate_args(True)
    yield
    d.Distribution.set_default_validate_args(before)


def test_normal() -> None:
    check(lambda x: d.Normal(x, x.exp()).log_prob(x.detach() + 1).sum(), VECTORS, VECTORS)


def test_categorical() -> None:
    def function(x: Any) -> Any:
        choice = d.Categorical(logits=x)
        return choice.log_prob(torch.tensor(1)), choice.entropy(), choice.probs, choice.mode

    check(function, VECTORS, VECTORS)


def test_categorical_of_rows() -> None:
    check(lambda x: d.Categorical(x.softmax(-1)).log_prob(x.argmax(-1)), MATRICES, MATRICES)


def test_bernoulli() -> None:
    check(lambda x: d.Bernoulli(logits=x).log_prob((x > 0).double()).mean(), VECTORS, VECTORS)


def test_gamma_beta_dirichlet() -> None:
    def function(x: Any) -> Any:
        rates, shares = x.exp(), x.detach().softmax(0)
        return [
            d.Gamma(rates, 1 / rates).log_prob(rates + 1),
            d.Beta(rates, 2.0).log_prob(shares),
            d.Dirichlet(rates).log_prob(shares),
        ]

    check(function, VECTORS, VECTORS)


def test_multivariate_normal() -> None:
    def function(x: Any) -> Any:
        spread = x.t() @ x + torch.eye(4, dtype=x.dtype)
        normal = d.MultivariateNormal(x[0], covariance_matrix=spread)
        return normal.log_prob(x), normal.entropy(), normal.variance

    check(function, MATRICES, MATRICES)


def test_divergence() -> None:
    check(lambda x: d.kl_divergence(d.Normal(x, x.exp()), d.Normal(0.0, 1.0)).sum(), VECTORS, VECTORS)


def test_divergence_of_categoricals() -> None:
    check(lambda x: d.kl_divergence(d.Categorical(logits=x), d.Categorical(logits=-x)), VECTORS, VECTORS)


def test_independent_and_transformed() -> None:
    def function(x: Any) -> Any:
        base = d.Independent(d.Normal(x, torch.ones_like(x)), 1)
        changed = d.TransformedDistribution(base, [d.AffineTransform(1.0, 2.0), d.ExpTransform()])
        return base.log_prob(x * 2), changed.log_prob(x.exp())

    check(function, MATRICES, MATRICES)


def test_mixture() -> None:
    def function(x: Any) -> Any:
        return d.MixtureSameFamily(d.Categorical(logits=x), d.Normal(x, x.exp())).log_prob(x.sum())

    check(function, VECTORS, VECTORS)


def test_samples() -> None:
    """Each example has numbers of its own, and the same ones for the same seed."""

    def function(x: Any) -> Any:
        torch.manual_seed(len(x))
        return d.Normal(x, x.exp()).rsample(torch.Size([2])), d.Categorical(logits=x).sample()

    check(function, VECTORS, VECTORS)


def test_policy() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    def function(x: Any) -> Any:
        policy = d.Categorical(logits=model(x))
        action = policy.probs.argmax(-1)
        return (-policy.log_prob(action)).sum() - 0.1 * policy.entropy().mean()

    check(function, MATRICES, [*MATRICES, *model.parameters()])


def test_returned() -> None:
    check(lambda x: d.Normal(x, x.exp()), VECTORS, VECTORS)


def test_shapes() -> None:
    def function(x: Any) -> Any:
        choice = d.Categorical(logits=x)
        return choice.batch_shape, choice.event_shape, choice.param_shape

    check(function, MATRICES)


def test_wrong_scale_is_caught() -> None:
    """Of one example: the others must not hear of it."""

    def function(x: Any) -> Any:
        try:
            return d.Normal(x, x.sum()).mean
        except ValueError as error:
            return type(error).__name__

    check(function, [*VECTORS, *[-x.detach() for x in VECTORS]])


def test_words_of_an_error() -> None:
    """Values that require grad are printed without their history, which is not known before they are computed."""

    def function(x: Any) -> Any:
        try:
            return d.Normal(x, -x.exp())
        except ValueError as error:
            return re.sub(r",\s+grad_fn=<\w+>", "", str(error))

    check(function, VECTORS)


def test_wrong_value_is_caught() -> None:
    def function(x: Any) -> Any:
        try:
            return d.Categorical(logits=x).log_prob(torch.tensor(len(x)) - 1 + (x[0] > 0))
        except ValueError as error:
            return type(error).__name__

    check(function, VECTORS, VECTORS)


def test_wrong_shape_is_caught() -> None:
    def function(x: Any) -> Any:
        try:
            return d.Normal(x, 1.0).log_prob(torch.zeros(3, dtype=torch.float64))
        except ValueError as error:
            return str(error)

    check(function, VECTORS, VECTORS)
