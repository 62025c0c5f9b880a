"""However long a stream is, nothing that it keeps grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import foldloom as fl
from foldloom.streaming import lanes
from foldloom.tracing.examples.renewal import renew
from foldloom.tracing.recording.recorder import Recorder
from tests.streaming.programs import Walker, examples

pytestmark = pytest.mark.usefixtures("nothing_hangs")


BY_KIND = ("ops", "calls", "view_of_op", "_rules", "_kernel_of_op", "_forms", "_rows", "_shapes", "filled", "arenas")
"""What grows with the kinds of calls, not with their number."""


def sizes(recorder: Recorder) -> dict[str, int]:
    """How many things each container of a recorder and its parts holds."""
    parts: list[Any] = [recorder.graph, recorder.graph.histories, recorder.inputs, recorder.flushes, recorder.guards]
    flushes: Any = recorder.flushes
    parts += [recorder.outside, recorder.derived, flushes._pending, flushes.reader, flushes.gradients]
    session = flushes.computed.session
    parts += [flushes.computed, session, session._placed, session._buffers, session.failures]
    found = {"values": recorder.graph.value_count, "bytes": recorder.flushes.held_bytes()}
    for part in parts:
        names = [*getattr(part, "__dict__", ()), *getattr(type(part), "__slots__", ())]
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (dict, list, set, bytearray)) and name not in BY_KIND:
                found[f"{type(part).__name__}.{name}"] = len(value)
    return found


@pytest.mark.parametrize("waits", [True, False])
def test_no_part_of_the_recorder_grows(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, int]] = []

    def renew_and_look(recorder: Recorder) -> bool:
        is_done = renew(recorder)
        seen.append(sizes(recorder))
        return is_done

    monkeypatch.setattr(lanes, "LEAST_BYTES", 1 << 14)
    monkeypatch.setattr(lanes, "renew", renew_and_look)
    model = Walker()
    columns = examples(1500, 3, length=30 if waits else 2)
    for _ in fl.stream(model, *columns, width=8, errors="return"):
        pass
    assert len(seen) > 8
    early, late = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    for name in late[-1]:
        most = max(found.get(name, 0) for found in early)
        assert max(found[name] for found in late) <= 2 * most + 64, name


def test_what_an_exception_holds() -> None:
    """Exceptions that are kept keep no values alive."""
    table = nn.Embedding(4, 3)

    def function(word: int) -> torch.Tensor:
        vector = table(torch.tensor(word % 4))
        if vector.sum() < 1e9 and word % 2:
            raise ValueError(word)
        return vector

    found = list(fl.stream(function, range(20), width=4, errors="return"))
    errors = [error for error in found if isinstance(error, ValueError)]
    assert len(errors) == 10
    frame = errors[0].__traceback__
    while frame is not None:
        assert "vector" not in frame.tb_frame.f_locals
        frame = frame.tb_next


def test_tensors_of_examples_that_are_done_are_freed() -> None:
    """Their identities are used again, and what was known of one says nothing of another."""

    def trees() -> Iterator[Any]:
        for number in range(300):
            yield [torch.full((2, 3), float(number)), number]

    def function(tree: Any) -> Any:
        matrix, number = tree
        total = (matrix * 2).sum()
        while total > 10:
            total = total / 7
        return total, number

    with torch.no_grad():
        expected = fl.one_by_one(function)(list(trees()))
    torch.testing.assert_close(list(fl.stream(function, trees(), width=4)), expected)

    class Tree:
        def __init__(self, number: int) -> None:
            self.matrix = torch.full((2, 3), float(number))

    def inside(tree: Tree) -> Any:
        return (tree.matrix * 2).sum().item()

    found = list(fl.stream(inside, (Tree(number) for number in range(300)), width=4))
    assert found == [12.0 * number for number in range(300)]
