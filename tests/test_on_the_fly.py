"""Plain PyTorch, batched as it runs: every promise of the front end by name."""

from __future__ import annotations

import copy
import gc
import io
import math
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import foldloom as fl
from foldloom.tracing.fibers import fibers
from foldloom.tracing.flushing.flush import Flushes
from foldloom.tracing.recording.recorder import Recorder
from foldloom.tracing.scope import scope
from foldloom.tracing.values.lazy_tensor import LazyTensor
from tests.law import assert_same, gradients
from tests.law_on_the_fly import check_on_the_fly, steps_of


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _nothing_hangs() -> Iterator[None]:
    """What waits for ever fails instead."""

    def give_up(*_: object) -> None:
        raise TimeoutError("the test took longer than 20 seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def vector(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def vectors(count: int = 3, *shape: int) -> list[torch.Tensor]:
    return [vector(*(shape or (3,))) for _ in range(count)]


def sequences(*lengths: int, width: int = 3) -> list[torch.Tensor]:
    return [vector(length, width) for length in lengths or (2, 4, 1, 3)]


def flat(examples: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [tensor for example in examples for tensor in example]


def wrong(reason: str) -> pytest.MarkDecorator:
    """A known fault. The test fails as soon as it is mended, so that the mark goes."""
    return pytest.mark.xfail(strict=True, reason=reason)


# ---- A value that is not computed yet knows what it is.


def test_shape_dtype_and_device_are_known_at_once() -> None:
    """A recording refuses to wait for values, so none of these asks for one."""
    seen = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.stack([x[0] * 2, x[1], x[0] + x[1]])
        seen.append((y.shape, y.dtype, y.device, y.ndim, y.numel(), y.size(-1), y.dim(), len(y), y.is_floating_point()))
        best = y.argmax(1)
        seen.append((best.shape, best.dtype, (best > 0).dtype, best.float().dtype, best.is_complex(), best.nelement()))
        return y @ x.t()

    fl.record(function, vector(2, 3))
    assert seen[0] == ((3, 3), torch.float64, torch.device("cpu"), 2, 9, 3, 2, 3, True)
    assert seen[1] == ((3,), torch.int64, torch.bool, torch.float32, False, 3)


def test_shapes_of_lists_are_known_at_once() -> None:
    shapes = []
    fl.record(lambda rows: shapes.append(torch.stack([row * 2 for row in rows])[1:].softmax(0).shape), vector(4, 3))
    assert shapes == [(3, 3)]


# ---- Functions, methods, operators.

MATRIX = torch.randn(3, 3, dtype=torch.float64)

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


ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "operators": lambda s: (s + 1, s * s, s @ MATRIX, s * MATRIX[0], s + s.sum(0), s - s[0], s / s.norm(dim=1, keepdim=True)),
    "reductions": lambda s: (s.sum(0), s.sum(), s.mean(0), s.amax(0), s.sum(1), s.max(), s.logsumexp(0), s.prod(0), s.max(0).values),
    "reductions that keep": lambda s: (s.sum(0, keepdim=True), s.mean(0, True), s.sum((0, 1)), s.sum(-2), s.std(1), s.cumsum(0)),
    "softmax": lambda s: (s.softmax(0), s.log_softmax(0), s.softmax(1), torch.softmax(s, dim=-2), functional.log_softmax(s, -1)),
    "attention": lambda s: (s @ s[0]).softmax(0) @ s,
    "attention by weighted rows": lambda s: ((s * s[-1]).sum(1).softmax(0).unsqueeze(1) * s).sum(0),
    "attention by broadcasting": lambda s: ((s * s[-1]).sum(1).softmax(0)[:, None] * s).sum(0),
    "self-attention": lambda s: (s @ s.t() / 3**0.5).softmax(-1) @ s,
    "indexing": lambda s: (s[0], s[-1], s[1:], s[:-1], s[::2], s[:, 1], s[0, 1], s[None], s[[0, -1]], s[torch.tensor([0])], s[..., 0]),
    "an index that is computed": lambda s: s[s.sum(1).argmax()],
    "joining": lambda s: (torch.cat([s, s * 2]), torch.cat([s, s], 1), torch.cat([s, torch.zeros(1, 3)]), torch.stack([s, s])),
    "shapes": lambda s: (s.t(), s.reshape(-1), s.flip(0), s.unsqueeze(1), s.unsqueeze(0), s.permute(1, 0), s.flatten(), s.roll(1, 0)),
    "rows one by one": lambda s: [row.tanh() * other for row, other in zip(s, s.flip(0), strict=True)],
    "taking apart": lambda s: (s.unbind(), s.unbind(1), s.split(1), s.chunk(2), [*s]),
    "extremes": lambda s: (s.argmax(0), s.argmin(1), s.sum(1).argmax(), s.topk(1, 0).values, s.sort(0).values, s.median(0).values),
    "truth": lambda s: ((s > 0).any(), (s > 0).all(0), (s > 0).sum(), (s > 0).sum(1), torch.where(s > 0, s, torch.zeros(()))),
    "integers": lambda s: (s.argmax(1).sum(), s.argmax(1) + 1, s.argmax(1).max(), s.argmax(1).float().mean()),
    "empty part": lambda s: (s[0:0].sum(0), s[0:0].softmax(0), s[len(s) :].sum(), s[1:].sum(0), s[1:].softmax(0)),
    "in three dimensions": lambda s: torch.stack([torch.stack([row, row * 2]) for row in s]).softmax(0).sum(1) @ MATRIX,
    "loss of all rows": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3),
    "summed loss of all rows": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3, reduction="sum"),
    "loss that leaves out": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3, ignore_index=1, reduction="sum"),
    "smoothed loss": lambda s: functional.cross_entropy(s, torch.arange(len(s)) % 3, label_smoothing=0.1),
    "regression": lambda s: (functional.mse_loss(s, s.detach() * 2), functional.l1_loss(s[1:], s[:-1], reduction="sum")),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_lists_of_different_lengths(name: str) -> None:
    examples = sequences()
    check_on_the_fly(lambda rows: ROWS[name](torch.stack([row * 2 for row in rows])), examples, sources=examples)


@pytest.mark.parametrize("name", ROWS)
def test_tensors_of_different_lengths(name: str) -> None:
    """The same with one tensor for each example."""
    examples = sequences(2, 4, 1, 3)
    check_on_the_fly(ROWS[name], examples, sources=examples)


@pytest.mark.parametrize(
    "attend", [ROWS["attention"], ROWS["attention by weighted rows"], ROWS["attention by broadcasting"]]
)
def test_steps_of_attention_do_not_grow_with_the_number_of_lengths(attend: Callable[[torch.Tensor], Any]) -> None:
    def function(rows: torch.Tensor) -> Any:
        return attend(torch.stack([row.tanh() for row in rows]))

    assert 0 < steps_of(function, sequences(2, 3)) == steps_of(function, sequences(2, 3, 4, 5, 6, 7, 8, 9, 10))


