"""Finding 9: grad mode and detachment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from tests.never_wrong.checking import assert_same, check, gradients, linear, loss_of, sequences, vectors

LAYER, OTHER = linear(), linear()
CELL = nn.LSTMCell(3, 3, dtype=torch.float64)
SOURCES = [*LAYER.parameters(), *OTHER.parameters(), *CELL.parameters()]


def tagged(x: torch.Tensor) -> Any:
    logits = LAYER(x)
    with torch.no_grad():
        tags = logits.argmax(-1).tolist()
    return logits, tags


def tagged_in_inference_mode(x: torch.Tensor) -> Any:
    logits = LAYER(x)
    with torch.inference_mode():
        tags = logits.argmax(-1).tolist()
    return logits, tags


def tagged_by_a_decorated_function(x: torch.Tensor) -> Any:
    @torch.no_grad()
    def decide(logits: torch.Tensor) -> list[int]:
        return logits.argmax(-1).tolist()

    logits = LAYER(x)
    return logits, decide(logits)


def tagged_by_switching(x: torch.Tensor) -> Any:
    logits = LAYER(x)
    torch.set_grad_enabled(False)
    tags = logits.argmax(-1).tolist()
    torch.set_grad_enabled(True)
    return logits, tags


def tagged_where_errors_are_caught(x: torch.Tensor) -> Any:
    """Others begin with gradients while the sum waits without."""
    mean = LAYER(x).mean(0)
    try:
        with torch.no_grad():
            shifted = mean + mean
    except RuntimeError:
        shifted = mean
    return mean + shifted


def tagged_then_scored(x: torch.Tensor) -> Any:
    logits = LAYER(x)
    with torch.no_grad():
        tags = logits.argmax(-1)
    return nn.functional.cross_entropy(logits, tags), tags.tolist()


def tagged_last(x: torch.Tensor) -> Any:
    logits = LAYER(x)
    with torch.no_grad():
        return logits, OTHER(logits).argmax(-1).tolist()


def returned_within(x: torch.Tensor) -> Any:
    y = LAYER(x)
    with torch.no_grad():
        return y, OTHER(y)


def sampled_then_scored(x: torch.Tensor) -> Any:
    """A policy acts without gradients, and is scored with them."""
    with torch.no_grad():
        actions = [int(LAYER(row).argmax()) for row in x]
    return torch.stack([LAYER(row).log_softmax(0)[action] for row, action in zip(x, actions, strict=True)])


def truncated(x: torch.Tensor) -> Any:
    h = torch.zeros(3, dtype=torch.float64)
    for row in x:
        h = h.detach()
        h += LAYER(row)
    return h


def truncated_out_of_place(x: torch.Tensor) -> Any:
    h = torch.zeros(3, dtype=torch.float64)
    for row in x:
        h = torch.tanh(OTHER(h.detach()) + LAYER(row))
    return h


def truncated_with_detach_in_place(x: torch.Tensor) -> Any:
    h = LAYER(x[0]) * 1
    for row in x[1:]:
        h.detach_()
        h = torch.tanh(OTHER(h) + LAYER(row))
    return h


def truncated_by_data(x: torch.Tensor) -> Any:
    h = LAYER(x[0])
    for row in x[1:]:
        h = torch.tanh(OTHER(h.data) + LAYER(row))
    return h


def truncated_states(x: torch.Tensor) -> Any:
    h = c = torch.zeros(3, dtype=torch.float64)
    for number, row in enumerate(x):
        if number % 2:
            h, c = h.detach(), c.detach()
        h, c = CELL(row, (h, c))
    return h, c


def added_to_detached(x: torch.Tensor) -> Any:
    y = LAYER(x).detach()
    y.add_(OTHER(x))
    y *= 2
    return y


def detached_after_a_change(x: torch.Tensor) -> Any:
    y = LAYER(x)
    z = y.detach()
    y = y + 1
    return y, z


def change_seen_through_detached(x: torch.Tensor) -> Any:
    y = LAYER(x)
    z = y.detach()
    z.zero_()
    return (y * 1).detach(), z


def clone_of_detached(x: torch.Tensor) -> Any:
    y = LAYER(x).detach().clone()
    y[0] = OTHER(x)[0]
    return y


def straight_through(x: torch.Tensor) -> Any:
    soft = LAYER(x).softmax(-1)
    hard = nn.functional.one_hot(soft.argmax(-1), 3).to(soft)
    return hard + soft - soft.detach()


def target_network(x: torch.Tensor) -> Any:
    with torch.no_grad():
        target = OTHER(x).max(-1).values * 0.9
    return nn.functional.mse_loss(LAYER(x).max(-1).values, target)


def asked_under_no_grad_in_between(x: torch.Tensor) -> Any:
    h = x
    for layer in (LAYER, OTHER, LAYER):
        h = layer(h).tanh()
        with torch.no_grad():
            if h.sum() > 0:
                h = h * 2
    return h


def enabled_within(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = LAYER(x)
        with torch.enable_grad():
            z = OTHER(y)
    return y, z


def generator_under_no_grad(x: torch.Tensor) -> Any:
    @torch.no_grad()
    def rows() -> Any:
        for row in x:
            yield LAYER(row)

    return [OTHER(row) for row in rows()]


def mode_is_seen(x: torch.Tensor) -> Any:
    before = torch.is_grad_enabled()
    with torch.no_grad():
        positive = bool(LAYER(x).sum() > 0)
        within = torch.is_grad_enabled()
    return before, positive, within, torch.is_grad_enabled()


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    function.__name__: function
    for function in (
        tagged,
        tagged_in_inference_mode,
        tagged_by_a_decorated_function,
        tagged_by_switching,
        tagged_where_errors_are_caught,
        tagged_then_scored,
        tagged_last,
        returned_within,
        sampled_then_scored,
        truncated,
        truncated_out_of_place,
        truncated_with_detach_in_place,
        truncated_by_data,
        truncated_states,
        added_to_detached,
        detached_after_a_change,
        change_seen_through_detached,
        clone_of_detached,
        straight_through,
        target_network,
        asked_under_no_grad_in_between,
        enabled_within,
        generator_under_no_grad,
        mode_is_seen,
    )
}


@pytest.mark.parametrize(
    "name",
    list(PROGRAMS),
)
def test_grad_mode(name: str) -> None:
    inputs = sequences()
    check(PROGRAMS[name], inputs, sources=[*inputs, *SOURCES])


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_batch_within_a_mode(mode: str) -> None:
    inputs = sequences()

    def function(x: torch.Tensor) -> Any:
        y = LAYER(x)
        return (y, (y * 2).requires_grad) if y.sum() > 0 else (y * 2, y.requires_grad)

    with getattr(torch, mode)():
        assert_same(fl.batch(function)(inputs), [function(x) for x in inputs])


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_batching_with_a_value_asked_for_within_a_mode(mode: str) -> None:
    inputs = vectors()

    def program() -> Any:
        logits = [LAYER(x) for x in inputs]
        with getattr(torch, mode)():
            tags = [int(y.argmax()) for y in logits]
        return logits, tags

    expected = program()
    with fl.batching():
        actual = program()
    assert_same(actual, expected)
    assert_same(gradients(actual, SOURCES, loss_of), gradients(expected, SOURCES, loss_of))


def stacked_without_gradients(x: torch.Tensor) -> Any:
    y = x * 2
    with torch.no_grad():
        stack = torch.stack([y, y * 3])
    return stack, stack.sum(0) * x


def joined_without_gradients(x: torch.Tensor) -> Any:
    stack = torch.stack([x * 2, x])
    with torch.no_grad():
        joined = torch.cat([stack, stack])
        turned = stack.flip(0)
    return joined * x, turned, stack


def rows_without_gradients(x: torch.Tensor) -> Any:
    stack = torch.stack([x * 2, x])
    with torch.no_grad():
        first = stack[0] * 2
        several = stack[1:] * 3
        each = [row * 4 for row in stack]
    return first, several, each, first * x, stack


def row_changed_without_gradients(x: torch.Tensor) -> Any:
    stack = torch.stack([x * 2, x, x * 3])
    with torch.no_grad():
        stack[0].mul_(2)
        stack[1:] *= 3
        for row in stack:
            row += 1
    return stack * x


@pytest.mark.parametrize(
    "function",
    [stacked_without_gradients, joined_without_gradients, rows_without_gradients, row_changed_without_gradients],
)
def test_rows_keep_no_history_where_there_are_no_gradients(function: Callable[..., Any]) -> None:
    xs = vectors(3)
    check(function, xs, sources=xs)


class _Noting(nn.Module):
    """Leaves on itself what it computed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept = x.tanh()
        return self.kept * 2


def test_what_is_computed_in_inference_mode_and_left_somewhere() -> None:
    def run(batch: Any) -> Any:
        net, holders = _Noting(), []

        def program(x: torch.Tensor) -> torch.Tensor:
            holder: Any = nn.Module()
            holders.append(holder)
            with torch.inference_mode():
                holder.inside = net(x)
                if holder.inside.sum() > 0:
                    holder.more = holder.inside + 1
            holder.outside = x * 3
            return x

        batch(program)([torch.ones(3), -torch.ones(3), torch.ones(3).requires_grad_()])
        left = [net.kept, *[value for holder in holders for name, value in vars(holder).items() if name[0] != "_"]]
        return [
            (value.is_inference(), value.requires_grad, value.tolist())
            for value in left
            if isinstance(value, torch.Tensor)
        ]

    assert run(fl.batch) == run(fl.one_by_one)
