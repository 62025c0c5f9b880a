"""The law for plain PyTorch: random programs, batched as they run, give what they give one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from tests.law.on_the_fly import check_on_the_fly


class Library(nn.Module):
    """What random programs are made of: each entry of ``calls`` is (kinds of its arguments, kind of its result, function).

    Kinds: a vector of three, a number, a matrix, rows (a list of vectors, of any length but zero), an index, a truth value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.table = nn.Embedding(7, 3)
        self.lstm, self.gru = nn.LSTM(3, 3), nn.GRU(3, 3, bidirectional=True)
        self.cell = nn.GRUCell(3, 3)
        self.weight, self.bias = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
        self.double()
        self.closure = (self.weight * 0.5).exp()
        self.shared = torch.randn(3, 3, dtype=torch.float64)
        weight, bias = self.weight, self.bias
        self.calls: list[tuple[tuple[str, ...], str, Callable[..., Any]]] = [
            (("vector", "vector"), "vector", lambda x, y: x * y.tanh()),
            (("vector", "vector"), "vector", lambda x, y: torch.maximum(x, y) - 0.5 * y),
            (("vector", "vector"), "vector", lambda x, y: torch.where(x > y, x, -y)),
            (("vector", "vector"), "vector", self.cell),
            (("vector", "vector"), "vector", lambda x, y: torch.cat([x, y])[1:4]),
            (("vector",), "vector", lambda x: self.linear(x).sigmoid()),
            (("vector",), "vector", lambda x: x @ weight.t() + bias),
            (("vector",), "vector", lambda x: weight[0] * x + self.shared[1]),
            (("vector",), "vector", lambda x: torch.tanh(self.closure @ x)),
            (("vector",), "vector", lambda x: functional.softmax(self.norm(x), dim=-1)),
            (("vector",), "vector", lambda x: x.flip(0).cumsum(0) / 2),
            (("vector",), "vector", lambda x: x.float().double() * x.detach()),
            (("vector",), "vector", self.without_gradients),
            (("vector",), "vector", self.changed),
            (("vector", "number"), "vector", lambda x, n: x * n.tanh() + torch.ones(3, dtype=torch.float64)),
            (("vector", "number"), "vector", self.filled),
            (("vector", "index"), "vector", lambda x, i: x[i % 3] * self.table(i)),
            (("vector", "truth"), "vector", lambda x, t: torch.where(t, x, -x) + t.long()),
            (("matrix", "vector"), "vector", lambda m, x: (m @ x).tanh()),
            (("index",), "vector", self.table),
            (("vector",), "number", lambda x: x.sum()),
            (("vector",), "number", lambda x: x[1] * x[-1] + x.logsumexp(0)),
            (("vector", "index"), "number", lambda x, i: functional.cross_entropy(x, i % 3)),
            (("number", "number"), "number", lambda a, b: a * 0.5 - torch.sigmoid(b)),
            (("index", "number"), "number", lambda i, n: i * n.tanh()),
            (("vector",), "index", lambda x: x.argmax()),
            (("index", "index"), "index", lambda i, j: (i * 2 + j) % 3),
            (("vector", "number"), "truth", lambda x, n: (x > n).any()),
            (("vector", "vector"), "matrix", lambda x, y: torch.outer(x.tanh(), y.tanh())),
            (("matrix",), "matrix", lambda m: (m.t() @ weight).tanh()),
            (("matrix",), "rows", lambda m: m[1:]),
            (("vector", "vector"), "rows", lambda x, y: torch.stack([x, y])),
            (("rows", "vector"), "rows", lambda s, x: torch.cat([s, x.unsqueeze(0)])),
            (("rows", "rows"), "rows", lambda s, t: torch.cat([s, t])[:5]),
            (("rows",), "rows", lambda s: self.linear(s).tanh()),
            (("rows",), "rows", lambda s: s.softmax(0) + s[-1]),
            (("rows",), "rows", lambda s: self.norm(s.flip(0)) @ weight),
            (("rows",), "rows", lambda s: s[:1] if len(s) == 1 else s[1:]),
            (("rows",), "rows", lambda s: self.lstm(s)[0]),
            (("rows",), "rows", lambda s: (s @ s.t()).softmax(-1) @ s),
            (("rows", "number"), "rows", lambda s, n: s * n.tanh() - s.mean(0)),
            (("rows",), "vector", lambda s: self.gru(s)[1].sum(0)),
            (("rows",), "vector", lambda s: s.sum(0).tanh()),
            (("rows",), "vector", lambda s: s.amax(0)),
            (("rows",), "vector", lambda s: s[0] - s[-1]),
            (("rows", "vector"), "vector", lambda s, x: (s @ x).softmax(0) @ s),
            (("rows", "vector"), "vector", lambda s, x: ((s * x).sum(1).softmax(0).unsqueeze(1) * s).sum(0)),
            (("rows",), "number", lambda s: sum(row.tanh().sum() for row in s)),
            (("rows",), "number", lambda s: functional.cross_entropy(s, s.detach().argmin(1), reduction="sum")),
            (("rows",), "index", lambda s: s.sum(1).argmax()),
        ]  # fmt: skip
        self.branches: list[tuple[tuple[str, ...], str, Callable[..., Any]]] = [
            (("number", "vector", "vector"), "vector", lambda n, x, y: x * 2 if n > 0 else self.linear(y)),
            (("truth", "rows", "rows"), "rows", lambda t, s, r: s if t else r.flip(0)),
            (("index", "vector", "rows"), "vector", lambda i, x, s: s[int(i) % len(s)] * x),
            (("vector",), "vector", lambda x: self.halved(x)),
            (("vector", "number"), "number", lambda x, n: n * x[x > 0].sum()),
            (("rows",), "rows", lambda s: torch.cat([s[s[:, 0] > 0], s[:1]])),
            (("number",), "number", lambda n: n * n.item()),
            (("rows", "index"), "number", lambda s, i: s[[0] * (int(i) + 1)].sum().tanh()),
        ]

    def without_gradients(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.linear(x).tanh()
        return x * target + target

    @staticmethod
    def changed(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y += x.tanh()
        y.mul_(0.5).add_(x, alpha=2)
        return y

    @staticmethod
    def filled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(3, dtype=torch.float64)
        y[0] = n
        y[1:] = x[1:]
        return y

    @staticmethod
    def halved(x: torch.Tensor) -> torch.Tensor:
        while x.abs().sum() > 2:
            x = x / 2
        return x


def run_program(
    library: Library, calls: list[Any], words: torch.Tensor, vector: torch.Tensor, program: list[list[int]]
) -> Any:
    """Interpret numbers as a program: each instruction picks a call and, for each argument, one of the values so far."""
    values: dict[str, list[Any]] = {
        "vector": [vector, vector * 2],
        "number": [vector[1]],
        "matrix": [],
        "rows": [library.table(words)],
        "index": [vector.argmax()],
        "truth": [],
    }
    used: list[Any] = []
    for number, *picks in program:
        takes, makes, function = calls[number % len(calls)]
        if any(not values[kind] for kind in takes):
            continue
        made = function(*[values[kind][pick % len(values[kind])] for kind, pick in zip(takes, picks, strict=False)])
        values[makes].append(made)
        used.append(made)
    # Some results are looked at twice, some never.
    return {"all": used[::2], "last": used[-1:], "shapes": [tuple(value.shape) for value in used], "count": len(used)}


instructions = st.lists(st.lists(st.integers(0, 2000), min_size=4, max_size=4), max_size=12)


def check_programs(programs: list[list[list[int]]], *, asks: bool) -> None:
    torch.manual_seed(len(programs))
    library = Library()
    calls = library.calls + library.branches * 4 if asks else library.calls
    words = [torch.randint(0, 7, (1 + number % 4,)) for number in range(len(programs))]
    vectors = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in programs]

    def function(words: torch.Tensor, vector: torch.Tensor, program: list[list[int]]) -> Any:
        return run_program(library, calls, words, vector, program)

    sources = [*library.parameters(), *vectors]
    check_on_the_fly(function, words, vectors, programs, sources=sources, records=not asks)


@given(programs=st.lists(instructions, min_size=1, max_size=5))
def test_random_programs(programs: list[list[list[int]]]) -> None:
    check_programs(programs, asks=False)


@given(programs=st.lists(instructions, min_size=1, max_size=5))
def test_random_programs_that_branch_on_what_they_compute(programs: list[list[list[int]]]) -> None:
    check_programs(programs, asks=True)