def test_steps_of_summed_losses_do_not_grow_with_the_number_of_lengths() -> None:
    def function(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([(row * row).sum() for row in rows]).sum()

    assert 0 < steps_of(function, sequences(1, 2)) == steps_of(function, sequences(1, 2, 3, 4, 5, 6, 7, 8))


def test_a_closure_over_tensors_that_need_gradients() -> None:
    weight, bias, rows = vector(3, 3), vector(3), vector(5, 3)
    derived = (weight * 2).exp()
    inputs = vectors()

    def function(x: torch.Tensor, number: int) -> Any:
        return derived @ x + bias, x @ weight + rows[number], (rows @ x).softmax(0) @ rows

    check_on_the_fly(function, inputs, [0, 3, 3], sources=[weight, bias, rows, *inputs])


def test_tensors_shared_by_all_examples() -> None:
    table, mask = torch.randn(3, 3), torch.tensor([1.0, 0.0, 1.0])
    inputs = vectors()
    check_on_the_fly(lambda x: (x @ table * mask, table[1] * x, table + x, table.t() @ x), inputs, sources=inputs)


def test_weights_that_are_derived() -> None:
    weight, bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        first, second = weight[0], weight.t() * 2
        return (
            x @ second + first,
            (weight + weight.t()) @ x,
            torch.cat([bias, bias]),
            weight.sum() * x,
            (x * first).sum(),
        )

    check_on_the_fly(function, inputs, sources=[weight, bias, *inputs])


def test_results_of_another_batch_as_inputs() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    states = fl.batch(linear)(inputs)

    def function(state: torch.Tensor, number: int) -> torch.Tensor:
        return state.tanh() * states[(number + 1) % 3]

    check_on_the_fly(function, states, [0, 1, 2], sources=[*linear.parameters(), *inputs])


# ---- Modules as they are.


class Gate(nn.Module):
    """A module of the user's, with a table, a buffer, a loop and a module inside."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 3))
        self.mix = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        self.register_buffer("scale", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: torch.Tensor, times: int = 2) -> torch.Tensor:
        for number in range(times):
            gate = torch.sigmoid(self.table[number] * x)
            x = gate * self.mix(torch.cat([x, self.table[number + 1]])) + (1 - gate) * x * self.scale
        return x


VECTOR_MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(3, 2),
    "Linear without bias": lambda: nn.Linear(3, 2, bias=False),
    "LSTMCell": lambda: nn.LSTMCell(3, 3),
    "GRUCell": lambda: nn.GRUCell(3, 3),
    "RNNCell": lambda: nn.RNNCell(3, 3),
    "LayerNorm": lambda: nn.LayerNorm(3),
    "RMSNorm": lambda: nn.RMSNorm(3),
    "PReLU": nn.PReLU,
    "Dropout in eval": lambda: nn.Dropout(0.5).eval(),
    "Sequential": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.0), nn.Linear(4, 2), nn.LogSoftmax(-1)),
    "of the user's": Gate,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(3, 3)),
    "spectral_norm in eval": lambda: parametrizations.spectral_norm(nn.Linear(3, 3)).eval(),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTOR_MODULES)
def test_modules_of_vectors(name: str) -> None:
    module = VECTOR_MODULES[name]()
    inputs = vectors()
    check_on_the_fly(lambda x: (module(x), module(x * 2)), inputs, sources=[*module.parameters(), *inputs])


@pytest.mark.parametrize("name", [name for name in VECTOR_MODULES if "Cell" not in name and "user" not in name])
def test_modules_of_lists_of_vectors(name: str) -> None:
    module = VECTOR_MODULES[name]()
    examples = sequences()
    sources = [*module.parameters(), *examples]
    check_on_the_fly(lambda rows: module(torch.stack([row * 2 for row in rows])).sum(0), examples, sources=sources)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_recurrent_cells_in_a_loop(kind: Any) -> None:
    cell = kind(3, 2)
    examples = sequences(1, 4, 2)

    def function(sequence: torch.Tensor) -> Any:
        state = None
        for row in sequence:
            state = cell(row, state)
        return state

    check_on_the_fly(function, examples, sources=[*cell.parameters(), *examples])
    assert steps_of(function, examples) == 4, "one for each place in the longest sequence"


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_modules_over_a_sequence(kind: Any, layers: int, bidirectional: bool) -> None:
    module = kind(3, 2, layers, bidirectional=bidirectional)
    examples, rows = sequences(), sequences()
    states = [vector(layers * (1 + bidirectional), 2) for _ in examples]
    sources = [*module.parameters(), *examples, *states, *rows]

    def with_state(sequence: torch.Tensor, state: torch.Tensor) -> Any:
        return module(sequence, (state, state * 2) if kind is nn.LSTM else state)

    check_on_the_fly(lambda sequence: (module(sequence), module(sequence * 2)[0]), examples, sources=sources)
    check_on_the_fly(with_state, examples, states, sources=sources)
    check_on_the_fly(lambda row: module(torch.stack([one * 2 for one in row]).flip(0)), rows, sources=sources)


def test_steps_of_a_recurrent_module_do_not_grow_with_the_number_of_lengths() -> None:
    module, table = nn.LSTM(3, 2, bidirectional=True), nn.Embedding(9, 3)

    def function(words: torch.Tensor) -> torch.Tensor:
        return module(table(words))[0].sum(0)

    few, many = ([torch.arange(length) for length in range(1, most)] for most in (3, 9))
    assert 0 < steps_of(function, few) == steps_of(function, many)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_modules_with_a_batch_of_one(kind: Any) -> None:
    """The idiom of code that was written before torch took sequences alone."""
    module, first = kind(3, 2), kind(3, 2, batch_first=True)
    examples = sequences()
    sources = [*module.parameters(), *first.parameters(), *examples]
    check_on_the_fly(lambda s: (module(s.unsqueeze(1)), first(s.unsqueeze(0))), examples, sources=sources)


def test_initial_states_that_all_share() -> None:
    module, start = nn.LSTM(3, 2), nn.Parameter(torch.randn(1, 2))
    examples = sequences()
    sources = [*module.parameters(), start, *examples]
    check_on_the_fly(lambda s: module(s, (start, start * 2)), examples, sources=sources)
    check_on_the_fly(lambda s: module(s, (torch.zeros(1, 2), torch.ones(1, 2))), examples, sources=sources)
    check_on_the_fly(lambda s: (module(s, None), module(s, hx=None)), examples, sources=sources)


@pytest.mark.parametrize("settings", [{}, {"padding_idx": 1}, {"max_norm": 0.5}, {"sparse": True}])
def test_embedding(settings: dict[str, Any]) -> None:
    table = nn.Embedding(5, 3, **settings)
    words = [torch.tensor([1, 2, 1]), torch.tensor([0]), torch.tensor([4, 4, 1, 3])]
    check_on_the_fly(
        lambda row: (table(row), table(row[0]), [table(w) for w in row]), words, sources=table.parameters()
    )
    check_on_the_fly(
        lambda w: (table(torch.tensor(w)), table(torch.tensor([w, 0]))), [3, 1], sources=table.parameters()
    )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("settings", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}])
def test_multihead_attention(settings: dict[str, Any], training: bool) -> None:
    module = nn.MultiheadAttention(4, 2, **settings).train(training)
    examples, rows = sequences(width=4), sequences(width=4)
    sources = [*module.parameters(), *examples, *rows]
    check_on_the_fly(lambda s: module(s, s * 2, s), examples, sources=sources)

    def of_a_list(row: torch.Tensor) -> torch.Tensor:
        s = torch.stack([one * 2 for one in row])
        return module(s, s, s, need_weights=False)[0]

    check_on_the_fly(of_a_list, rows, sources=sources)


@pytest.mark.parametrize("training", [True, False])
def test_transformer_layers(training: bool) -> None:
    encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0).train(training)
    decoder = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0).train(training)
    examples = sequences(width=4)
    sources = [*encoder.parameters(), *decoder.parameters(), *examples]
    check_on_the_fly(lambda s: decoder(encoder(s), s), examples, sources=sources)


def test_convolutions() -> None:
    module = nn.Conv1d(3, 2, 2)
    examples = sequences(2, 4, 3)
    check_on_the_fly(lambda s: module(s.t()).amax(1), examples, sources=[*module.parameters(), *examples])


def test_dropout_in_training_is_drawn_for_each_call() -> None:
    dropout = nn.Dropout(0.5)
    results = fl.batch(lambda x: (dropout(x), dropout(x), functional.dropout(x, 0.9)))([torch.ones(4000)] * 3)
    masks = [mask for result in results for mask in result]
    assert len({tuple(mask.tolist()) for mask in masks}) == 9
    for kept, value in ((results[0][0], 2.0), (results[1][1], 2.0), (results[2][2], 10.0)):
        assert {round(number, 9) for number in kept.tolist()} == {0.0, value}
        assert abs(kept.mean() - 1) < 0.2


def test_hooks_see_one_example_at_a_time() -> None:
    linear = nn.Linear(3, 3)
    shapes = []
    linear.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    linear.register_forward_hook(lambda module, args, result: shapes.append(tuple(result.shape)) or result.tanh())
    inputs = vectors()
    check_on_the_fly(linear, inputs, sources=[*linear.parameters(), *inputs])
    assert set(shapes) == {(3,)}


# ---- Factory functions and random numbers.


def test_factory_functions() -> None:
    def function(x: torch.Tensor, size: int) -> Any:
        made = torch.zeros(size), torch.ones(2, 3), torch.full((3,), 2.0), torch.eye(3), torch.arange(3.0)
        more = torch.tensor(1.5), torch.tensor([1, 2, 3]), torch.linspace(0, 1, 3), torch.empty(3).fill_(2.0)
        likes = (
            torch.zeros(x.shape, dtype=x.dtype, device=x.device),
            torch.ones(*x.shape),
            torch.zeros(3, dtype=torch.long),
        )
        return [
            x * made[1] + made[3] @ x + made[2] * made[4],
            made[0],
            more[0] * x,
            more[1] * x,
            more[2] * x + more[3],
            likes,
        ]

    inputs = vectors()
    check_on_the_fly(function, inputs, [1, 3, 2], sources=inputs)


def test_what_a_factory_makes_may_be_changed() -> None:
    def function(x: torch.Tensor) -> Any:
        table, other = torch.zeros(2, 3), torch.zeros(2, 3)
        table[0] = x
        table[1, 1:] += x[1:] * 2
        table.mul_(3)
        return table, other, torch.zeros(2, 3)

    inputs = vectors()
    check_on_the_fly(function, inputs, sources=inputs)


def test_random_numbers_are_those_of_a_loop() -> None:
    def function(x: torch.Tensor) -> Any:
        drawn = (
            torch.randn(3),
            torch.rand(3),
            torch.randint(0, 9, (3,)),
            torch.randperm(3),
            torch.normal(0.0, 1.0, (3,)),
        )
        return [x * numbers for numbers in drawn]

    inputs = vectors()
    torch.manual_seed(5)
    expected = fl.one_by_one(function)(inputs)
    torch.manual_seed(5)
    assert_same(fl.batch(function)(inputs), expected)


RANDOM: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: (x * 1).normal_(),
    "bernoulli_": lambda x: torch.zeros(500).bernoulli_(0.5) * x,
    "exponential_": lambda x: torch.empty(500).exponential_() * x,
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x, dim=0),
    "multinomial": lambda x: torch.multinomial(x.softmax(0), 400, replacement=True),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random_operations_are_drawn_for_each_example(name: str) -> None:
    results = fl.batch(RANDOM[name])([torch.ones(500)] * 3)
    assert len({tuple(result.tolist()) for result in results}) == 3


def test_the_same_seed_gives_the_same_results() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.rand_like(x) * functional.dropout(x, 0.5)
        return y * torch.rand(3) if y.sum() > 0.5 else y - torch.rand(3)

    inputs = vectors(6)
    runs = []
    for _ in range(2):
        torch.manual_seed(7)
        runs.append(fl.batch(function)(inputs))
    assert_same(runs[0], runs[1])


# ---- Changes in place, and views.

CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "methods": lambda x: x.add_(1).mul_(2).sub_(x * 0.5).neg_(),
    "fill and zero": lambda x: (x[0].fill_(2.0), x[-1].zero_(), x),
    "copy": lambda x: x.copy_(x * 2),
}


def _augmented(x: torch.Tensor) -> Any:
    y = x
    x += 1
    x *= x.sum()
    x[0] -= 3
    x[1:] /= 2
    x **= 2
    return x, y


def _items(x: torch.Tensor) -> Any:
    x[0] = x[1] * 2
    x[1, 2] = 5.0
    x[:, 0] = x[:, 1]
    x[-1] = torch.zeros(3)
    x[2:] = 1
    x[..., 1] = x.sum()
    return x


def _first_row(x: torch.Tensor) -> Any:
    y = x[0]
    y.mul_(2)
    x.add_(1)
    return x, y


def _parts(x: torch.Tensor) -> Any:
    left, right = x[:, :1], x[:, 1:]
    left += right[:, :1] * 2
    upper = x.view(-1)[4:8]
    upper.mul_(3)
    return x, left, upper


def _transposed(x: torch.Tensor) -> Any:
    y = x.t()
    y[0] = 7.0
    z = x.transpose(0, 1).unsqueeze(0)
    z.add_(1)
    return x, y, z


def _masked(x: torch.Tensor) -> Any:
    x[x > 0] = 0.0
    x[x < -1] *= 2
    x.masked_fill_(x == 0, 3.0)
    return x


def _index_methods(x: torch.Tensor) -> Any:
    x.index_fill_(0, torch.tensor([0]), 2.0)
    x.index_add_(0, torch.tensor([1]), x[2:3].clone())
    return x.scatter_(1, torch.tensor([[0], [1], [0], [2]]), 9.0)


CHANGES |= {
    "augmented assignment": _augmented, "items": _items, "a row that is a view": _first_row, "parts that are views": _parts,
    "transposed": _transposed, "masked": _masked, "by index": _index_methods,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changes_in_place(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(lambda x: CHANGES[name](x * 2), inputs, sources=inputs, records=name != "masked")


@pytest.mark.parametrize(
    "name",
    [name for name in CHANGES if name in ("augmented assignment", "items", "copy", "masked", "transposed", "by index")],
)
def test_changes_in_place_of_sequences(name: str) -> None:
    examples = sequences(4, 4)

    def function(rows: torch.Tensor) -> Any:
        return CHANGES[name](torch.stack([row * 2 for row in rows]))

    check_on_the_fly(function, examples, sources=examples, records=name != "masked")


def test_chunks_are_views() -> None:
    """Autograd forbids changing one of several views, so without it."""

    def function(x: torch.Tensor) -> Any:
        x = x * 1
        first, second = x.chunk(2)
        first.mul_(2)
        second += first
        x[0, 1] = 3.0
        return x, first, second

    check_on_the_fly(function, [torch.randn(4, 3) for _ in range(3)])


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.__iadd__(1),
        lambda x: x.__setitem__(0, 1.0),
        lambda x: SHARED.add_(x),
        lambda x: torch.add(x, 1, out=torch.zeros(3)),
        lambda x: torch.tensor([0.0, 1.0, 2.0]).__setitem__(0, x.sum()),
    ],
    ids=["method", "operator", "item", "a tensor of all", "out", "an item of a new tensor"],
)
def test_a_change_of_what_is_the_users_is_refused(change: Callable[[torch.Tensor], Any]) -> None:
    tensor = torch.ones(3)
    with pytest.raises(fl.errors.ArgumentError, match=r"in example 0, at .*test_on_the_fly.py:\d+") as caught:
        fl.batch(lambda x: change(x) * 2)([tensor])
    assert "clone" in str(caught.value) or "Use what it returns" in str(caught.value)
    assert torch.equal(tensor, torch.ones(3))


SHARED = torch.zeros(3, dtype=torch.float64)


def test_a_given_tensor_that_changes_before_it_is_read_is_noticed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(3.0)
        y = x * positions
        positions.add_(1)
        return y

    with pytest.raises(fl.errors.ArgumentError, match="changed in place after"):
        fl.batch(function)(vectors())


# ---- Modes.


def test_no_grad_within_an_example() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        y = linear(x)
        with torch.no_grad():
            target = linear(y) * 2
            score = y.sum().item()
        return y * target, (y - target) * score

    check_on_the_fly(function, inputs, sources=[*linear.parameters(), *inputs], records=False)


def test_no_grad_around_the_batch() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    with torch.no_grad():
        results = fl.batch(lambda x: linear(x) * 2 if x.sum() > 0 else linear(x))(inputs)
        assert_same(results, [linear(x) * 2 if x.sum() > 0 else linear(x) for x in inputs])
    assert not any(result.requires_grad for result in results)


def test_inference_mode() -> None:
    linear = nn.Linear(3, 3)
    inputs = [torch.randn(3) for _ in range(3)]
    expected = [linear(x).tanh() for x in inputs]
    with torch.inference_mode():
        assert_same(fl.batch(lambda x: linear(x).tanh())(inputs), expected)
    assert_same(fl.batch(lambda x: _in_inference_mode(linear, x))(inputs), expected)


def _in_inference_mode(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return torch.tensor(module(x).tanh().tolist())


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where: str) -> None:
    linear = nn.Linear(3, 3).float()
    inputs = [torch.randn(3, dtype=torch.float32) for _ in range(3)]

    def inside(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = linear(x)
            chosen = y.sum().item() > 0
            with torch.autocast("cpu", enabled=False):
                z = linear(x)
        return y if chosen else x @ linear.weight, z, functional.linear(x * 1, linear.weight)

    def outside(x: torch.Tensor) -> Any:
        return linear(x), x @ linear.weight, linear(x) if linear(x).sum().item() > 0 else x

    function = inside if where == "inside" else outside
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "outside"):
        expected, actual = fl.one_by_one(function)(inputs), fl.batch(function)(inputs)
    for one, other in zip(flat(actual), flat(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)


# ---- Values on demand.

DEMANDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "item of a product": lambda x: x * (x * 2).sum().item(),
    "bool": lambda x: x if x.sum() > 0 else -x,
    "comparison of two": lambda x: x[0] if x[0] > x[1] else x[1] * 2,
    "int": lambda x: [x, x * 2, x * 3][int(x.argmax())],
    "index": lambda x: [x, x * 2, x * 3][x.argmax()],
    "float": lambda x: float(x[0].detach()) + math.exp(x[1].detach()),
    "tolist": lambda x: (x.tolist(), x.argmax().tolist(), (x > 0).tolist()),
    "numpy": lambda x: x * float(x.detach().numpy().max()),
    "numpy's functions": lambda x: (float(np.asarray(x.detach()).sum()), np.array([x.detach().numpy()]).shape),
    "nonzero": lambda x: ((x > 0).nonzero(), torch.nonzero(x > 0, as_tuple=True)[0], torch.where(x > 0)[0], torch.argwhere(x > 9)),
    "boolean mask": lambda x: (x[x > 0], x.masked_select(x < 0), x[x > 9], x[x < 9] * 2, x[x > 0].sum()),
    "unique": lambda x: (torch.unique(x > 0), torch.unique((x * 2).long(), return_counts=True)),
    "repeated as often as computed": lambda x: x.repeat_interleave((x > 0).long() + 1),
    "in": lambda x: (2 in x.argsort(), 5 in x.argsort()),
    "equal": lambda x: (torch.equal(x, x * 1), torch.allclose(x, x * 2), bool((x == x).all())),
    "largest of a list": lambda x: max(x.unbind()) * min([x[0], x[2]]),
    "sorted": lambda x: sorted(x.tolist()) + sorted(float(y) for y in x.detach()),
    "sorted values": lambda x: sorted(x),
    "format": lambda x: f"{x[0]:.3f} {x.detach()} {x.sum().item():.2f}",
    "str": lambda x: str(x.detach() * 2),
    "a loop until": lambda x: _until(x),
    "range": lambda x: [x * n for n in range(int(x.argmax()) + 1)],
    "dictionary": lambda x: {int(x.argmax()): x},
    "unpacking": lambda x: (lambda a, b, c: a * b if c > 0 else b)(*x),
    "any and all": lambda x: (any(x > 0), all(y < 9 for y in x)),
    "assert": lambda x: _asserted(x),
}  # fmt: skip


def _until(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    rounds = 0
    while (x * x).sum() > 0.1:
        x = x * 0.7
        rounds += 1
    return x, rounds


def _asserted(x: torch.Tensor) -> torch.Tensor:
    assert (x < 100).all()
    return x


@pytest.mark.parametrize("name", DEMANDS)
def test_values_on_demand(name: str) -> None:
    inputs = vectors(5)
    check_on_the_fly(lambda x: (DEMANDS[name](x * 1.5), x * 2), inputs, sources=inputs, records=False)


@pytest.mark.parametrize("name", DEMANDS)
def test_values_of_what_was_given(name: str) -> None:
    inputs = vectors(3)
    check_on_the_fly(DEMANDS[name], inputs, sources=inputs, records=False)


def test_values_of_lists_on_demand() -> None:
    def function(rows: torch.Tensor) -> Any:
        stacked = torch.stack([row * 2 for row in rows])
        best = int(stacked.sum(1).argmax())
        return (
            stacked[best],
            stacked[stacked > 0],
            stacked.tolist(),
            stacked[stacked[:, 0] > 0],
            stacked.detach().numpy().shape,
        )

    examples = sequences()
    check_on_the_fly(function, examples, sources=examples, records=False)


def test_print_shows_values() -> None:
    def function(x: torch.Tensor) -> None:
        print(x.detach() + 1, (x * 2).sum().item())

    shown = []
    for run in (fl.one_by_one(function), fl.batch(function)):
        with redirect_stdout(io.StringIO()) as printed:
            run([torch.ones(2), torch.zeros(2)])
        shown.append(printed.getvalue())
    assert shown[0] == shown[1]
    assert "2., 2." in shown[0]


def test_everything_pending_runs_when_all_are_parked() -> None:
    flushes = []

    def counted(self: Flushes, *args: Any, **kwargs: Any) -> Any:
        flushes.append(1)
        return run(self, *args, **kwargs)

    run = Flushes._flush
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flushes, "_flush", counted)
        fl.batch(_until)([torch.full((3,), float(size)) for size in range(10)])
        longest = max(_until(torch.full((3,), float(size)))[1] for size in range(10))
    assert len(flushes) <= longest + 2, "one for each round of the longest loop"


def test_a_recording_that_asks_for_a_value_is_refused() -> None:
    with pytest.raises(fl.errors.ValueNotReadyError, match=r"test_on_the_fly.py:\d+"):
        fl.record(_until, vector(3))


def test_grad_mode_belongs_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        with torch.set_grad_enabled(number % 2 == 0):
            for _ in range(number + 1):
                assert (x * 2).sum().item() < 1e9
                assert torch.is_grad_enabled() == (number % 2 == 0)
                x = x * 2
        return x

    inputs = vectors(4)
    check_on_the_fly(function, inputs, [0, 1, 2, 3], sources=inputs, records=False)


def test_autocast_belongs_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 0):
            first = (x @ x).item()
            return (x.unsqueeze(0) @ x.unsqueeze(1)).dtype, torch.is_autocast_enabled("cpu"), type(first)

    check_on_the_fly(function, [torch.ones(3, dtype=torch.float32)] * 3, [0, 1, 2], records=False)


def test_the_default_dtype_belongs_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        torch.set_default_dtype(torch.float32 if number % 2 else torch.float64)
        found = [torch.get_default_dtype(), torch.zeros(1).dtype]
        x.sum().item()
        found += [torch.get_default_dtype(), torch.ones(2).dtype, torch.rand(1).dtype]
        torch.set_default_dtype(torch.float64)
        return found

    check_on_the_fly(function, vectors(4), [0, 1, 2, 3], records=False)


def test_random_numbers_belong_to_the_fiber() -> None:
    def function(x: torch.Tensor, number: int) -> Any:
        torch.manual_seed(number)
        first = torch.rand(2)
        (x * 2).sum().item()
        return first, torch.rand(2), torch.randn(2)

    check_on_the_fly(function, vectors(4), [0, 1, 2, 3], records=False)


# ---- Errors.


@contextmanager
def no_fiber_left_behind() -> Iterator[None]:
    """No fiber is left afterwards."""
    gc.collect()
    before = {id(thing) for thing in gc.get_objects() if type(thing) is fibers.Fiber}
    yield
    gc.collect()
    left = [thing for thing in gc.get_objects() if type(thing) is fibers.Fiber and id(thing) not in before]
    assert not any(left)


@pytest.mark.parametrize("waits", [True, False])
def test_an_exception_is_raised_with_the_example_and_the_users_line(waits: bool) -> None:
    ended = []

    def function(x: torch.Tensor, number: int) -> float:
        try:
            if waits:
                (x * 2).sum().item()
            if number == 2:
                raise KeyError("mine")
            return (x * 3).sum().item()
        finally:
            ended.append(number)

    with no_fiber_left_behind():
        with pytest.raises(KeyError, match="mine") as caught:
            fl.batch(function)(vectors(5), list(range(5)))
        assert caught.value.__notes__ == ["in example 2"]
        assert caught.traceback[-1].name == "function"
        assert ended == [0, 1, 2]  # a list that examples share: they run one at a time, as in a loop
        del caught


def test_a_wrong_shape_is_raised_with_the_example_and_the_users_line() -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x * 2 + (torch.zeros(5) if number == 1 else 0)

    with no_fiber_left_behind():
        with pytest.raises(RuntimeError) as caught:
            fl.batch(function)(vectors(), [0, 1, 2])
        notes = "\n".join(caught.value.__notes__)
        assert "in example 1" in notes
        assert "test_on_the_fly.py" in notes
        del caught


@pytest.mark.parametrize("waits", [True, False])
def test_a_failure_while_running_names_the_example(waits: bool) -> None:
    table = nn.Embedding(4, 3)

    def function(word: torch.Tensor) -> Any:
        vector = table(word * 2)
        return vector.sum().item() if waits else vector

    with no_fiber_left_behind(), pytest.raises(fl.errors.FoldloomError, match=r"example 1.*out of range"):
        fl.batch(function)([torch.tensor(word) for word in (0, 9, 1)])


def test_an_exception_that_the_example_catches() -> None:
    def function(x: torch.Tensor) -> Any:
        try:
            return x @ torch.zeros(5)
        except RuntimeError:
            return x * (1 if x.sum().item() > 0 else 2)

    inputs = vectors()
    check_on_the_fly(function, inputs, sources=inputs, records=False)


def test_backward_inside_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match="Return the loss"):
        fl.batch(lambda x: (x * 2).sum().backward())(vectors())


def test_a_batch_works_after_one_that_failed() -> None:
    inputs = vectors()
    with pytest.raises(ZeroDivisionError):
        fl.batch(lambda x: 1 // int((x * 0).sum().item()))(inputs)
    check_on_the_fly(_until, inputs, sources=inputs, records=False)


# ---- Nesting.


def test_a_batch_inside_a_batch() -> None:
    examples = sequences()
    check_on_the_fly(
        lambda s: sum(fl.batch(lambda row: row.tanh() * 2)(list(s))), examples, sources=examples, records=False
    )


def test_a_batch_inside_a_batch_that_waits_for_values() -> None:
    examples = sequences()

    def inner(row: torch.Tensor) -> torch.Tensor:
        return row * 2 if (row * 3).sum() > 0 else fl.batch(lambda x: x if x > 0 else -x)(list(row))[0] * row

    def outer(s: torch.Tensor) -> Any:
        rows = fl.batch(inner)(list(s))
        return rows, fl.batch(lambda row, n: row * n)(rows, range(len(rows))) if rows[0].sum() > 0 else rows[-1]

    check_on_the_fly(outer, examples, sources=examples, records=False)


def test_an_exception_of_an_inner_batch_can_be_caught() -> None:
    def function(s: torch.Tensor) -> Any:
        try:
            return fl.batch(lambda row: 1 // int(row.sum().item() > 0))(list(s))
        except ZeroDivisionError as error:
            return error.__notes__[0]

    with no_fiber_left_behind():
        results = fl.batch(function)([torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [-2.0], [3.0]])])
    assert results == [[1, 1], "in example 1"]


def test_an_empty_batch_inside_a_batch() -> None:
    assert fl.batch(lambda x: fl.batch(lambda y: y * 2)([]))(vectors()) == [[], [], []]


@pytest.mark.parametrize("waits", [True, False])
def test_a_batch_inside_a_batch_with_stacked_results(waits: bool) -> None:
    examples = sequences()

    def inner(row: torch.Tensor) -> Any:
        return (row * 2, row.sum()) if waits and (row * 3).sum() > 0 else (row * 3, row.sum())

    check_on_the_fly(
        lambda s: fl.batch(inner, stack=True)(list(s))[0].sum(0), examples, sources=examples, records=not waits
    )


# ---- `fl.batching`.


def batched(function: Callable[[], Any], **settings: Any) -> Any:
    with fl.batching(**settings):
        return function()


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.ByAgenda(), fl.OneByOne()])
def test_batching_without_a_function(scheduler: fl.Scheduler, waits: bool) -> None:
    linear, module = nn.Linear(3, 3), nn.GRU(3, 3)
    examples = sequences()
    parameters = [*linear.parameters(), *module.parameters()]

    def loss(s: torch.Tensor) -> torch.Tensor:
        states = module(linear(s))[0]
        if waits and states.sum().item() > 0:
            states = states * 2
        return (linear(s[0]).softmax(0) @ states[-1] - 1) ** 2

    expected = [loss(s) for s in examples]
    with fl.batching(scheduler=scheduler):
        losses = [loss(s) for s in examples]
    total = torch.stack(losses).sum()
    assert_same(total, torch.stack(expected).sum())
    assert_same(torch.autograd.grad(total, parameters), torch.autograd.grad(torch.stack(expected).sum(), parameters))


AFTERWARDS: dict[str, Callable[[list[Any], Any], Any]] = {
    "stack": lambda y, s: torch.stack(y),
    "sum": lambda y, s: sum(y),
    "operators": lambda y, s: (y[0] + y[1] * 2, 1 - y[2], torch.ones(3) * y[0], -y[0], y[0] @ y[1]),
    "items": lambda y, s: (y[0].sum().item(), float(y[1][0].detach()), y[2].tolist(), bool(y[0][0] > y[1][0])),
    "indexing": lambda y, s: (y[0][1], y[0][-1], y[0][0], y[0][1:], y[0][torch.tensor([0, 2])], y[0][y[0] > 0]),
    "rows": lambda y, s: (s[1], s[1:], list(s)[-1], s.flip(0), s.unbind()[1], torch.cat([s, s]), s[::2]),
    "rows as a whole": lambda y, s: (s.sum(0), s.softmax(0), s + 1, s @ s.t(), s.T, s.mean()),
    "functions": lambda y, s: (functional.relu(y[0]), torch.cat(y), y[0].view(3, 1), y[0].chunk(3)[1], y[0].long()),
    "copies": lambda y, s: (y[0].clone().mul_(2), copy.deepcopy(y[1].detach())),
    "format": lambda y, s: f"{y[0].sum():.4f} {y[1].detach()}",
    "python": lambda y, s: (len(y[0]), max(y[0]), [*y[1]], 0.5 in y[2], y[0].shape, s.shape),
    "numpy": lambda y, s: (y[0].detach().numpy().sum().item(), s.detach().numpy().shape),
}  # fmt: skip


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("name", AFTERWARDS)
def test_what_comes_out_of_batching_is_used_afterwards(name: str, waits: bool) -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()

    def compute() -> Any:
        results = [linear(x).tanh() for x in inputs]
        if waits:
            results[0].sum().item()
        return results, torch.stack([linear(x) for x in inputs])

    sources = [*linear.parameters(), *inputs]
    expected = AFTERWARDS[name](*compute())
    actual = concrete(AFTERWARDS[name](*batched(compute)))
    assert_same(actual, expected)
    assert_same(gradients(actual, sources), gradients(expected, sources))
    if not isinstance(expected, torch.Tensor):
        assert [a for a in actual if not is_tensors(a)] == [e for e in expected if not is_tensors(e)]


def is_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, (list, tuple)) and is_tensors((*value, None)[0]))


def concrete(value: Any) -> Any:
    """Tensors for the values that are left after a batch: what any function of torch makes of them."""
    if type(value) in (tuple, list):
        return type(value)([concrete(item) for item in value])
    return torch.clone(value) if type(value) is LazyTensor else value


def test_backward_of_what_comes_out_of_batching() -> None:
    linear = nn.Linear(3, 1)
    inputs = vectors()
    with fl.batching():
        losses = [linear(x).sum() for x in inputs]
    losses[0].backward(retain_graph=True)
    torch.stack(losses[1:]).sum().backward()
    assert_same(linear.weight.grad, torch.stack(inputs).sum(0, keepdim=True))


def test_what_comes_out_of_one_batching_goes_into_another() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    sources = [*linear.parameters(), *inputs]
    first = batched(lambda: [linear(x) for x in inputs])
    second = batched(lambda: [linear(state.tanh()) + x for state, x in zip(first, inputs, strict=True)])
    expected = [linear(linear(x).tanh()) + x for x in inputs]
    assert_same(concrete(second), expected)
    assert_same(gradients(concrete(second), sources), gradients(expected, sources))
    first = batched(lambda: [linear(x) for x in inputs])
    results = fl.batch(lambda x, number: x * first[number].tanh())(inputs, [0, 1, 2])
    assert_same(results, [x * linear(x).tanh() for x in inputs])


def test_an_exception_within_batching() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    results = []
    with pytest.raises(KeyError), fl.batching():  # noqa: PT012
        results += [linear(x) for x in inputs]
        raise KeyError
    assert_same(concrete(results), [linear(x) for x in inputs])
    assert type(linear(inputs[0])) is torch.Tensor, "what comes afterwards is computed at once"


def test_batching_within_a_batch_says_that_it_adds_nothing() -> None:
    with pytest.raises(fl.errors.RecordingError, match="leave out the inner one"):
        fl.batch(lambda x: batched(lambda: x * 2))(vectors())


def test_a_batch_within_batching() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors()
    results = batched(lambda: fl.batch(lambda x: linear(x) * 2 if linear(x).sum() > 0 else linear(x))(inputs))
    assert_same(concrete(results), [linear(x) * 2 if linear(x).sum() > 0 else linear(x) for x in inputs])


# ---- Cells and operations mix.


class Tree(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 3)
        self.merge = Merge()

    def forward(self, tree: Any) -> torch.Tensor:
        if isinstance(tree, int):
            return self.table(torch.tensor(tree))
        return self.merge(self(tree[0]), self(tree[1]))


class Merge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(6, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.mix(torch.cat([left, right], -1))) + left * right


TREES: list[Any] = [((1, 2), (3, 4)), 5, ((1, (2, (3, 4))), 8), (0, 0)]


@pytest.mark.parametrize("scheduler", [fl.ByDepth(), fl.ByAgenda(), fl.OneByOne()])
def test_a_module_named_as_a_cell(scheduler: fl.Scheduler) -> None:
    model = Tree()
    sources = list(model.parameters())
    expected = fl.one_by_one(model)(TREES)
    for cells in ([], [model.merge], [model.merge, model.table]):
        actual = fl.batch(model, scheduler=scheduler, cells=cells)(TREES)
        assert_same(actual, expected)
        assert_same(gradients(actual, sources), gradients(expected, sources))


def test_a_module_named_as_a_cell_takes_fewer_steps() -> None:
    model = Tree()
    counts = []

    def counted(planned: Any, *args: Any, **kwargs: Any) -> Any:
        counts.append(planned.statistics().steps)
        return execute(planned, *args, **kwargs)

    module = sys.modules[fl.batch.__module__]
    execute = module.execute
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "execute", counted)
        fl.batch(model)(TREES)
        fl.batch(model, cells=[model.merge])(TREES)
    assert counts[1] < counts[0]
    assert counts[1] == 1 + 4, "the leaves, and the levels of the deepest tree"


def test_cells_and_operations_in_one_program() -> None:
    double = fl.cell(lambda x: x * 2)
    shrink = fl.cell(nn.Linear(3, 3))

    def function(x: torch.Tensor, times: int) -> Any:
        for _ in range(times):
            x = shrink(double(x).tanh() + x[0]) * x.sum()
        pair = torch.stack([x, double(x)])
        return pair.softmax(0), double(pair[1]), double(3), x.sum() + double(x.sum())

    inputs = vectors()
    check_on_the_fly(function, inputs, [1, 3, 2], sources=[*shrink.parameters(), *inputs])


def test_cells_within_batching() -> None:
    model = Tree()
    results = batched(lambda: [model(tree) for tree in TREES], cells=[model.merge])
    assert_same(concrete(results), fl.one_by_one(model)(TREES))


# ---- Ends of the range.


def test_an_empty_batch() -> None:
    assert fl.batch(lambda x: x * 2)([]) == []


def test_sequences_without_elements() -> None:
    start = vector(3)

    def function(table: torch.Tensor) -> Any:
        total = sum(table, start * 2)
        return total, table.sum(0), table.softmax(0), torch.cat([table, total.unsqueeze(0)]), [row * 2 for row in table]

    tables = sequences(0, 2, 0, 3)
    check_on_the_fly(function, tables, sources=[start, *tables])


def test_examples_that_compute_nothing() -> None:
    given = vector(3)
    check_on_the_fly(lambda x: x if x else given, [0, 1, 2, 0], sources=[given])
    check_on_the_fly(lambda x: (None, "text", x, 3), vectors())


def test_deep_recursion() -> None:
    weight = nn.Parameter(torch.tensor(0.999))

    def deep(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if not depth else deep(x * weight, depth - 1) + 1

    inputs = vectors(2)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        check_on_the_fly(deep, inputs, [600, 400], sources=[weight, *inputs])
    finally:
        sys.setrecursionlimit(limit)


def test_threads_do_not_disturb_each_other() -> None:
    linear = nn.Linear(3, 3)
    inputs = vectors(4)
    expected = [linear(x) * 2 if x.sum() > 0 else linear(x).tanh() for x in inputs]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        torch.set_default_dtype(torch.float64)
        for _ in range(5):
            if number:
                found[number] = fl.batch(lambda x: linear(x) * 2 if x.sum() > 0 else linear(x).tanh())(inputs)
            else:
                found[number] = [linear(x) * 2 if x.sum() > 0 else linear(x).tanh() for x in inputs]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert_same(found[number], expected)


# ---- Memory.


@contextmanager
def recorders() -> Iterator[list[weakref.ref[Recorder]]]:
    """The recorders that are made within, with the garbage collector at rest."""
    made: list[weakref.ref[Recorder]] = []
    initialise = Recorder.__init__

    def noted(self: Recorder, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        made.append(weakref.ref(self))

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Recorder, "__init__", noted)
            yield made
    finally:
        gc.enable()


_linear = nn.Linear(3, 3, dtype=torch.float64)
_lstm = nn.LSTM(3, 2, dtype=torch.float64)
HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "operations": lambda x: (x * 2).tanh(),
    "modules": lambda x: _linear(x).sum(),
    "a recurrent module": lambda x: _lstm(torch.stack([x, x * 2]))[0],
    "values on demand": lambda x: x * 2 if (x * 3).sum() > 0 else x * 4,
    "changes in place": lambda x: (x * 2).add_(1),
    "rows": lambda x: torch.stack([x, x * 2]).softmax(0).sum(0),
    "a batch inside": lambda x: sum(fl.batch(lambda y: y * 2)(list(x))),
    "views": lambda x: (x * 2).view(3, 1) * 2,
    "slices": lambda x: (x * 2)[1:] * 2,
    "views and values on demand": lambda x: (x * 2).view(3, 1) * 2 if (x * 3).sum() > 0 else x * 4,
}


@pytest.mark.parametrize("name", HOLDS)
def test_everything_is_freed_when_the_results_are_dropped(name: str) -> None:
    function = HOLDS[name]
    inputs = vectors()
    fl.batch(function)(inputs)  # what is made once for each signature stays
    with recorders() as made:
        results = fl.batch(function)(inputs)
        kept = weakref.ref(next(iter(flat([[r] for r in results]))))
        del results
        assert len(made) == 1
        assert made[0]() is None
        assert kept() is None


@pytest.mark.parametrize("waits", [True, False])
def test_batching_is_freed_when_its_results_are_dropped(waits: bool) -> None:
    inputs = vectors()

    def run() -> None:
        with fl.batching():
            losses = [_linear(x).tanh().sum() for x in inputs]
            if waits:
                losses[0].item()
        torch.stack(losses).sum().backward()

    run()
    with recorders() as made:
        run()
        assert made[0]() is None


def test_a_batch_that_failed_is_freed() -> None:
    inputs = vectors()

    def run() -> None:
        with pytest.raises(ZeroDivisionError):
            fl.batch(lambda x: 1 // int((x * 0).sum().item()))(inputs)

    run()
    with recorders() as made:
        run()
        assert made[0]() is None


# ---- Known faults.


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


class Tenfold(torch.autograd.Function):
    """A product and a place that has no gradient; the gradient of one factor is ten times too large."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, y: torch.Tensor, scale: float) -> Any:
        return x * y * scale, x.argmax()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.scale = inputs[2]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return 10 * grads[0] * y * ctx.scale, grads[0] * x * ctx.scale, None


class InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() * 3) + torch.zeros(3)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 7


