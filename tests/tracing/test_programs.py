"""Whole programs: parsers, beams, memories, groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import LINEAR, OTHER_LINEAR, sequences

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


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
            stack.append(LINEAR(stack.pop() + stack.pop()).tanh())
    return torch.stack(stack).sum(0), len(stack)


def _beam(x: torch.Tensor) -> Any:
    beams: list[Any] = [(x[0], 0.0)]
    for _ in range(2):
        found = []
        for state, score in beams:
            values, places = (state @ LINEAR.weight).log_softmax(0).topk(2)
            found += [(state + OTHER_LINEAR.weight[places[n]] * values[n], score + values[n]) for n in range(2)]
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
    sources = [*inputs, *LINEAR.parameters(), *OTHER_LINEAR.parameters()]
    check_on_the_fly(lambda x: program(x * 1.5), inputs, sources=sources, records=False)
