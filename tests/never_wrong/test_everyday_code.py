"""Cousins of the findings, as people write them every day."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foldloom as fl
from tests.never_wrong.checking import Program, check, check_program, linear, sequences

LAYER, OTHER = linear(), linear()
LSTM = nn.LSTM(3, 3, dtype=torch.float64)
WEIGHT = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
SOURCES = [*LAYER.parameters(), *OTHER.parameters(), *LSTM.parameters(), WEIGHT]


def data_assigned(x: torch.Tensor) -> Any:
    y = LAYER(x) * 1
    y.data = torch.zeros_like(y)
    return y * 2


def data_changed(x: torch.Tensor) -> Any:
    y = LAYER(x) * 1
    y.data.mul_(3)
    return y * 2


def changed_under_no_grad(x: torch.Tensor) -> Any:
    y = LAYER(x) * 1
    with torch.no_grad():
        y[0] = 0
        y.mul_(3)
    return y * 2


def gradients_if_long(x: torch.Tensor) -> Any:
    with torch.set_grad_enabled(len(x) > 2):
        y = LAYER(x)
    return y * 2


def looped_under_no_grad(x: torch.Tensor) -> Any:
    with torch.no_grad():
        for _ in range(3):
            x = torch.tanh(LAYER(x)) if x.sum() < 1 else x * 0.5
    return OTHER(x)


def made_in_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return LAYER(x)


def used_after_inference_mode(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = LAYER(x)
    return y.clone() * OTHER(x)


def gates_of_which_one_is_unused(x: torch.Tensor) -> Any:
    i, f, g = LAYER(x).chunk(3, 1)
    unused = (g * 0).sqrt()
    return i * f if unused.shape == i.shape else g


def shapes(x: torch.Tensor) -> Any:
    y = LAYER(x)
    return y.shape[0] + 1, y.shape[:-1] + (2,), torch.Size([1]) + y.shape, y.shape.numel(), [*y.shape]


def new_ones(x: torch.Tensor) -> Any:
    y = LAYER(x)
    return y.new_full((2,), 3), y.new_ones(1) + y.sum(), torch.ones_like(y, dtype=torch.int32)


def swapped_rows(x: torch.Tensor) -> Any:
    y = LAYER(x) * 1
    y[0], y[-1] = y[-1].clone(), y[0].clone()
    return y


def swapped_rows_by_mistake(x: torch.Tensor) -> Any:
    """Rows are views, so that both end as one: a mistake of many, and to be the same mistake."""
    y = LAYER(x) * 1
    y[0], y[-1] = y[-1], y[0]
    return y


def kept_rows(x: torch.Tensor) -> Any:
    rows = list(LAYER(x))
    del rows[0]
    return rows


def memoised(x: torch.Tensor) -> Any:
    @functools.lru_cache
    def row(number: int) -> torch.Tensor:
        return LAYER(x[number])

    return row(0) + row(0) + row(len(x) - 1)


def chart(x: torch.Tensor) -> Any:
    scores = torch.full((len(x), len(x)), -torch.inf, dtype=torch.float64)
    for i in range(len(x)):
        for j in range(i + 1):
            scores[i, j] = LAYER(x[i])[0] + x[j][1]
    return scores.logsumexp(0)


def viterbi(x: torch.Tensor) -> Any:
    score, back = LAYER(x[0]), []
    for row in x[1:]:
        best, place = (score[:, None] + WEIGHT).max(0)
        score = best + LAYER(row)
        back.append(place)
    tag = int(score.argmax())
    path = [tag]
    for place in reversed(back):
        tag = int(place[tag])
        path.append(tag)
    return score.max(), path[::-1]


def generated(x: torch.Tensor) -> Any:
    def rows() -> Any:
        for row in x:
            if (row * 2).sum() > 0:
                yield LAYER(row)

    return list(rows())


def hooks_on_saved_tensors(x: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor * 1, lambda tensor: tensor):
        return (LAYER(x) ** 2).sum()


def cut_states(x: torch.Tensor) -> Any:
    states = [LAYER(row).detach() for row in x]
    return torch.stack(states).sum(0) * OTHER(x[0])


def default_state(x: torch.Tensor, state: Any = None) -> Any:
    for row in x:
        state = LAYER(row) if state == None else torch.tanh(LAYER(row) + OTHER(state))  # noqa: E711
    return state


def not_none(x: torch.Tensor) -> Any:
    y = LAYER(x)
    return y if y != None else x  # noqa: E711


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "== None": lambda x: LAYER(x) == None,  # noqa: E711
    "== text": lambda x: LAYER(x) == "a",
    "printed": lambda x: (str(LAYER(x).detach()), repr(x.detach().sum() * 2)),
    "name of a method": lambda x: (x * 2).sum.__name__,
    "asked in turn": lambda x: (LAYER(x).sum() > 0) and OTHER(x),
    "chained comparison": lambda x: 0 < (x.sum() * 0 + 0.5) < 1,
    "any and all of Python": lambda x: (any(LAYER(x)[0] > 0), all(LAYER(x)[0] > 0)),
    "max of Python": lambda x: max(LAYER(x).sum(), x.sum()),
    "reduced": lambda x: functools.reduce(lambda a, b: torch.tanh(a + b), [LAYER(row) for row in x]),
    "accumulated": lambda x: list(itertools.accumulate((LAYER(row) for row in x), torch.add)),
    "a batch inside": lambda x: fl.batch(lambda row: LAYER(row) if row.sum() > 0 else OTHER(row))(list(x)),
    "last state alone": lambda x: LSTM(x)[1][0],
    "last memory alone": lambda x: LSTM(x)[1][1],
    "nothing left": lambda x: (x[x > 100].sum(), x[x > 100].numel()),
    "mean of nothing": lambda x: x[x > 100].mean(),
    "softmax of nothing": lambda x: x.sum(-1).masked_fill(x.sum(-1) > -100, -torch.inf).softmax(0),
    "mask times log": lambda x: (x.log() * (x > 0)).sum(),
    "where and log": lambda x: torch.where(x > 0, x.log(), x * 0),
    "ignored targets": lambda x: F.cross_entropy(LAYER(x), torch.tensor([-100] * len(x))),
    "row by argmax": lambda x: torch.eye(3, dtype=torch.float64)[LAYER(x).argmax(-1)],
    "the same object": lambda x: ((y := LAYER(x)).to(y.dtype) is y, y.contiguous() is y, y.detach() is y),
    **{
        function.__name__: function
        for function in (
            data_assigned,
            data_changed,
            changed_under_no_grad,
            gradients_if_long,
            looped_under_no_grad,
            made_in_inference_mode,
            used_after_inference_mode,
            gates_of_which_one_is_unused,
            shapes,
            new_ones,
            swapped_rows,
            swapped_rows_by_mistake,
            kept_rows,
            memoised,
            chart,
            viterbi,
            generated,
            hooks_on_saved_tensors,
            cut_states,
            default_state,
            not_none,
        )
    },
}


@pytest.mark.parametrize(
    "name",
    list(PROGRAMS),
)
def test_everyday_code(name: str) -> None:
    inputs = sequences()
    check(PROGRAMS[name], inputs, sources=[*inputs, *SOURCES])


def test_embedding_with_a_largest_norm() -> None:
    """Looking a word up shortens its row, for good."""

    def build() -> Program:
        table = nn.Embedding(5, 3, max_norm=0.5, dtype=torch.float64)
        words = [torch.tensor([1, 2]), torch.tensor([2]), torch.tensor([4, 1, 1])]
        return Program(lambda x: table(x) * 2, [words], left=lambda: table.weight.detach().clone())

    check_program(build, or_refused=True)


@pytest.mark.parametrize(
    "kind",
    ["forward_pre", "forward", "global"],
)
def test_hooks_of_modules_see_what_they_would(kind: str) -> None:
    def build() -> Program:
        layer, inputs, seen = linear(), sequences(), []

        def hook(module: nn.Module, given: Any, result: Any = None) -> None:
            seen.append((type(module).__name__, isinstance(given[0], torch.Tensor), tuple(given[0].shape)))

        if kind == "global":
            register: Any = nn.modules.module.register_module_forward_hook
        else:
            register = getattr(layer, f"register_{kind}_hook")

        def function(x: torch.Tensor) -> Any:
            handle = register(hook)
            try:
                return layer(x * 2)
            finally:
                handle.remove()

        return Program(function, [inputs], [*inputs, *layer.parameters()], lambda: seen)

    check_program(build)
