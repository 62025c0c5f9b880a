"""Modules of torch and of users as they are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import foldloom as fl
from tests.law import assert_same
from tests.law.on_the_fly import check_on_the_fly, steps_of
from tests.tracing.plain import sequences, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


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


_attention = nn.MultiheadAttention(4, 2, dtype=torch.float64)
_normed_cell = parametrizations.weight_norm(nn.LSTMCell(3, 2, dtype=torch.float64), "weight_hh")


def _causal(x: torch.Tensor) -> Any:
    mask = torch.triu(torch.ones(len(x), len(x), dtype=torch.bool), 1)
    return _attention(*[torch.cat([x, x[:, :1]], 1)] * 3, attn_mask=mask)


_by_frequency = nn.Embedding(5, 3, scale_grad_by_freq=True, dtype=torch.float64)


MODULES: dict[str, Callable[[torch.Tensor], Any]] = {
    "frequencies": lambda x: _by_frequency((x[:, 0] > 0).long()),
    "a causal mask made inside": _causal,
    "a parametrized LSTMCell": lambda x: _normed_cell(x[0]),
}


@pytest.mark.parametrize("name", MODULES)
def test_modules_with_subtleties(name: str) -> None:
    inputs = sequences(4, 4, 4)
    check_on_the_fly(
        lambda x: MODULES[name](x * 1.5),
        inputs,
        sources=[*inputs, _by_frequency.weight, *_attention.parameters(), *_normed_cell.parameters()],
        records=False,
    )


def test_batch_norm_keeps_its_statistics() -> None:
    module = nn.BatchNorm1d(3)
    inputs = sequences(2, 4, 3)
    statistics = []
    for run in (fl.one_by_one(module), fl.batch(module)):
        module.reset_running_stats()
        run(inputs)
        statistics.append([buffer.clone() for buffer in module.buffers()])
    assert_same(statistics[1], statistics[0])


def test_embedding_that_divides_gradients_by_frequency() -> None:
    table = nn.Embedding(5, 3, scale_grad_by_freq=True)
    words = [torch.tensor([1, 2, 1]), torch.tensor([1, 1])]
    check_on_the_fly(table, words, sources=table.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_arguments(training: bool) -> None:
    module = nn.BatchNorm1d(3).train(training)
    inputs = sequences(2, 4, 3)
    check_on_the_fly(lambda x: module(x), inputs, sources=[*module.parameters(), *inputs], records=False)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("training", [False, True])
def test_layers_of_a_transformer_over_any_lengths(norm_first: bool, activation: str, training: bool) -> None:
    layers = [
        nn.TransformerEncoderLayer(4, 2, 8, 0.0, activation, batch_first=True, norm_first=norm_first).train(training)
        for _ in range(2)
    ]

    def encoded(words: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            words = layer(words)
        return words.mean(0)

    given = sequences(1, 2, 3, 7, 16, width=4)
    check_on_the_fly(encoded, given, sources=[*given, *[weight for layer in layers for weight in layer.parameters()]])
    assert steps_of(encoded, given) == 3


def test_attention_over_any_lengths() -> None:
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True)

    def attended(words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = attention(words, words * 2, words.tanh(), need_weights=False)[0]
        return found

    given = sequences(1, 2, 9, 3, width=4)
    check_on_the_fly(attended, given, sources=[*given, *attention.parameters()])
    check_on_the_fly(lambda words: attention(words, words, words), given, sources=given)


def test_an_embedding_with_layers_after_it_is_one_operation() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2), nn.ReLU())
    check_on_the_fly(lambda word: model(torch.tensor(word)), [0, 3, 4], sources=[*model.parameters()])
    assert steps_of(lambda word: model(torch.tensor(word)), [0, 3, 4]) == 1


def test_the_first_convolution_of_a_process_has_gradients() -> None:
    """To infer its type, torch loads code of its own, which is none of the program's."""
    code = (
        "import torch, foldloom as fl\n"
        "layer = torch.nn.Conv1d(4, 3, 2)\n"
        "x = torch.randn(2, 4, requires_grad=True)\n"
        "fl.batch(lambda x: layer(x.t().unsqueeze(0)).sum())([x])[0].backward()\n"
        "assert x.grad is not None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
