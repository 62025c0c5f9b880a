"""Finding 8: with a seed, plain programs draw what one by one draws, where that is possible."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, linear, sequences, vectors

LAYER = linear()
LSTM = nn.LSTM(3, 4, 2, dropout=0.5, dtype=torch.float64)
DROPOUT = nn.Dropout(0.5)
ALPHA, FEATURES = nn.AlphaDropout(0.5), nn.Dropout1d(0.5)


def several(x: torch.Tensor) -> Any:
    y = LAYER(x) + torch.randn(3, dtype=torch.float64)
    return F.dropout(y, 0.5), torch.rand(2), torch.randint(9, (2,))


def as_long_as_it_is(x: torch.Tensor) -> Any:
    return [DROPOUT(LAYER(x)) for _ in range(int(x.detach()[0] > 0) + 1)]


def own_generator(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(3)
    return x + torch.randn(3, generator=generator, dtype=torch.float64)


def seeded_inside(x: torch.Tensor) -> Any:
    torch.manual_seed(5)
    return x + torch.randn(3, dtype=torch.float64)


def forked(x: torch.Tensor) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        y = torch.randn(3, dtype=torch.float64)
    return x + y + torch.randn(3, dtype=torch.float64)


DRAWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "randn": lambda x: x + torch.randn(3, dtype=torch.float64),
    "rand": lambda x: x * torch.rand(3, dtype=torch.float64),
    "randn_like": lambda x: x + torch.randn_like(x),
    "randn_like of a value": lambda x: x + torch.randn_like(LAYER(x)),
    "randint": lambda x: x * torch.randint(9, (3,)),
    "randperm": lambda x: x[torch.randperm(3)],
    "bernoulli": lambda x: x * torch.bernoulli(torch.full((3,), 0.5)),
    "bernoulli of a value": lambda x: torch.bernoulli(LAYER(x).sigmoid()),
    "bernoulli_": lambda x: x * torch.empty(3).bernoulli_(0.5),
    "normal": lambda x: torch.normal(LAYER(x), 1.0),
    "normal_": lambda x: x + torch.empty(3, dtype=torch.float64).normal_(),
    "uniform_": lambda x: x + torch.zeros(3, dtype=torch.float64).uniform_(-1, 1),
    "exponential_": lambda x: x + torch.zeros(3, dtype=torch.float64).exponential_(),
    "multinomial": lambda x: LAYER(x).softmax(0).multinomial(2),
    "poisson": lambda x: torch.poisson(LAYER(x).exp()),
    "dropout": lambda x: F.dropout(LAYER(x), 0.5),
    "dropout module": lambda x: DROPOUT(LAYER(x)),
    "dropout of what was given": lambda x: DROPOUT(x),
    "alpha dropout": lambda x: ALPHA(LAYER(x)),
    "feature dropout": lambda x: FEATURES(LAYER(x)[:, None]),
    "gumbel": lambda x: F.gumbel_softmax(LAYER(x), hard=True),
    "rrelu": lambda x: F.rrelu(LAYER(x), training=True),
    "sample of Normal": lambda x: torch.distributions.Normal(x.detach(), 1.0, validate_args=False).sample(),
    "rsample of Normal": lambda x: torch.distributions.Normal(LAYER(x), 1.0, validate_args=False).rsample(),
    "sample of Categorical": lambda x: torch.distributions.Categorical(logits=LAYER(x), validate_args=False).sample(),
    "several": several,
    "as long as it is": as_long_as_it_is,
    "LSTM": lambda x: LSTM(x.expand(2, 3))[0],
    "weights made inside": lambda x: nn.init.normal_(torch.empty(3, dtype=torch.float64)) + x,
    "module made inside": lambda x: nn.Linear(3, 2, dtype=torch.float64)(x),
    "own generator": own_generator,
    "seeded inside": seeded_inside,
    "forked": forked,
    "initial seed": lambda x: torch.initial_seed(),
}


@pytest.mark.parametrize(
    "name",
    list(DRAWS),
)
def test_draws_of_a_program_that_does_not_wait(name: str) -> None:
    inputs = vectors()
    check(DRAWS[name], inputs, sources=[*inputs, *LAYER.parameters(), *LSTM.parameters()])


ATTENTION = nn.MultiheadAttention(3, 1, dropout=0.3, dtype=torch.float64)
ENCODER = nn.TransformerEncoderLayer(3, 1, 8, dropout=0.2, dtype=torch.float64)
DEEP = nn.LSTM(3, 4, 3, dropout=0.5, bidirectional=True, dtype=torch.float64)
PROJECTED = nn.LSTM(3, 4, 2, dropout=0.5, proj_size=2, dtype=torch.float64)
GATED = nn.GRU(3, 4, 2, dropout=0.5, dtype=torch.float64)
RECURRENT = nn.RNN(3, 4, 2, dropout=0.5, bidirectional=True, dtype=torch.float64)
CHAIN = nn.Sequential(linear(), nn.Dropout(0.4), nn.ReLU(), linear(), nn.Dropout())


class Binary(torch.autograd.Function):
    """Draws, and passes gradients through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.sigmoid())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def made_inside(x: torch.Tensor) -> Any:
    square = torch.empty(3, 3, dtype=torch.float64)
    return (
        nn.init.kaiming_uniform_(square) @ x[0],
        nn.init.trunc_normal_(torch.empty(3, 3)),
        nn.init.xavier_normal_(x * 1),
    )


