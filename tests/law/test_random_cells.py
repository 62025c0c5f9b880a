"""The law on random programs: random cells, arities, types, fan-outs, nestings and sharing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import foldloom as fl
from tests.law import check_law, weight_grads_collected

NARROW, WIDE = 3, 4


class Library(nn.Module):
    """Cells of many kinds. Each entry of ``cells`` is (cell, kinds of its arguments, kinds of its results, settings)."""

    def __init__(self) -> None:
        super().__init__()
        self.widen = fl.cell(nn.Linear(NARROW, WIDE))
        self.lookup = fl.cell(nn.Embedding(7, NARROW, padding_idx=2))
        self.recur = fl.cell(nn.LSTMCell(NARROW, WIDE))
        self.joint = fl.cell(Joint())
        self.closed_over = nn.Parameter(torch.randn(WIDE))
        scale = self.closed_over
        self.double().requires_grad_()
        self.cells: list[tuple[Any, tuple[str, ...], tuple[str, ...], dict[str, Any]]] = [
            (self.widen, ("narrow",), ("wide",), {}),
            (self.lookup, ("row",), ("narrow",), {}),
            (self.joint, ("narrow", "narrow"), ("narrow", "wide"), {}),
            (fl.cell(lambda x, s: x * s[:, None].tanh()), ("wide", "number"), ("wide",), {}),
            (fl.cell(lambda x: torch.tanh(x * scale * 2)), ("wide",), ("wide",), {}),
            (fl.cell(lambda x: x[:, :NARROW] + x[:, 1:]), ("wide",), ("narrow",), {}),
            (fl.cell(lambda x, y: x.sigmoid() * y), ("narrow", "narrow"), ("narrow",), {}),
            (fl.cell(lambda x: x.mean(-1)), ("wide",), ("number",), {}),
            (fl.cell(lambda x: x.argmax(-1)), ("wide",), ("row",), {}),
            (fl.cell(lambda x: x.sum(-1) > 0), ("narrow",), ("truth",), {}),
            (
                fl.cell(lambda t, x, y: torch.where(t[:, None], x, y)),
                ("truth", "narrow", "narrow"),
                ("narrow",),
                {},
            ),
            (scaled, ("narrow",), ("narrow",), {"by": 2.0}),
            (scaled, ("narrow",), ("narrow",), {"by": -0.5}),
        ]


class Joint(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(NARROW, NARROW, bias=False)
        self.product = nn.Parameter(torch.randn(NARROW, WIDE))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(self.left(x) + y), torch.sigmoid(y @ self.product)


scaled = fl.cell(lambda x, by: torch.sin(x * by))


def run_program(library: Library, given_tensor: torch.Tensor, shared: torch.Tensor, program: list[list[int]]) -> Any:
    """Interpret numbers as a program: each instruction picks a cell and, for each argument, one of the values so far."""
    values: dict[str, list[Any]] = {
        "narrow": [given_tensor, shared, np.linspace(-1, 1, NARROW)],
        "wide": [],
        "number": [0.5, given_tensor.sum().detach()],
        "row": [3, 2],
        "truth": [True],
    }
    used: list[Any] = []
    for instruction in program:
        cell, takes, makes, settings = library.cells[instruction[0] % len(library.cells)]
        if any(not values[kind] for kind in takes):
            continue
        picks = [values[kind][pick % len(values[kind])] for kind, pick in zip(takes, instruction[1:], strict=False)]
        made = cell(*picks, **settings)
        made = made if isinstance(made, tuple) else (made,)
        for kind, value in zip(makes, made, strict=True):
            values[kind].append(value)
            used.append(value)
    # Some results are looked at twice, some never.
    state = None
    if values["wide"]:
        state = library.recur(values["narrow"][-1], (values["wide"][0], values["wide"][-1]))
    return {"all": used[::2], "last": used[-1:], "state": state, "count": len(used)}


instructions = st.lists(st.lists(st.integers(0, 60), min_size=4, max_size=4), min_size=0, max_size=12)


@given(programs=st.lists(instructions, min_size=1, max_size=5))
def test_random_programs(programs: list[list[list[int]]]) -> None:
    torch.manual_seed(len(programs))
    library = Library()
    tensors = [torch.randn(NARROW, dtype=torch.float64, requires_grad=True) for _ in programs]
    shared = torch.randn(NARROW, dtype=torch.float64, requires_grad=True)

    def function(tensor: torch.Tensor, program: list[list[int]]) -> Any:
        return run_program(library, tensor, shared, program)

    check_law(function, tensors, programs, sources=[*library.parameters(), *tensors, shared])


@given(programs=st.lists(instructions, min_size=1, max_size=3))
def test_random_programs_differentiated_twice(programs: list[list[list[int]]]) -> None:
    library = Library()
    tensors = [torch.randn(NARROW, dtype=torch.float64, requires_grad=True) for _ in programs]
    sources = [*library.parameters(), *tensors]

    def function(tensor: torch.Tensor, program: list[list[int]]) -> Any:
        result = run_program(library, tensor, tensor, program)
        return [value for value in result["all"] if value.dtype.is_floating_point]

    def second_gradients(results: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        loss = sum((value**2).sum() for result in results for value in result)
        nothing = [torch.zeros_like(source) for source in sources]
        # A result that depends on nothing needs no gradient alone; in a batch it shares a tensor with those that do.
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            return nothing
        first = torch.autograd.grad(loss, sources, create_graph=True, allow_unused=True)
        bent = sum((grad**2).sum() for grad in first if grad is not None and grad.requires_grad)
        if not isinstance(bent, torch.Tensor):
            return nothing
        second = torch.autograd.grad(bent, sources, allow_unused=True)
        return [torch.zeros_like(s) if g is None else g for s, g in zip(sources, second, strict=True)]

    expected = second_gradients(fl.one_by_one(function)(tensors, programs))
    with weight_grads_collected(enough_rows=3):
        actual = second_gradients(fl.batch(function)(tensors, programs))
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