class Doubles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 2


def test_an_autograd_function_that_changes_its_argument_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match="Let its forward return a new tensor"):
        fl.batch(lambda x: Doubles.apply(x * 2))(vectors())


def test_an_autograd_function_of_what_comes_out_of_batching() -> None:
    x = vector(3)
    rounded = Straight.apply(batched(lambda: [x * 3])[0])
    assert_same(torch.autograd.grad(rounded.sum(), x), [torch.full((3,), 3.0)])


def test_checkpoints_that_are_reentrant() -> None:
    inputs, weight = vectors(), nn.Parameter(torch.randn(3))
    found = []
    for run in (fl.one_by_one, fl.batch):
        weight.grad = None
        results = run(lambda x: checkpoint(lambda y: y.tanh() * weight * (x * 2), x * 3, use_reentrant=True))(inputs)
        sum(result.sum() for result in results).backward()
        found.append(weight.grad)
    assert_same(found[1], found[0])


def _row_changed(x: torch.Tensor) -> Any:
    y = x[1]
    y.mul_(2)
    return x


def _row_of_list_changed(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    y = s[0]
    y.mul_(2)
    return s


def _rows_of_list_changed(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    y = s[0:1]
    s.mul_(2)
    return s, y


def _copy_changed(x: torch.Tensor) -> Any:
    y = x[[0, 1]]
    y.mul_(2)
    return x, y


def _copied_by_reshape(x: torch.Tensor) -> Any:
    y = x.t().reshape(-1)
    y.mul_(2)
    return x, y


def _alias(of: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        of(x).mul_(2)
        return x

    return function


def _changed_without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x


def _row_of_a_list_that_changes(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    y = s[0]
    s[0] = x[2]
    return y, s.mul_(2), y


def _list_reshaped(x: torch.Tensor) -> Any:
    s = torch.stack([x[0] * 2, x[1]])
    s.unsqueeze(1).mul_(2)
    return s


def _transposed_in_place(x: torch.Tensor) -> Any:
    """Handles on the same memory see the same numbers, whatever shape another takes."""
    x = x.detach().clone()
    row, column = x[0], x[:, 1]
    x.t_()
    x[0, 1] = 5.0
    row.mul_(2)
    x.unsqueeze_(0).add_(1)
    return x, row, column


def _list_transposed_in_place(x: torch.Tensor) -> Any:
    s = torch.stack([*x.detach()])
    row, part = s[1], s[1:3]
    s.t_()
    s.mul_(2)
    part[0] = 7.0
    return s, row, part


def _row_at_a_computed_place(x: torch.Tensor) -> Any:
    row = x[x.sum(1).argmax()]
    row.mul_(2)
    kept = x[x.sum(1).argmin()]
    x.add_(1)
    return x, row, kept


def _reshaped_views(x: torch.Tensor) -> Any:
    x[1].reshape(3, 1).mul_(2)
    x.t().reshape(-1).mul_(3)
    x.t().contiguous().mul_(3)
    x[1:].flatten().add_(1)
    x.contiguous().add_(1)
    x.unsqueeze(0).reshape(-1)[2:4].zero_()
    return x, x.t().is_contiguous(), x.t().stride(), x[1:].storage_offset(), x.is_contiguous()


def _broadcast_views(x: torch.Tensor) -> Any:
    first, second = torch.broadcast_tensors(x, x[:1] * 2)
    x.mul_(2)
    return first, second, torch.atleast_3d(x), x


def _views_without_gradients(x: torch.Tensor) -> Any:
    row, s = x[1], torch.stack([*x])
    with torch.no_grad():
        row.mul_(3)
        x[:, 0].add_(1)
        x[2] = 4.0
        s[1].mul_(2)
        s[2] = 5.0
        s.add_(1)
    return x, row, s, s[1]


def _nested_lists(x: torch.Tensor) -> Any:
    s = torch.stack([*(x * 2)])
    part = s[1:]
    inner = part[1:3]
    row = inner[0]
    row.mul_(2)
    inner.add_(1)
    part[0, 1] = 9.0
    s.mul_(2)
    return s, part, inner, row


def _columns_of_a_list(x: torch.Tensor) -> Any:
    s = torch.stack([*(x * 2)])
    column, halves = s[:, 1], s.detach().unsqueeze(1).squeeze(1)
    s.mul_(2)
    column.add_(1)
    return s, column, halves, s[0]


def _identity_module(x: torch.Tensor) -> Any:
    nn.Identity()(x).add_(1)
    nn.Dropout(0.5).eval()(x).mul_(2)
    nn.Sequential(nn.Identity(), nn.Dropout(0.5).eval())(x).mul_(2)
    return x


def _in_place_after(x: torch.Tensor) -> Any:
    first, second = x * 2, x * 3
    chain = nn.Sequential(nn.Dropout(0.5).eval(), nn.ELU(inplace=True))
    return chain(first), first, nn.Sequential(_swapped, _relu)(second), second


def _lies_transposed(x: torch.Tensor) -> Any:
    y = x.t() * 2
    y.reshape(-1).mul_(2)
    return y


def _in_place_result(x: torch.Tensor) -> Any:
    x = x.detach().clone()
    y = functional.relu(x, inplace=True)
    y.add_(2)
    return x


def _array_changed(x: torch.Tensor) -> Any:
    array = np.ones(3)
    values = torch.from_numpy(array)
    y = x.detach() * values  # what is saved for gradients changes with the array, in torch too
    array += 1
    return y, x.detach() * values


_weight = nn.Parameter(torch.ones(3, dtype=torch.float64))


def _changed_after(use: Callable[[torch.Tensor], Any], waits: bool = False) -> Callable[[torch.Tensor], Any]:
    def function(x: torch.Tensor) -> Any:
        y = use(x)
        if waits:
            y.sum().item()
        with torch.no_grad():
            for tensor in (_weight, _changing.weight, _changing.scale, _double, _buffer):
                tensor.fill_(2.0)
        return y

    return function


class Changing(nn.Linear):
    """A cell with a buffer."""

    def __init__(self) -> None:
        super().__init__(3, 3, dtype=torch.float64)
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


_changing, _linear_changing = Changing(), nn.Linear(3, 3, dtype=torch.float64)
_linear_changing.weight = _changing.weight
_changing_cell = fl.cell(_changing)
_double, _buffer = torch.ones(3, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)

CHANGED: dict[str, Callable[[torch.Tensor], Any]] = {
    "a weight": lambda x: x * _weight,
    "a weight by which another is derived": lambda x: x * (_weight * 2),
    "a weight of a module": lambda x: _linear_changing(x),
    "a buffer of a cell": lambda x: _changing_cell(x),
    "a table for all": lambda x: x @ _double,
    "a vector for all": lambda x: x * _buffer,
}


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("name", CHANGED)
def test_what_calls_read_may_not_change_before_they_run(name: str, waits: bool) -> None:
    with pytest.raises(fl.errors.ArgumentError, match="changed in place"):
        fl.batch(_changed_after(CHANGED[name], waits))(vectors())


def test_a_derived_weight_that_changes() -> None:
    inputs = vectors()

    def function(x: torch.Tensor) -> Any:
        double = _swapped.weight * 2
        double.add_(1)
        return x @ double

    check_on_the_fly(function, inputs, sources=[*inputs, _swapped.weight])
    check_on_the_fly(lambda x: (x @ (_swapped.weight * 2), function(x)), inputs, sources=[*inputs, _swapped.weight])


def test_weights_may_change_before_they_are_met_and_after_the_batch() -> None:
    inputs = vectors()
    with torch.no_grad():
        _weight.fill_(3.0)
    check_on_the_fly(lambda x: x * _weight, inputs, sources=inputs)
    with torch.no_grad():
        _weight.fill_(4.0)
    assert_same(fl.batch(lambda x: x * _weight)(inputs), [x * 4 for x in inputs])


def test_a_recording_of_a_module_with_other_weights_is_refused() -> None:
    """It would run with the module's own."""
    with pytest.raises(fl.errors.ArgumentError, match="given other weights"):
        fl.record(lambda x: torch.func.functional_call(_swapped, dict(_other.named_parameters()), (x,)), vector(3))


@pytest.mark.parametrize("back", [True, False])
def test_a_cell_that_is_switched_to_another_mode_is_refused(back: bool) -> None:
    cell = fl.cell(nn.Dropout(0.5))

    def function(x: torch.Tensor) -> Any:
        y = cell(x), cell.eval()(x)
        cell.train(back)
        return y

    with pytest.raises(fl.errors.ArgumentError, match="a batch for each"):
        fl.batch(function)(vectors())


_swapped, _other = nn.Linear(3, 3, dtype=torch.float64), nn.Linear(3, 3, dtype=torch.float64)


def _called_with_others(x: torch.Tensor) -> Any:
    return torch.func.functional_call(_swapped, {"weight": _other.weight * 2}, (x,))


def _module_changed(x: torch.Tensor) -> Any:
    own = _swapped.weight
    before = _swapped(x)
    _swapped.weight = _other.weight
    after = _swapped(x)
    _swapped.weight = own
    return before, after


def _derived_without_gradients(x: torch.Tensor) -> Any:
    with torch.no_grad():
        fixed = _swapped.weight * 2
    return x @ fixed, x @ (_swapped.weight * 2)


_attention = nn.MultiheadAttention(4, 2, dtype=torch.float64)
_normed_cell = parametrizations.weight_norm(nn.LSTMCell(3, 2, dtype=torch.float64), "weight_hh")
_relu = nn.ReLU(inplace=True)


def _causal(x: torch.Tensor) -> Any:
    mask = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), 1)
    return _attention(*[torch.cat([x, x[:, :1]], 1)] * 3, attn_mask=mask)


def _another_default_dtype(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float32)
    number = torch.tensor(1.5)
    torch.set_default_dtype(torch.float64)
    return number * 1


def _quotient_by_default(x: torch.Tensor) -> Any:
    torch.set_default_dtype(torch.float32)
    halves = torch.tensor(3) / 2
    torch.set_default_dtype(torch.float64)
    return halves, torch.tensor(3) / 2


_by_frequency = nn.Embedding(5, 3, scale_grad_by_freq=True, dtype=torch.float64)


SUBTLE: dict[str, Callable[[torch.Tensor], Any]] = {
    "autograd.Function": lambda x: (
        Straight.apply(x * 3),
        Straight.apply(_swapped.weight) * x[0],
        Straight.apply(x.detach()),
    ),
    "autograd.Function of several": lambda x: (Tenfold.apply(x, x * 2, 3.0), Tenfold.apply(_swapped.bias, x[0], 2.0)),
    "autograd.Function in numpy": lambda x: (InNumpy.apply(x * 2), InNumpy.apply(x[0])),
    "functional_call": _called_with_others,
    "functional_call with parameters": lambda x: torch.func.functional_call(
        _swapped, dict(_other.named_parameters()), (x,)
    ),
    "a module whose weight is replaced": _module_changed,
    "a derived weight without gradients": _derived_without_gradients,
    "checkpoint": lambda x: checkpoint(lambda y: y.tanh() * (x * 2), x * 3, use_reentrant=False),
    "frequencies": lambda x: _by_frequency((x[:, 0] > 0).long()),
    "a row, not the first": _row_changed,
    "a row of a list": _row_of_list_changed,
    "a copy by index": _copy_changed,
    "a copy by reshape": _copied_by_reshape,
    "default dtype": _another_default_dtype,
    "rows of a list": _rows_of_list_changed,
    "a row of a list that changes": _row_of_a_list_that_changes,
    "a list reshaped": _list_reshaped,
    "to": _alias(lambda x: x.to(torch.float64)),
    "cpu": _alias(lambda x: x.cpu()),
    "plus": _alias(lambda x: +x),
    "adjoint": _alias(lambda x: x.adjoint()),
    "hsplit": lambda x: (lambda y: _alias(lambda z: torch.hsplit(z, 1)[0])(y))(x.detach().clone()),
    "dropout in eval": _alias(lambda x: functional.dropout(x, 0.5, training=False)),
    "a change without gradients": _changed_without_gradients,
    "transposed in place": _transposed_in_place,
    "a list transposed in place": _list_transposed_in_place,
    "a row at a computed place": _row_at_a_computed_place,
    "views that may be copies": _reshaped_views,
    "views of several": _broadcast_views,
    "views changed without gradients": _views_without_gradients,
    "lists of lists": _nested_lists,
    "columns of a list": _columns_of_a_list,
    "modules that return what they are given": _identity_module,
    "the result of a change": _in_place_result,
    "ReLU(inplace=True)": lambda x: (_relu(x), x, nn.Sequential(_relu, nn.Tanh())(x - 0.5), _in_place_after(x)),
    "a causal mask made inside": _causal,
    "a parametrized LSTMCell": lambda x: _normed_cell(x[0]),
    "as_tensor": torch.as_tensor,
    "logsumexp of nothing": lambda x: torch.stack([*x.detach()])[4:].logsumexp(0),
    "an array that changes": _array_changed,
    "tensor of values": lambda x: torch.tensor([x.detach()[0, 0], 1.0]),
    "a scalar of numpy": lambda x: np.float64(2.0) * x,
    "isinstance": lambda x: (isinstance(x, torch.Tensor), torch.is_tensor(x)),
    "vmap": torch.vmap(lambda row: row * 2),
    "a derivative inside": torch.func.grad(lambda x: (x**3).sum()),
    "a derivative of what is around": lambda x: torch.func.grad(lambda y: (y * x).sum())(x[0]),
}


@pytest.mark.parametrize("name", SUBTLE)
def test_subtle_cases(name: str) -> None:
    inputs = sequences(4, 4, 4)
    sources = [*inputs, _by_frequency.weight, *_swapped.parameters(), *_other.parameters()]
    check_on_the_fly(lambda x: SUBTLE[name](x * 1.5), inputs, sources=sources, records=False)


FAULTS: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "a computed value that lies transposed": ("what is computed is taken to lie in order: its reshape is a copy", _lies_transposed),
    "floor_divide of what is detached": ("backward asks for its derivative", lambda x: x.detach() // 0.3 + x),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=wrong(reason)) for name, (reason, _) in FAULTS.items()])
def test_known_faults(name: str) -> None:
    inputs = sequences(4, 4, 4)
    sources = [*inputs, *_swapped.parameters(), *_other.parameters()]
    check_on_the_fly(lambda x: FAULTS[name][1](x * 1.5), inputs, sources=sources, records=False)


def test_default_dtype_that_holds_at_the_call() -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(lambda x: _quotient_by_default(x * 1.5), inputs, records=False)


def test_dropout_of_a_weight_is_drawn_for_each_example() -> None:
    weight = nn.Parameter(torch.ones(500))
    results = fl.batch(lambda x: functional.dropout(weight, 0.5) * x)([torch.ones(()) for _ in range(3)])
    assert len({tuple(result.tolist()) for result in results}) == 3


def test_batch_norm_keeps_its_statistics() -> None:
    module = nn.BatchNorm1d(3)
    inputs = sequences(2, 4, 3)
    statistics = []
    for run in (fl.one_by_one(module), fl.batch(module)):
        module.reset_running_stats()
        run(inputs)
        statistics.append([buffer.clone() for buffer in module.buffers()])
    assert_same(statistics[1], statistics[0])


def test_a_module_runs_in_the_mode_that_it_was_called_in() -> None:
    module = nn.LSTM(3, 20, 2, dropout=0.5)

    def function(x: torch.Tensor) -> Any:
        trained = module.train()(x)[0]
        return trained, module.eval()(x)[0]

    for trained, evaluated in fl.batch(function)(sequences(2, 3)):
        assert not torch.equal(trained, evaluated)


def test_backward_hooks_see_one_example_at_a_time() -> None:
    linear = nn.Linear(3, 3)
    seen: list[Any] = []
    linear.register_full_backward_hook(lambda module, before, after: seen.append(after[0].clone()) or (before[0] * 2,))
    inputs = vectors()
    check_on_the_fly(lambda x: linear(x * 2) * x, inputs, sources=[*linear.parameters(), *inputs], records=False)
    assert {tuple(grad.shape) for grad in seen} == {(3,)}


def test_autocast_to_another_dtype() -> None:
    weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float32))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            assert fl.batch(lambda x: x @ weight)([torch.ones(3, dtype=torch.float32)])[0].dtype is dtype


def test_gradients_enabled_within_no_grad_are_refused() -> None:
    linear = nn.Linear(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return linear(x)

    with torch.no_grad(), pytest.raises(fl.errors.ArgumentError, match=r"Call fl\.batch where they are enabled"):
        fl.batch(function)(vectors())


@pytest.mark.parametrize("kind", ["part", "list", "inplace"])
def test_a_change_of_part_of_what_is_the_users_is_refused(kind: str) -> None:
    table = nn.Embedding(5, 3)

    def part(x: torch.Tensor) -> None:
        y = x[0:1]
        y.add_(1)

    def of_list(x: torch.Tensor) -> None:
        table(x)
        x += 1

    def inplace(x: torch.Tensor) -> None:
        functional.relu(x, inplace=True)

    function = {"part": part, "list": of_list, "inplace": inplace}[kind]
    given = torch.tensor([-1, -2]) if kind == "inplace" else torch.tensor([1, 2])
    expected = given.clone()
    function(expected)
    try:
        fl.batch(function)([given])
    except fl.errors.ArgumentError:
        return
    assert torch.equal(given, expected)


def _run_in_another_process(lines: str) -> subprocess.CompletedProcess[str]:
    code = "import torch, foldloom as fl\n" + textwrap.dedent(lines)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


def test_an_error_of_torch_in_a_fiber_that_is_used_again() -> None:
    done = _run_in_another_process(
        """
        def fails(x):
            try:
                torch.dot(torch.zeros(3), torch.zeros(5))
            except RuntimeError:
                return x
        def deep(function, depth):
            return function() if not depth else max([0], key=lambda _: deep(function, depth - 1) and 0)
        deep(lambda: fl.batch(lambda x: (x * 2).sum().item())([torch.ones(3)] * 5), 9)
        fl.batch(fails)([torch.ones(3)] * 5)
        """
    )
    assert done.returncode == 0, done.stderr


def test_given_rows_and_other_values_in_one_step() -> None:
    """One step multiplies numbers that were given one by one and numbers out of a given list."""
    table = nn.Embedding(7, 3)
    words = [torch.tensor([2, 3]), torch.tensor([4, 6, 1])]
    check_on_the_fly(lambda row: (torch.tensor(5) * 1, table(row), [word * 1 for word in row]), words)


def test_given_tensors_as_indices_of_given_tensors() -> None:
    inputs = vectors()
    check_on_the_fly(lambda x, place: x[place], inputs, [torch.tensor(n) for n in (2, 0, 1)], sources=inputs)


def test_refused_methods_say_what_to_do_instead() -> None:
    for call in (
        lambda x: x.register_hook(lambda grad: grad * 2),
        lambda x: x.retain_grad(),
        lambda x: x.requires_grad_(False),
    ):
        with pytest.raises(fl.errors.ArgumentError, match=r"Return the value|Write `x = x\.detach"):
            fl.batch(lambda x, call=call: call(x * 2))(vectors())


def test_a_module_made_inside_the_function_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match=r"Make modules and parameters before(.|\n)*test_on_the_fly\.py"):
        fl.batch(lambda x: nn.Linear(3, 2)(x))(vectors())


def test_tensors_in_lists_are_values_of_the_example() -> None:
    examples = [[*vectors(2)], [*vectors(2)], [*vectors(2)]]

    def function(rows: Any, named: Any, pair: Any) -> Any:
        return [row.tanh() for row in rows], named["x"].exp() * named["n"], pair[0] + pair[1], isinstance(rows, list)

    named, pairs = [{"x": vector(3), "n": 2} for _ in range(3)], [(vector(3), 2.0) for _ in range(3)]
    sources = [*flat(examples), *[item["x"] for item in named], *[item[0] for item in pairs]]
    check_on_the_fly(function, examples, named, pairs, sources=sources)
    assert steps_of(function, examples, named, pairs) == steps_of(function, examples[:1], named[:1], pairs[:1])


def test_a_list_that_the_function_changes_is_refused() -> None:
    with pytest.raises(fl.errors.ArgumentError, match=r"xs = list\(xs\)"):
        fl.batch(lambda xs: xs.pop() * 2)([vectors(2)])
    with pytest.raises(fl.errors.ArgumentError, match=r"xs = list\(xs\)"):
        fl.batch(lambda xs: xs.update(y=xs["x"] * 2))([{"x": vector(3)}])


def test_elements_at_other_places_are_set_in_one_step() -> None:
    inputs = sequences(4, 4, 4)

    def function(x: torch.Tensor, place: int) -> torch.Tensor:
        y = x * 2
        y[place] = x[0, 0]
        y[place - 1] = 3
        y[place - 2] = x[:1]
        return y

    check_on_the_fly(function, inputs, [0, 3, -1], sources=inputs)
    assert steps_of(function, inputs, [0, 3, 2]) == steps_of(function, inputs[:1], [1])
    with pytest.raises(IndexError, match="out of bounds"):
        fl.batch(lambda x: (x * 2).__setitem__(4, 1.0))(inputs)


def test_the_array_of_a_value_is_not_written_to() -> None:
    """Torch's own would be the memory of the tensor."""

    def function(x: torch.Tensor) -> Any:
        zeros = torch.zeros(3)
        zeros.numpy()[0] = 1.0
        return zeros * x

    with pytest.raises(ValueError, match="read-only"):
        fl.batch(function)(vectors())


def test_embedding_that_divides_gradients_by_frequency() -> None:
    table = nn.Embedding(5, 3, scale_grad_by_freq=True)
    words = [torch.tensor([1, 2, 1]), torch.tensor([1, 1])]
    check_on_the_fly(table, words, sources=table.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_arguments(training: bool) -> None:
    module = nn.BatchNorm1d(3).train(training)
    inputs = sequences(2, 4, 3)
    check_on_the_fly(lambda x: module(x), inputs, sources=[*module.parameters(), *inputs], records=False)


def _total(first: Any, rest: Any = None) -> torch.Tensor:
    return first[0] - first[1] if rest is None else first + 3 * rest[0]


def test_brackets_tell_calls_apart() -> None:
    """Where the brackets stand is part of a call, empty ones too."""

    def call(*args: Any) -> torch.Tensor:
        recorder = scope.recorder
        return _total(*args) if recorder is None else recorder.call_function(_total, args, None)

    def function(x: torch.Tensor) -> Any:
        y, ones = x * 2, torch.ones(2, 3) * x
        sums = ones.sum([]), ones.sum(()), ones.sum([0]), ones.sum(0), ones.sum((0, 1)), ones.sum(1)
        return call([x, y]), call(x, [y]), call((y, x)), call(x, (y,)), sums

    inputs = vectors()
    check_on_the_fly(lambda x: function(x * 1), inputs, sources=inputs)


def test_a_wrong_shape_is_raised_and_not_printed() -> None:
    done = _run_in_another_process(
        """
        try:
            fl.batch(lambda x: x * 2 + torch.ones(5))([torch.ones(3)])
        except RuntimeError as error:
            print(error)
        """
    )
    assert "broadcast" in done.stdout
    assert done.stderr == ""


# ---- Programs.


def _views_across_waits(x: torch.Tensor) -> Any:
    flat, row, listed = x.view(-1), x[1], torch.stack([*x])
    kept = listed[2]
    if x.sum() > 0:
        x.mul_(2)
        listed.add_(1)
    else:
        row.add_(1)
        kept.mul_(3)
    if flat.sum() > 0:
        flat[0] = 5.0
        listed[2] = x[0]
    return x, flat, row, listed, kept


def _without_gradients_across_waits(x: torch.Tensor) -> Any:
    with torch.no_grad():
        x[0].div_(x.norm().item())
        target = x * 1
        if target.sum() > 0:
            target += 1
    return x * target


def _shift_reduce(x: torch.Tensor) -> Any:
    stack: list[torch.Tensor] = []
    for row in x:
        stack.append(row)
        if len(stack) > 1 and (stack[-1] * stack[-2]).sum() > 0:
            stack.append(_swapped(stack.pop() + stack.pop()).tanh())
    return torch.stack(stack).sum(0), len(stack)


def _beam(x: torch.Tensor) -> Any:
    beams: list[Any] = [(x[0], 0.0)]
    for _ in range(2):
        found = []
        for state, score in beams:
            values, places = (state @ _swapped.weight).log_softmax(0).topk(2)
            found += [(state + _other.weight[places[n]] * values[n], score + values[n]) for n in range(2)]
        beams = sorted(found, key=lambda beam: -beam[1])[:2]
    return [state for state, _ in beams], torch.stack([score for _, score in beams])


def _memory(x: torch.Tensor) -> Any:
    memory = torch.zeros(5, 3)
    for number, row in enumerate(x):
        memory[number + 1] = memory[number] * 0.5 + row
        memory[0] += row
    return memory, memory[0]


def _grown_by_joining(x: torch.Tensor) -> Any:
    keys, found = torch.empty(0, 3), []
    for row in x:
        keys = torch.cat([keys, row[None]])
        found.append((keys @ row).softmax(0) @ keys)
    return torch.stack(found)


def _grouped(x: torch.Tensor) -> Any:
    groups: dict[int, list[torch.Tensor]] = {}
    for row in x:
        groups.setdefault(int(row.argmax()), []).append(row)
    return {key: torch.stack(rows).mean(0) for key, rows in sorted(groups.items())}


def _places_that_are_computed(x: torch.Tensor) -> Any:
    place, y = x.argmax() % 3 + 1, x.clone()
    y[place] = 0.0
    y[y.argmax(0)[0], 1] = 9.0
    y[x.sum(1) > 0] += 1
    return x[:place], x[place:].sum(0), x[place], x[0, place - 1], x[place - 1 : place + 1], y


def _raising(x: torch.Tensor) -> Any:
    found = []
    for row in x:
        try:
            if row.sum() > 0:
                raise ValueError
            found.append(row * 2)
        except ValueError:
            found.append(row * 3)
        finally:
            found.append(row.sum())
    return found


@pytest.mark.parametrize(
    "program",
    [
        _views_across_waits, _without_gradients_across_waits, _shift_reduce, _beam, _memory, _grown_by_joining, _grouped,
        _places_that_are_computed, _raising,
    ],
)  # fmt: skip
def test_programs(program: Callable[[torch.Tensor], Any]) -> None:
    inputs = sequences(4, 4, 4)
    sources = [*inputs, *_swapped.parameters(), *_other.parameters()]
    check_on_the_fly(lambda x: program(x * 1.5), inputs, sources=sources, records=False)