def of_a_generator(x: torch.Tensor) -> Any:
    generator = torch.Generator().manual_seed(len(x))
    y = torch.bernoulli(LAYER(x).sigmoid(), generator=generator)
    return y, LAYER(x)[0].softmax(-1).multinomial(1, generator=generator), torch.rand(2)


OF_ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "attention": lambda x: ATTENTION(x, x, x)[0],
    "attention without weights": lambda x: ATTENTION(x, x, x, need_weights=False)[0],
    "attention as a function": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.4),
    "encoder": lambda x: ENCODER(x),
    "function of one's own": lambda x: (Binary.apply(LAYER(x)), torch.rand(1)),
    "deep LSTM": lambda x: (DEEP(x), torch.rand(1)),
    "LSTM with projections": lambda x: PROJECTED(x),
    "LSTM of a batch": lambda x: DEEP(x.unsqueeze(1))[0],
    "GRU": lambda x: GATED(x),
    "GRU with a state": lambda x: GATED(LAYER(x), x.new_ones(2, 4)),
    "RNN": lambda x: RECURRENT(x),
    "chain": lambda x: CHAIN(x),
    "dropout of a view": lambda x: DROPOUT(DROPOUT(LAYER(x)).t()),
    "dropout in place": lambda x: F.dropout(LAYER(x), 0.5, True, True),
    "several that are put back": lambda x: LAYER(x).softmax(-1).multinomial(5, True),
    "several that are not": lambda x: LAYER(x).softmax(-1).multinomial(2),
    "poisson, then others": lambda x: (torch.poisson(LAYER(x).exp()), torch.rand(2)),
    "rrelu, then others": lambda x: (F.rrelu(LAYER(x), training=True), torch.rand(2)),
    "gamma": lambda x: torch.distributions.Gamma(LAYER(x).exp(), 1.0).rsample(),
    "beta": lambda x: torch.distributions.Beta(LAYER(x).exp(), 1.0).sample(),
    "normal of two values": lambda x: torch.normal(LAYER(x), LAYER(x).exp()),
    "normal of a spread": lambda x: torch.normal(1.5, LAYER(x).exp()),
    "filled": lambda x: ((LAYER(x) * 1).normal_(), (LAYER(x) * 1).uniform_() * x),
    "features": lambda x: F.dropout2d(LAYER(x)[None, :, :, None], 0.5),
    "features to alpha": lambda x: F.feature_alpha_dropout(LAYER(x), 0.5, True),
    "bernoulli of floats": lambda x: torch.bernoulli(LAYER(x).sigmoid().float()),
    "made inside": made_inside,
    "of a generator": of_a_generator,
}


@pytest.mark.parametrize("name", list(OF_ROWS))
def test_draws_of_rows(name: str) -> None:
    """In the same order, whatever shares a step."""
    modules = (LAYER, ATTENTION, ENCODER, DEEP, PROJECTED, GATED, RECURRENT, CHAIN)
    inputs = sequences(2, 4, 1, 3, 4)
    check(OF_ROWS[name], inputs, sources=[*inputs, *[weight for module in modules for weight in module.parameters()]])


