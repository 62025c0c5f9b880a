"""Values on demand: whatever Python asks of a value that is not computed yet."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import pytest
import torch

import foldloom as fl
from foldloom.tracing.flushing.flush import Flushes
from tests.law.on_the_fly import check_on_the_fly
from tests.tracing.plain import halved_until_small, sequences, vector, vectors

pytestmark = pytest.mark.usefixtures("in_float64", "nothing_hangs")


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
    "a loop until": lambda x: halved_until_small(x),
    "range": lambda x: [x * n for n in range(int(x.argmax()) + 1)],
    "dictionary": lambda x: {int(x.argmax()): x},
    "unpacking": lambda x: (lambda a, b, c: a * b if c > 0 else b)(*x),
    "any and all": lambda x: (any(x > 0), all(y < 9 for y in x)),
    "assert": lambda x: _asserted(x),
}  # fmt: skip


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
        fl.batch(halved_until_small)([torch.full((3,), float(size)) for size in range(10)])
        longest = max(halved_until_small(torch.full((3,), float(size)))[1] for size in range(10))
    assert len(flushes) <= longest + 2, "one for each round of the longest loop"


def test_a_recording_that_asks_for_a_value_is_refused() -> None:
    with pytest.raises(fl.errors.ValueNotReadyError, match=r"plain.py:\d+"):
        fl.record(halved_until_small, vector(3))