def test_what_torch_raises_of_what_is_drawn_from() -> None:
    def function(x: torch.Tensor) -> Any:
        found = []
        for draw in (torch.bernoulli, lambda p: p.multinomial(1), lambda p: torch.normal(0.0, p)):
            try:
                found.append(draw(x * 1).dtype)
            except RuntimeError as error:
                found.append(type(error).__name__)
        return found

    inputs = [torch.tensor([0.5, 0.5]), torch.tensor([-1.0, 2.0]), torch.tensor([0.2, 0.1])]
    check_program(lambda: Program(function, [inputs]), generator=False)


def test_draws_before_the_first_wait() -> None:
    """The first example draws first, then the second: as long as none has waited, in a loop's order."""

    def function(x: torch.Tensor) -> Any:
        y = x + torch.randn(3, dtype=torch.float64)
        return y if LAYER(y).sum() > 0 else y * 2

    inputs = vectors()
    check(function, inputs, sources=inputs)


@pytest.mark.parametrize("seed", [5, 11])
def test_seeds_of_examples_that_wait(seed: int) -> None:
    """One that was set inside is the example's own, whatever the seed outside is."""

    def function(x: torch.Tensor) -> Any:
        torch.manual_seed(seed)
        y = x + torch.randn(3, dtype=torch.float64)
        return (y if LAYER(y).sum() > 0 else y * 2), torch.rand(2)

    inputs = vectors()
    check_program(lambda: Program(function, [inputs], inputs), generator=False)


def test_forks_of_examples_that_wait() -> None:
    """What `fork_rng` puts back is no seed: the next example goes on as in a loop."""

    def function(x: torch.Tensor) -> Any:
        y = x + torch.randn(3, dtype=torch.float64)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            y = y + torch.randn(3, dtype=torch.float64)
        return y if LAYER(y).sum() > 0 else y * 2

    inputs = vectors()
    check(function, inputs, sources=inputs)


def test_draws_after_the_first_wait() -> None:
    """Of examples that have drawn nothing before: they go on in order."""

    def function(x: torch.Tensor) -> Any:
        y = x * 2 if LAYER(x).sum() > 0 else x
        return y + torch.randn(3, dtype=torch.float64)

    inputs = vectors()
    check(function, inputs, sources=inputs)


def test_other_generators_without_waiting() -> None:
    def build() -> Program:
        generator = np.random.default_rng(3)
        random.seed(3)
        inputs = vectors()
        return Program(lambda x: (x * random.random(), generator.normal(), random.choice("abc")), [inputs], inputs)

    check_program(build)


def after_a_wait(x: torch.Tensor) -> Any:
    y = LAYER(x)
    if y.sum() > 0:
        y = y * 2
    return y + torch.randn(3, dtype=torch.float64), torch.rand(100)


def test_draws_after_a_wait_are_reproducible() -> None:
    inputs, runs = vectors(4), []
    for _ in range(2):
        torch.manual_seed(3)
        runs.append(fl.batch(after_a_wait)(inputs))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


def test_draws_after_a_wait_differ_among_examples_and_runs() -> None:
    inputs = vectors(4)
    drawn = [tuple(result[1].tolist()) for _ in range(2) for result in fl.batch(after_a_wait)(inputs)]
    assert len(set(drawn)) == 8


def test_draws_after_a_wait_are_statistically_right() -> None:
    numbers = torch.cat([result[1].detach() for result in fl.batch(after_a_wait)(vectors(200))])
    assert abs(float(numbers.mean()) - 0.5) < 0.01
    assert abs(float(numbers.var()) - 1 / 12) < 0.005


def test_a_batch_moves_the_generator_on() -> None:
    inputs = vectors(2)
    first = fl.batch(lambda x: torch.rand(3))(inputs)
    second = fl.batch(lambda x: torch.rand(3))(inputs)
    assert not torch.equal(first[0], second[0])


def test_a_program_that_draws_nothing_leaves_the_generator() -> None:
    inputs = vectors(3)
    before = torch.get_rng_state()
    fl.batch(lambda x: LAYER(x) if LAYER(x).sum() > 0 else x)(inputs)
    assert torch.equal(before, torch.get_rng_state())


def test_the_first_batch_of_a_process_draws_nothing() -> None:
    """Most of the library is loaded when it is first used, which may be after the seed."""
    code = (
        "import torch, foldloom as fl\n"
        "torch.manual_seed(3); before = torch.get_rng_state()\n"
        "fl.batch(lambda x: torch.nn.functional.dropout(x, 0.0) * 2)([torch.ones(2)])\n"
        "fl.cell(lambda x: x + 1)(torch.ones(1, 2))\n"
        "assert torch.equal(before, torch.get_rng_state())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
